package ledger

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger/postgres"
)

// Bootstrap returns when the bootstrap admin's time ends or has ended, and whether it still runs, by the database's clock.
// If the time is over, Bootstrap ends it for good, since a clock may go back. It never reads from a standby, which may not
// know of the end yet.
func (l *Ledger) Bootstrap(ctx context.Context) (end time.Time, on bool, err error) {
	var kept bool
	err = l.live.QueryRow(ctx, `
		SELECT least(d.hour, d.bootstrap_ended_at), d.bootstrap_ended_at IS NULL AND clock_timestamp() < d.hour, d.bootstrap_ended_at IS NOT NULL
		FROM (SELECT created_at + interval '1 hour' AS hour, bootstrap_ended_at FROM deployment) AS d`).Scan(&end, &on, &kept)
	if err != nil {
		return time.Time{}, false, postgres.Unavailable("reading the bootstrap admin's time", err)
	}
	if !on && !kept {
		err = l.EndBootstrap(ctx)
	}
	return end.UTC(), on, err
}

// EndBootstrap ends the bootstrap admin's time for good. It does nothing if that has been done.
func (l *Ledger) EndBootstrap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.flushTimeout)
	defer cancel()
	_, err := l.write.Exec(ctx, `UPDATE deployment SET bootstrap_ended_at = clock_timestamp() WHERE bootstrap_ended_at IS NULL`)
	return postgres.Unavailable("ending the bootstrap admin's time", err)
}
