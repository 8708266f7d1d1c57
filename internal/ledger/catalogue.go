package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// kindCatalogue is the prefix of the kinds of entries about a catalogue. The catalogue's new state follows it. The schema
// lists the kinds.
const kindCatalogue = "catalogue."

// changeBody is the body of the entries about catalogues. The files are stored separately, under the digest.
type changeBody struct {
	record.Header

	Actor    *actorBody `json:"actor,omitempty"`
	Digest   string     `json:"digest"`
	Base     string     `json:"base,omitzero"`
	Number   int64      `json:"number"` // of the version that it is, or would become
	Proposal string     `json:"proposal,omitzero"`
	Proposer string     `json:"proposer,omitzero"`
	Forced   bool       `json:"forced,omitzero"`
	Reason   string     `json:"reason"`
}

// ChangeCatalogue implements [broker.Catalogues].
func (l *Ledger) ChangeCatalogue(ctx context.Context, step broker.CatalogueStep) error {
	e, err := changeEntry(step)
	if err != nil {
		return err
	}
	if len(step.Files) > 0 {
		if err := l.keep(ctx, step.Digest, step.Files); err != nil {
			return err
		}
	}
	_, err = l.append(ctx, e)
	return err
}

func changeEntry(step broker.CatalogueStep) (entry, error) {
	switch step.Becomes {
	case broker.CatalogueProposed, broker.CatalogueApplied, broker.CatalogueRejected:
	default:
		return entry{}, fmt.Errorf("%w: no catalogue becomes %q", record.ErrUnrecordable, step.Becomes)
	}
	e, err := newEntry(kindCatalogue+string(step.Becomes), step.ID, step.Time)
	if err != nil {
		return entry{}, err
	}
	e.command, e.overtakes, e.alone, e.urgent = true, true, "catalogue", true
	body := changeBody{
		Header: e.header(), Digest: step.Digest, Base: step.Base,
		Number: step.Version, Proposal: step.Proposal, Proposer: step.Proposer, Forced: step.Forced, Reason: step.Reason,
	}
	if step.Actor != "" {
		body.Actor = &actorBody{ID: step.Actor}
	}
	return e.with(body)
}

// keep stores the files of a catalogue. That does not put the catalogue in force.
func (l *Ledger) keep(ctx context.Context, digest string, files []scopes.File) error {
	names, contents := make([]string, len(files)), make([][]byte, len(files))
	for i, f := range files {
		names[i], contents[i] = f.Name, f.Data
		if f.Data == nil {
			contents[i] = []byte{}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout)
	defer cancel()
	_, err := l.write.Exec(ctx, `
		INSERT INTO catalogues (digest, names, contents) VALUES (@digest, @names, @contents)
		ON CONFLICT (digest) DO NOTHING`, pgx.NamedArgs{"digest": digest, "names": names, "contents": contents})
	if aboutData(err) {
		return fmt.Errorf("%w: %s", record.ErrUnrecordable, postgres.Reason(err))
	}
	return postgres.Unavailable("keeping a catalogue", err)
}

// InForce implements [broker.Catalogues].
func (l *Ledger) InForce(ctx context.Context) (broker.CatalogueVersion, error) {
	type headRow struct {
		Version               int64
		Digest, Actor, Reason string
		Time                  *time.Time
	}
	rows, err := l.live.Query(ctx, `
		SELECT h.version, coalesce(h.digest, '') AS digest, coalesce(c.actor, '') AS actor, coalesce(c.reason, '') AS reason, c.time
		FROM catalogue_head AS h LEFT JOIN catalogue_changes AS c ON c.id = h.change`)
	h, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[headRow])
	return broker.CatalogueVersion{
		Version: h.Version, Digest: h.Digest, Actor: h.Actor, Reason: h.Reason, Since: record.Instant(h.Time),
	}, postgres.Unavailable("reading the catalogue in force", err)
}

