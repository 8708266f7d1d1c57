package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/jackc/pgx/v5"
)

const kindReported = "issuance.reported"

// useBody is the body of the entries that report how often a credential was used.
type useBody struct {
	Version    int         `json:"version"`
	Kind       string      `json:"kind"`
	ID         string      `json:"id"`
	Time       time.Time   `json:"time"`
	Actor      subjectBody `json:"actor"`
	Calls      int64       `json:"calls"`
	LastUsedAt time.Time   `json:"last_used_at,omitzero"`
}

// Report implements [broker.Usage]. It reads before it appends, so a report that is repeated or made up costs no commit.
func (l *Ledger) Report(ctx context.Context, use broker.Use) (broker.Use, error) {
	use.Time, use.LastUsed = record.Stored(use.Time), record.Stored(use.LastUsed)
	e, err := useEntry(use)
	if err != nil {
		return broker.Use{}, err
	}
	for range 2 {
		said, found, err := l.reported(ctx, use)
		if err != nil || found {
			return said, err
		}
		if _, err = l.append(ctx, e); !errors.Is(err, broker.ErrOvertaken) {
			return use, err
		}
	}
	return broker.Use{}, broker.ErrNotFound // the issuance is being pruned
}

func useEntry(use broker.Use) (entry, error) {
	e, err := newEntry(kindReported, use.Issuance, use.Time)
	if err != nil {
		return entry{}, err
	}
	e.command, e.overtakes, e.alone = true, true, use.Issuance
	return e.with(useBody{
		Version: record.BodyVersion, Kind: kindReported, ID: use.Issuance, Time: use.Time, Actor: subjectOf(use.Holder.Workload),
		Calls: use.Calls, LastUsedAt: use.LastUsed,
	})
}

// reported returns what the holder has reported before. It returns broker.ErrNotFound if there is no report and the holder
// may not make one.
func (l *Ledger) reported(ctx context.Context, use broker.Use) (said broker.Use, found bool, err error) {
	var may bool
	var calls *int64
	var at, last *time.Time
	err = l.read.QueryRow(ctx, `
		SELECT reportable(@id, @holder), u.calls, u.time, u.last_used_at
		FROM (VALUES (@id::uuid)) AS asked (id) LEFT JOIN (
			SELECT u.* FROM uses AS u JOIN issuances AS i ON i.id = u.issuance WHERE i.spiffe_id = @holder) AS u ON u.issuance = asked.id`,
		pgx.NamedArgs{"id": use.Issuance, "holder": use.Holder.ID()}).Scan(&may, &calls, &at, &last)
	switch {
	case err != nil:
		return said, false, postgres.Unavailable("reading what was reported", err)
	case calls != nil:
		use.Calls, use.Time, use.LastUsed = *calls, at.UTC(), record.Instant(last)
		return use, true, nil
	case !may:
		return said, false, broker.ErrNotFound
	}
	return said, false, nil
}
