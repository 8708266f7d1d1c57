package ledger

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/jackc/pgx/v5"
)

// The kinds of entries that people cause. The schema lists them too.
const (
	kindVote       = "approval.vote"
	kindRemembered = "approval.remembered"
	kindWithdrawn  = "approval.withdrawn"
	kindPerson     = "person.seen"
)

// stepBody is the body of the entries that move a request for approval to its next state.
type stepBody struct {
	record.Header

	Actor   actorBody `json:"actor,omitzero"`
	Verdict string    `json:"verdict,omitzero"`
	Covers  string    `json:"covers,omitzero"`
	Of      string    `json:"of,omitzero"` // the request whose approval is reused
	Hash    string    `json:"hash,omitzero"`
	Note    string    `json:"note"`
	// Assertion is the assertion that a passkey has signed, as JSON. Credential is the id of the passkey's credential, in
	// base64url.
	Credential string `json:"credential,omitzero"`
	Assertion  string `json:"assertion,omitzero"`
	Was        string `json:"was"`
	Votes      int    `json:"votes"` // before this step
	Status     string `json:"status"`
}

type actorBody struct {
	ID   string `json:"id"`
	Name string `json:"name,omitzero"`
}

// personBody is the body of the entries that record who a person is.
type personBody struct {
	record.Header

	SaidAt time.Time  `json:"said_at"`
	Person memberBody `json:"person"`
}

type memberBody struct {
	ID     string   `json:"id"`
	Name   string   `json:"name"`
	Handle string   `json:"handle"`
	Groups []string `json:"groups"`
}

// Apply implements [broker.Approvals].
func (l *Ledger) Apply(ctx context.Context, step broker.Transition) error {
	kind := kindWithdrawn
	switch {
	case step.Vote != nil:
		kind = kindVote
	case step.Remembered != "":
		kind = kindRemembered
	}
	e, err := newEntry(kind, step.Request, step.Time)
	if err != nil {
		return err
	}
	e.command, e.overtakes, e.alone, e.urgent = true, true, step.Request, step.Vote != nil
	body := stepBody{
		Header: e.header(), Actor: actorBody{ID: step.Actor},
		Was: string(step.Was), Votes: step.Votes, Status: string(step.Becomes), Of: step.Remembered,
	}
	if v := step.Vote; v != nil {
		body.Actor.Name, body.Verdict, body.Covers = v.Voter.Name, string(v.Verdict), string(cmp.Or(v.Covers, approval.CoverRequest))
		body.Note, body.Hash, body.Assertion = v.Note, hex.EncodeToString(step.Hash[:]), v.Assertion
		if v.Key != nil {
			body.Credential = inBase64.EncodeToString(v.Key.Credential)
		}
	}
	return l.add(ctx, e, body)
}

// member is a row of people.
type member struct {
	ID, Name, Handle string
	Groups           []string
	SaidAt           time.Time
}

func (m member) voter() approval.Voter {
	return approval.Voter{ID: m.ID, Name: m.Name, Handle: m.Handle, Groups: m.Groups, SaidAt: m.SaidAt.UTC()}
}

// UpsertPerson implements [broker.Approvals].
func (l *Ledger) UpsertPerson(ctx context.Context, v approval.Voter, at time.Time) (approval.Voter, error) {
	v.SaidAt = record.Stored(v.SaidAt)
	rows, err := l.read.Query(ctx, `SELECT id, name, handle, groups, said_at FROM people WHERE id = @id`, pgx.NamedArgs{"id": v.ID})
	known, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[member])
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return approval.Voter{}, postgres.Unavailable("looking for a person", err)
	case err == nil && (!known.SaidAt.Before(v.SaidAt) ||
		known.Name == v.Name && known.Handle == v.Handle && slices.Equal(known.Groups, v.Groups)):
		return known.voter(), nil
	}
	e := newCommand(kindPerson, at)
	e.alone = "person " + v.ID
	return v, l.add(ctx, e, personBody{
		Header: e.header(), SaidAt: v.SaidAt,
		Person: memberBody{ID: v.ID, Name: v.Name, Handle: v.Handle, Groups: v.Groups},
	})
}

