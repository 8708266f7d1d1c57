package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/mod/sumdb/tlog"
)

// The kinds of entries. The schema lists them too.
const (
	kindDenied  = "request.denied"
	kindPending = "request.pending"
	kindIntent  = "issuance.intent"
	kindRefused = "call.refused"
	// The kind of an outcome is this prefix and the status that it leads to.
	kindOutcome = "issuance."
)

// entry is one event, ready to be appended.
type entry struct {
	kind string
	id   pgtype.UUID // of the record it concerns, or of the refusal itself
	time time.Time
	body []byte
	leaf tlog.Hash
	// alone is set if a batch may hold only one entry with this value: the second must see the effect of the first.
	alone string
	// urgent is set if a person or an admin waits for the entry.
	urgent bool
	// command reports whether the entry is a command. Commands are appended in batches of commands.
	command bool
	// overtakes is set for a command that is refused if the state it would change is not the state it names.
	overtakes bool
	// subject and key are set if the entry claims an idempotency key.
	subject, key *string
	// subject, task and scope are set if a quarantine or the end of the task forbids the entry. ends is set if the entry
	// begins a credential, which counts as live until then.
	task, scope *string
	ends        *time.Time
	// catalogue is set if a catalogue decided the request. That catalogue must still be in force.
	catalogue *string
	// approves is the approved request that the entry redeems.
	approves pgtype.UUID
	// parent is set if the entry begins a token that was exchanged for another: that one must be in force.
	parent pgtype.UUID
	// shown is set to what people are shown if the entry waits for people and has no idempotency key: no equal one may be pending. ttl is
	// the TTL that it asks for, in seconds.
	shown *string
	ttl   int64
	// ended is set if the entry ends the credential of id.
	ended bool
	// limits are the limits that the entry counts against.
	limits []broker.Limit
	// term is the term of the sweeper that appends the entry, and zero for every other caller.
	term int64
}

// decisionBody is the body of the entries that begin a record. Durations are whole seconds, rounded down. The members of this type, and
// of the types in it, are in the order of RFC 8785, so that record.Encode need not sort them.
type decisionBody struct {
	// Approves names the approved request by its id and by the SHA-256 of the text that the approvers were shown.
	Approves *approvesBody `json:"approves,omitempty"`
	Decision verdictBody   `json:"decision"`
	Expires  time.Time     `json:"expires,omitzero"`
	ID       string        `json:"id"`
	Intent   *intentBody   `json:"intent,omitempty"`
	Kind     string        `json:"kind"`
	// OnBehalfOf is the person on whose behalf the sandbox made the request.
	OnBehalfOf *userBody `json:"on_behalf_of,omitempty"`
	// Parent is the issuance that was exchanged for this one.
	Parent  string      `json:"parent,omitzero"`
	Request requestBody `json:"request"`
	Status  string      `json:"status"`
	Subject subjectBody `json:"subject"`
	Time    time.Time   `json:"time"`
	Version int         `json:"version"`
}

// userBody is a person's id, with their groups at that time.
type userBody struct {
	Groups []string `json:"groups"`
	ID     string   `json:"id"`
}

type approvesBody struct {
	Hash    string `json:"hash"`
	Request string `json:"request"`
}

type subjectBody struct {
	SPIFFEID    string `json:"spiffe_id"`
	SVID        string `json:"svid"`
	Thumbprint  string `json:"thumbprint"`
	TrustDomain string `json:"trust_domain"`
}

type requestBody struct {
	Digest         string `json:"digest"`
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// JKT is the thumbprint of the key that the sandbox has proved.
	JKT    string         `json:"jkt,omitzero"`
	Params map[string]any `json:"params"`
	Reason string         `json:"reason"`
	Scope  string         `json:"scope"`
	scopes.RequestContext
	TTL int64 `json:"ttl"`
}

type verdictBody struct {
	Approval    *approvalBody  `json:"approval,omitempty"`
	Authority   string         `json:"authority"`
	Catalogue   string         `json:"catalogue"`
	Clamps      []clampBody    `json:"clamps"`
	Code        string         `json:"code"`
	Explanation string         `json:"explanation"`
	Outcome     string         `json:"outcome"`
	Params      map[string]any `json:"params,omitzero"`
	Policies    []string       `json:"policies"`
	Resource    string         `json:"resource"`
	TTL         int64          `json:"ttl"`
}