// CatalogueFiles implements [broker.Catalogues].
func (l *Ledger) CatalogueFiles(ctx context.Context, digest string) ([]scopes.File, error) {
	if record.Unmatchable(digest) {
		return nil, broker.ErrNotFound
	}
	rows, err := l.live.Query(ctx, `
		SELECT f.name, f.data
		FROM catalogues AS c, unnest(c.names, c.contents) AS f (name, data)
		WHERE c.digest = @digest AND EXISTS (SELECT FROM catalogue_changes AS used WHERE used.digest = c.digest)
		ORDER BY f.name COLLATE "C"`, pgx.NamedArgs{"digest": digest})
	files, err := postgres.Collect(rows, err, pgx.RowToStructByName[scopes.File])
	switch {
	case err != nil:
		return nil, postgres.Unavailable("reading a catalogue", err)
	case len(files) == 0:
		return nil, broker.ErrNotFound
	}
	return files, nil
}

// OpenRequests implements [broker.Catalogues].
func (l *Ledger) OpenRequests(ctx context.Context) (n int, err error) {
	err = l.live.QueryRow(ctx, `
		SELECT count(*) FROM issuances
		WHERE status IN ('pending', 'approved') AND expires_at > now() - interval '1 minute' AND NOT `+record.Lapsed+`
			AND entry_index > `+record.InForceSince).Scan(&n)
	return n, postgres.Unavailable("counting open requests", err)
}

// changes selects the catalogue changes that are not decisions, each with the decision on it.
const changes = `
	SELECT c.id, c.digest, coalesce(c.base, '') AS base, c.version, coalesce(c.actor, '') AS actor, c.reason, c.time,
		CASE WHEN c.kind = 'applied' THEN 'applied'
			WHEN d.kind IS NOT NULL THEN d.kind
			WHEN c.version <= h.version THEN 'superseded'
			ELSE 'proposed' END AS state,
		coalesce(d.actor, '') AS decider, coalesce(d.reason, '') AS decided_reason, d.time AS decided_at,
		EXISTS (SELECT FROM entries AS e WHERE e.index IN (c.entry_index, d.entry_index) AND convert_from(e.body, 'UTF8')::jsonb ? 'forced') AS forced
	FROM catalogue_changes AS c CROSS JOIN catalogue_head AS h LEFT JOIN catalogue_changes AS d ON d.proposal = c.id
	WHERE c.proposal IS NULL`

type changeRow struct {
	ID                     uuid.UUID
	Digest, Base           string
	Version                int64
	State, Actor, Reason   string
	Time                   time.Time
	Decider, DecidedReason string
	DecidedAt              *time.Time
	Forced                 bool
}

// CatalogueChanges implements [broker.Catalogues].
func (l *Ledger) CatalogueChanges(ctx context.Context, limit int) ([]broker.CatalogueChange, error) {
	if limit < 1 || limit > record.MaxPage {
		return nil, record.ErrPageSize
	}
	return l.changes(ctx, changes+` ORDER BY c.entry_index DESC LIMIT @limit`, pgx.NamedArgs{"limit": limit})
}

// Proposal implements [broker.Catalogues].
func (l *Ledger) Proposal(ctx context.Context, digest string) (broker.CatalogueChange, error) {
	if record.Unmatchable(digest) {
		return broker.CatalogueChange{}, broker.ErrNotFound
	}
	found, err := l.changes(ctx, changes+`
		AND c.kind = 'proposed' AND c.digest = @digest AND c.version > h.version AND d.id IS NULL`,
		pgx.NamedArgs{"digest": digest})
	if err == nil && len(found) == 0 {
		err = broker.ErrNotFound
	}
	return append(found, broker.CatalogueChange{})[0], err
}

func (l *Ledger) changes(ctx context.Context, sql string, args pgx.NamedArgs) ([]broker.CatalogueChange, error) {
	rows, err := l.live.Query(ctx, sql, args)
	found, err := postgres.Collect(rows, err, pgx.RowToStructByName[changeRow])
	if err != nil {
		return nil, postgres.Unavailable("reading changes of the catalogue", err)
	}
	all := make([]broker.CatalogueChange, len(found))
	for i, c := range found {
		all[i] = broker.CatalogueChange{
			ID: c.ID.String(), Digest: c.Digest, Base: c.Base, Version: c.Version, State: broker.CatalogueState(c.State),
			Actor: c.Actor, Reason: c.Reason, Time: c.Time.UTC(), Decider: c.Decider, DecidedReason: c.DecidedReason,
			DecidedAt: record.Instant(c.DecidedAt), Forced: c.Forced,
		}
	}
	return all, nil
}