// EqualRequest implements [broker.Approvals].
func (l *Ledger) EqualRequest(ctx context.Context, rec broker.Record, except []string) (*broker.View, error) {
	rows, err := l.read.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE id = equal_request(@spiffe_id, @shown, @ttl_asked, @except::text[]::uuid[])`,
		pgx.NamedArgs{
			"spiffe_id": rec.Subject.ID.String(), "shown": rec.Canonical, "ttl_asked": seconds(rec.Request.TTL),
			"except": append([]string{}, except...),
		})
	found, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[record.Row])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, postgres.Unavailable("looking for an equal request", err)
	}
	return found.View()
}

// maxReusable is how many earlier requests ReusableApprovals returns at most.
const maxReusable = 20

// ReusableApprovals implements [broker.Approvals].
func (l *Ledger) ReusableApprovals(ctx context.Context, asked broker.ReuseKey, since time.Time) ([]broker.View, error) {
	rows, err := l.live.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE spiffe_id = @spiffe_id AND task = @task AND scope = @scope AND time > @since
			AND status IN ('approved', 'redeemed') AND remembered IS NULL AND entry_index > `+record.InForceSince+`
		ORDER BY entry_index DESC LIMIT @limit`,
		pgx.NamedArgs{"spiffe_id": asked.SPIFFEID, "task": asked.Task, "scope": asked.Scope, "since": since, "limit": maxReusable})
	page, err := record.PageOf(rows, err, maxReusable)
	return page.Records, postgres.Unavailable("reading what people have approved", err)
}

// ReusedBy implements [broker.Approvals].
func (l *Ledger) ReusedBy(ctx context.Context, request string) ([]string, error) {
	id, err := record.ParseID(request)
	if err != nil {
		return nil, broker.ErrNotFound
	}
	rows, err := l.live.Query(ctx, `SELECT coalesce(redeemed_by::text, '') FROM issuances WHERE remembered = $1`, [16]byte(id))
	issuances, err := postgres.Collect(rows, err, pgx.RowTo[string])
	return issuances, postgres.Unavailable("reading what an approval stood for", err)
}

// voteRow is a row of votes, with the voter and the passkey that signed the vote.
type voteRow struct {
	member
	passkeyRow
	Verdict, Covers, Note, Assertion string
	Time                             time.Time
	Denied                           bool // an entry records a denial of the request, whatever the rows say
}

// Votes implements [broker.Approvals].
func (l *Ledger) Votes(ctx context.Context, request string) ([]approval.Vote, error) {
	id, err := record.ParseID(request)
	if err != nil {
		return nil, broker.ErrNotFound
	}
	rows, err := l.read.Query(ctx, `
		SELECT p.id, p.name, p.handle, p.groups, p.said_at, v.verdict, v.covers, v.time, v.note,
			coalesce(v.assertion, '') AS assertion, d.denied, `+passkeyColumns+`
		FROM votes AS v JOIN people AS p ON p.id = v.voter
			LEFT JOIN passkeys AS k ON k.person = v.voter AND k.credential = v.credential AND k.removed_index IS NULL
				AND k.entry_index < v.entry_index
			`+passkeyEntry+`
			CROSS JOIN (SELECT EXISTS (
				SELECT FROM entries AS n
				WHERE n.id = @request AND n.kind = 'approval.vote' AND convert_from(n.body, 'UTF8')::jsonb ->> 'verdict' = 'deny')) AS d (denied)
		WHERE v.request = @request
		ORDER BY v.entry_index`, pgx.NamedArgs{"request": [16]byte(id)})
	votes, err := postgres.Collect(rows, err, func(r pgx.CollectableRow) (approval.Vote, error) {
		v, err := pgx.RowToStructByName[voteRow](r)
		vote := approval.Vote{
			Voter: v.voter(), Verdict: approval.Verdict(v.Verdict), Covers: approval.Cover(v.Covers), Time: v.Time.UTC(), Note: v.Note,
			Assertion: v.Assertion,
		}
		if p := v.passkey(); p != nil && !v.Denied {
			vote.Key = &p.Key
		}
		return vote, err
	})
	return votes, postgres.Unavailable("reading votes", err)
}

// waits is the condition that issuance i is pending, and that one of the groups q.groups may approve it or break the glass
// for it, from within q.within.
const waits = `(i.approval_group = ANY (q.groups) OR i.break_glass = ANY (q.groups)) AND i.status = 'pending' AND i.expires_at > now()
	AND i.entry_index > ` + record.InForceSince + `
	AND NOT EXISTS (
		SELECT FROM task_ends AS e
		WHERE e.spiffe_id = i.spiffe_id AND e.task = i.task AND (e.ended OR e.ends_at <= now()))
	AND NOT EXISTS (
		SELECT FROM quarantines AS c
		WHERE i.spiffe_id = c.spiffe_id OR starts_with(i.spiffe_id, c.spiffe_id || '/'))
	AND EXISTS (
		SELECT FROM unnest(q.within) AS w (id)
		WHERE w.id IN (@everywhere, i.spiffe_id) OR starts_with(i.spiffe_id, w.id || '/'))`

