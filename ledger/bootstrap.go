package ledger

import (
	"context"
	"time"
)

// Bootstrap returns when the time of the bootstrap admin ends, or has ended, and whether it still goes on, by the
// database's clock. It never asks a standby, which may not know of the end yet.
func (l *Ledger) Bootstrap(ctx context.Context) (end time.Time, on bool, err error) {
	err = l.estate.QueryRow(ctx, `
		SELECT d.ends, clock_timestamp() < d.ends
		FROM (SELECT least(created_at + interval '1 hour', bootstrap_ended_at) AS ends FROM deployment) AS d`).Scan(&end, &on)
	return end.UTC(), on, unavailable("reading the bootstrap admin's time", err)
}

// EndBootstrap ends the time of the bootstrap admin for good, unless it is over.
func (l *Ledger) EndBootstrap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.flushTimeout)
	defer cancel()
	_, err := l.write.Exec(ctx, `
		UPDATE deployment SET bootstrap_ended_at = clock_timestamp()
		WHERE bootstrap_ended_at IS NULL AND clock_timestamp() < created_at + interval '1 hour'`)
	return unavailable("ending the bootstrap admin's time", err)
}