type clampBody struct {
	Bound string `json:"bound"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
}

type approvalBody struct {
	BreakGlass string `json:"break_glass,omitzero"`
	// Canonical is the text that people are shown, byte for byte. They vote on its SHA-256.
	Canonical string `json:"canonical"`
	Expires   int64  `json:"expires"`
	Group     string `json:"group"`
	Quorum    int    `json:"quorum"`
}

// intentBody holds a grant, the contents of a JWT, or only the kind if there is no credential.
type intentBody struct {
	Algorithm    string     `json:"algorithm,omitzero"`
	Audience     string     `json:"audience,omitzero"`
	Claims       []byte     `json:"claims,omitempty"` // base64: they are signed byte for byte
	ClaimsDigest string     `json:"claims_digest,omitzero"`
	Grant        *grantBody `json:"grant,omitempty"`
	KeyID        string     `json:"key_id,omitzero"`
	Kind         string     `json:"kind"`
	OneShot      bool       `json:"one_shot,omitzero"`
	// StatusList is the token's place in the status list, which says whether the token was ended.
	StatusList *placeBody `json:"status_list,omitempty"`
	// Type is the typ header of a JWT that is not an access token.
	Type string `json:"typ,omitzero"`
}

type placeBody struct {
	ID    string `json:"id"`
	Index int    `json:"index"`
}

type grantBody struct {
	Data   map[string]string `json:"data"`
	Leased bool              `json:"leased"`
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Policy string            `json:"policy"`
	Static bool              `json:"static"`
}

type refusalBody struct {
	record.Header

	Code       string       `json:"code"`
	Detail     string       `json:"detail"`
	Subject    *subjectBody `json:"subject,omitempty"`
	PersonID   string       `json:"person_id,omitzero"`
	Remote     string       `json:"remote"`
	Operation  string       `json:"operation"`
	Suppressed int          `json:"suppressed"`
}

// Begin implements [broker.Ledger].
func (l *Ledger) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	kind, ok := map[scopes.Outcome]string{
		scopes.Deny: kindDenied, scopes.Pending: kindPending, scopes.Allow: kindIntent,
	}[rec.Decision.Outcome]
	if !ok {
		return nil, fmt.Errorf("%w: no such decision", record.ErrUnrecordable)
	}
	switch i := rec.Intent; {
	case i == nil:
	case (i.Kind == scopes.KindJWT || i.Kind == scopes.KindNone) == (i.Grant != nil):
		return nil, fmt.Errorf("%w: its kind and its intent disagree", record.ErrUnrecordable)
	case i.Kind == scopes.KindJWT && sha256.Sum256(i.Claims) != i.ClaimsDigest:
		return nil, fmt.Errorf("%w: the digest is not that of the claims", record.ErrUnrecordable)
	}
	e, err := newEntry(kind, rec.ID, rec.Time)
	if err != nil {
		return nil, err
	}
	// What decides whether the entry is admitted.
	e.limits, e.catalogue = rec.Limits, new(rec.Decision.Catalogue)
	subject := rec.Subject.ID.String()
	if rec.Request.IdempotencyKey != "" {
		e.subject, e.key = &subject, new(rec.Request.IdempotencyKey)
	} else if rec.Decision.Outcome == scopes.Pending {
		e.shown, e.ttl = new(rec.Canonical), seconds(rec.Request.TTL)
	}
	if rec.Decision.Outcome != scopes.Deny {
		e.subject, e.task, e.scope = &subject, new(rec.Request.Task), new(rec.Request.Scope)
	}
	if rec.Decision.Outcome == scopes.Allow && !rec.Expires.IsZero() {
		ends := record.Stored(rec.Expires)
		e.ends = &ends
	}
	header := e.header()
	body := decisionBody{
		Version: header.Version, Kind: header.Kind, ID: header.ID, Time: header.Time,
		Subject: subjectOf(rec.Subject), Decision: verdictOf(rec.Decision),
		Status: string(rec.Status), Expires: record.Stored(rec.Expires), Intent: intentOf(rec.Intent),
	}
	r := rec.Request
	body.Request = requestBody{
		Scope: r.Scope, Params: r.Params, TTL: seconds(r.TTL), RequestContext: r.RequestContext, Reason: r.Reason,
		IdempotencyKey: r.IdempotencyKey, JKT: r.JKT, Digest: hex.EncodeToString(rec.Digest[:]),
	}
	if body.Decision.Approval != nil {
		body.Decision.Approval.Canonical = rec.Canonical
	}
	if p := r.Parent; p != nil {
		body.Parent = p.ID
		if rec.Decision.Outcome == scopes.Allow {
			parent, err := record.ParseID(p.ID)
			if err != nil {
				return nil, fmt.Errorf("%w: what it is exchanged for has no UUID", record.ErrUnrecordable)
			}
			e.parent = pgtype.UUID{Bytes: parent, Valid: true}
		}
	}
	if u := r.User; u != nil {
		body.OnBehalfOf = &userBody{ID: u.ID, Groups: u.Groups}
	}
	if rec.Approves != "" {
		asked, err := record.ParseID(rec.Approves)
		if err != nil {
			return nil, fmt.Errorf("%w: what it approves has no UUID", record.ErrUnrecordable)
		}
		e.approves, e.alone = pgtype.UUID{Bytes: asked, Valid: true}, rec.Approves
		hash := sha256.Sum256([]byte(rec.Canonical))
		body.Approves = &approvesBody{Request: rec.Approves, Hash: hex.EncodeToString(hash[:])}
	}
	if e, err = e.with(body); err != nil {
		return nil, err
	}
	return l.append(ctx, e)
}

// Refuse implements [broker.Ledger]. It gives the refusal an id if it has none: if the answer to the commit is lost, the
// read-back looks for that id. Without one, the refusal might be counted twice.
func (l *Ledger) Refuse(ctx context.Context, ref broker.Refusal) error {
	if ref.ID == "" {
		ref.ID = uuid.Must(uuid.NewV7()).String()
	}
	e, err := newEntry(kindRefused, ref.ID, ref.Time)
	if err != nil {
		return err
	}
	body := refusalBody{
		Header: e.header(), Code: ref.Code, Detail: ref.Detail,
		PersonID: ref.Person, Remote: ref.Remote, Operation: ref.Operation, Suppressed: ref.Suppressed,
	}
	if ref.Subject != nil {
		subject := subjectOf(*ref.Subject)
		body.Subject = &subject
	}
	return l.add(ctx, e, body)
}

func newEntry(kind, id string, at time.Time) (entry, error) {
	parsed, err := record.ParseID(id)
	if err != nil {
		return entry{}, fmt.Errorf("%w: its id is not a UUID", record.ErrUnrecordable)
	}
	return entry{kind: kind, id: pgtype.UUID{Bytes: parsed, Valid: true}, time: record.Stored(at)}, nil
}

// newCommand returns the entry of a command with a new id. That cannot fail, because crypto/rand cannot.
func newCommand(kind string, at time.Time) entry {
	return entry{kind: kind, id: pgtype.UUID{Bytes: uuid.Must(uuid.NewV7()), Valid: true}, time: record.Stored(at), command: true}
}

func (e entry) header() record.Header {
	return record.Header{Version: record.BodyVersion, Kind: e.kind, ID: uuid.UUID(e.id.Bytes).String(), Time: e.time}
}

// add appends an entry with a body.
func (l *Ledger) add(ctx context.Context, e entry, body any) error {
	e, err := e.with(body)
	if err == nil {
		_, err = l.append(ctx, e)
	}
	return err
}

// with sets the body and its leaf hash.
func (e entry) with(body any) (entry, error) {
	var err error
	if e.body, e.leaf, err = record.Encode(body); err != nil {
		return entry{}, err
	}
	return e, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func subjectOf(s broker.Subject) subjectBody {
	return subjectBody{
		SPIFFEID: s.ID.String(), TrustDomain: s.ID.TrustDomain().Name(), SVID: string(s.Kind), Thumbprint: s.Thumbprint,
	}
}

func verdictOf(d scopes.Decision) verdictBody {
	v := verdictBody{
		Outcome: string(d.Outcome), Code: d.Reason, Explanation: d.Explanation, Resource: d.Resource, Params: d.Params,
		TTL: seconds(d.TTL), Policies: d.Policies, Catalogue: d.Catalogue,
	}
	if d.Scope != nil {
		v.Authority = string(d.Scope.Authority)
	}
	for _, c := range d.Clamps {
		v.Clamps = append(v.Clamps, clampBody{Bound: c.Bound, From: seconds(c.From), To: seconds(c.To)})
	}
	if d.Outcome == scopes.Pending && d.Approval != nil {
		a := d.Approval
		v.Approval = &approvalBody{Group: a.Group, Quorum: a.Quorum, BreakGlass: a.BreakGlass, Expires: seconds(a.Expires)}
	}
	return v
}

func intentOf(i *broker.Intent) *intentBody {
	switch {
	case i == nil:
		return nil
	case i.Kind == scopes.KindNone:
		return &intentBody{Kind: i.Kind}
	case i.Grant != nil:
		g := i.Grant
		return &intentBody{Kind: i.Kind, Grant: &grantBody{
			Policy: g.Policy, Method: g.Method, Path: g.Path, Data: g.Data, Leased: g.Leased, Static: g.Static,
		}}
	}
	b := &intentBody{
		Kind: i.Kind, Type: i.Type, Audience: i.Audience, KeyID: i.KeyID, Algorithm: i.Algorithm,
		OneShot: i.OneShot, Claims: i.Claims, ClaimsDigest: hex.EncodeToString(i.ClaimsDigest[:]),
	}
	if i.StatusList != "" {
		b.StatusList = &placeBody{i.StatusList, i.StatusIndex}
	}
	return b
}

// outcomeBody is the body of the entries that change a record's status.
type outcomeBody struct {
	record.Header

	Status string      `json:"status"`
	Detail string      `json:"detail,omitzero"`
	Actor  string      `json:"actor,omitzero"`
	Minted *mintedBody `json:"minted,omitempty"`
	// MayLiveUntil is when a credential that nobody can revoke is dead.
	MayLiveUntil string `json:"may_live_until,omitzero"`
	Term         int64  `json:"term,omitzero"`
}

type mintedBody struct {
	Accessor string `json:"accessor,omitzero"`
	Lease    string `json:"lease,omitzero"`
	Name     string `json:"name,omitzero"`
	Digest   string `json:"digest,omitzero"`
}

// outcomes are the statuses that a record can move to. plainOutcomes are those of them that have no code for a reason.
var (
	outcomes = []broker.Status{
		broker.StatusIssued, broker.StatusFailed, broker.StatusUnknown, broker.StatusCompensated, broker.StatusRevoking,
		broker.StatusRevoked, broker.StatusReleased, broker.StatusExpired,
		broker.StatusUsed,
	}
	plainOutcomes = []broker.Status{broker.StatusIssued, broker.StatusExpired, broker.StatusUsed}
)

// RecordOutcome implements [broker.Ledger]. It also returns broker.ErrNotFound for a record that was never begun.
func (l *Ledger) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	if !slices.Contains(outcomes, out.Status) {
		return fmt.Errorf("%w to %q", broker.ErrInvalidTransition, out.Status)
	}
	if (out.Detail == "") != slices.Contains(plainOutcomes, out.Status) {
		return fmt.Errorf("%w: an outcome needs a code if it was not foreseen, and else has none", record.ErrUnrecordable)
	}
	e, err := newEntry(kindOutcome+string(out.Status), out.ID, out.Time)
	if err != nil {
		return err
	}
	e.alone, e.term, e.ended = out.ID, out.Term, out.Status != broker.StatusIssued
	byPerson := out.Actor != "" && !strings.HasPrefix(out.Actor, "spiffe://")
	e.urgent = out.Detail == broker.CauseRevoked || out.Detail == broker.CauseQuarantined || out.Detail == broker.CauseTaskEnded && byPerson
	body := outcomeBody{
		Header: e.header(), Status: string(out.Status), Detail: out.Detail,
		Actor: out.Actor, Term: out.Term,
	}
	if m := out.Minted; m != nil {
		body.Minted = &mintedBody{Accessor: m.Accessor, Lease: m.Lease, Name: m.Name}
		if m.Digest != [32]byte{} {
			body.Minted.Digest = hex.EncodeToString(m.Digest[:])
		}
	}
	if !out.MayLiveUntil.IsZero() {
		body.MayLiveUntil = out.MayLiveUntil.UTC().Format(time.RFC3339)
	}
	return l.add(ctx, e, body)
}

// Get implements [broker.Ledger].
func (l *Ledger) Get(ctx context.Context, id string, reach broker.Reach) (*broker.View, error) {
	parsed, err := record.ParseID(id)
	if err != nil || record.ReachesNothing(reach) {
		return nil, broker.ErrNotFound
	}
	args := pgx.NamedArgs{"id": [16]byte(parsed)}
	rows, err := l.read.Query(ctx, `
		SELECT `+record.Columns+` FROM issuances
		WHERE id = @id AND `+record.Within(reach, "trust_domain", args), args)
	found, err := postgres.CollectOne(rows, err, pgx.RowToStructByName[record.Row])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, broker.ErrNotFound
	}
	if err != nil {
		return nil, postgres.Unavailable("reading a record", err)
	}
	return found.View()
}

const kindReported = "issuance.reported"

// useBody is the body of the entries that report how often a credential was used.
type useBody struct {
	record.Header

	Actor      subjectBody `json:"actor"`
	Calls      int64       `json:"calls"`
	LastUsedAt time.Time   `json:"last_used_at,omitzero"`
}

// Report implements [broker.Usage]. It reads before it appends, so a report that is repeated or made up costs no commit.
func (l *Ledger) Report(ctx context.Context, use broker.Use) (broker.Use, error) {
	use.Time, use.LastUsed = record.Stored(use.Time), record.Stored(use.LastUsed)
	e, err := newEntry(kindReported, use.Issuance, use.Time)
	if err == nil {
		e.command, e.overtakes, e.alone = true, true, use.Issuance
		e, err = e.with(useBody{
			Header: e.header(), Actor: subjectOf(use.Holder.Workload),
			Calls: use.Calls, LastUsedAt: use.LastUsed,
		})
	}
	if err != nil {
		return broker.Use{}, err
	}
	for range 2 {
		said, found, err := l.reported(ctx, use)
		if err != nil || found {
			return said, err
		}
		if _, err = l.append(ctx, e); !errors.Is(err, broker.ErrConcurrentChange) {
			return use, err
		}
	}
	return broker.Use{}, broker.ErrNotFound // the issuance is being pruned
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