// inTurn selects up to q.most of the pending requests. It takes turns between the trust domains, and in each of them between
// the sandboxes, and takes the oldest request of a sandbox first. So no sandbox can hide the requests of others by sending
// many.
const inTurn = `
	SELECT w.entry_index, row_number() OVER (PARTITION BY w.trust_domain ORDER BY w.turn, w.entry_index) AS turn
	FROM (
		SELECT i.entry_index, i.trust_domain,
			-- The sum is no index's order: that of all a sandbox ever asked would look like the way.
			row_number() OVER (PARTITION BY i.spiffe_id ORDER BY i.entry_index + 0) AS turn
		FROM issuances AS i
		WHERE ` + waits + `) AS w
	ORDER BY turn, w.entry_index
	LIMIT q.most`

// Waiting implements [broker.Inbox].
func (l *Ledger) Waiting(ctx context.Context, q broker.WaitingQuery) (views []broker.View, more bool, err error) {
	if q.Limit < 1 || q.Limit > record.MaxPage {
		return nil, false, record.ErrPageSize
	}
	if record.Unmatchable(q.Groups...) {
		return nil, false, nil
	}
	rows, err := l.read.Query(ctx, `
		SELECT `+record.Columns+`
		FROM (SELECT @groups::text[], @within::text[], @limit::bigint + 1) AS q (groups, within, most),
			LATERAL (`+inTurn+`) AS found JOIN issuances USING (entry_index)
		ORDER BY found.turn, entry_index`, pgx.NamedArgs{
		"groups": append([]string{}, q.Groups...), "within": append([]string{}, q.Within...),
		"everywhere": people.Everywhere, "limit": q.Limit,
	})
	page, err := record.PageOf(rows, err, q.Limit+1)
	if err != nil {
		return nil, false, postgres.Unavailable("listing what waits", err)
	}
	n := min(len(page.Records), q.Limit)
	return page.Records[:n], n < len(page.Records) || page.Next != 0, nil
}

// Decided implements [broker.Inbox]. A request that is past its time or void counts as decided.
func (l *Ledger) Decided(ctx context.Context, requests []string) ([]string, error) {
	rows, err := l.read.Query(ctx, `
		SELECT id::text FROM issuances
		WHERE id = ANY (@ids::text[]::uuid[]) AND (status <> 'pending' OR expires_at <= now() OR entry_index < `+record.InForceSince+`)`,
		pgx.NamedArgs{"ids": append([]string{}, requests...)})
	ids, err := postgres.Collect(rows, err, pgx.RowTo[string])
	return ids, postgres.Unavailable("looking for what is decided", err)
}

// PendingRequests implements [broker.Inbox].
func (l *Ledger) PendingRequests(ctx context.Context, queries []broker.WaitingQuery) ([]broker.PendingRequest, error) {
	type query struct {
		Groups []string `json:"groups"`
		Within []string `json:"within"`
		Most   int      `json:"most"`
	}
	asked := []query{}
	for _, q := range queries {
		if !record.Unmatchable(q.Groups...) {
			asked = append(asked, query{q.Groups, q.Within, q.Limit})
		}
	}
	rows, err := l.read.Query(ctx, `
		SELECT id::text, spiffe_id, approval_group, coalesce(break_glass, ''), `+record.Broken+`
		FROM (
			SELECT DISTINCT found.entry_index
			FROM jsonb_to_recordset(@asked::jsonb) AS q (groups text[], within text[], most bigint), LATERAL (`+inTurn+`) AS found
		) AS found JOIN issuances USING (entry_index)
		ORDER BY entry_index`, pgx.NamedArgs{"asked": asked, "everywhere": people.Everywhere})
	all, err := postgres.Collect(rows, err, pgx.RowToStructByPos[broker.PendingRequest])
	return all, postgres.Unavailable("looking for what waits", err)
}

// Views implements [broker.Inbox].
func (l *Ledger) Views(ctx context.Context, requests []string) ([]broker.View, error) {
	rows, err := l.read.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE id = ANY (@ids::text[]::uuid[]) AND decision = 'pending'
		ORDER BY entry_index`, pgx.NamedArgs{"ids": requests[:min(len(requests), record.MaxPage)]})
	page, err := record.PageOf(rows, err, record.MaxPage)
	return page.Records, postgres.Unavailable("reading what waits", err)
}
