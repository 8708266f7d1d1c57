package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

const (
	// maxSuperseded limits how often a request is decided when the catalogue changes during the decision.
	maxSuperseded = 3
	// outcomeTimeout bounds the write of an outcome, which continues when the caller has disconnected.
	outcomeTimeout = 5 * time.Second
	// mintWithin is how long after the record a credential may still be minted. If it were minted later, the sweeper could take
	// the record for abandoned, or the credential could expire unrenewed on its way to the caller.
	mintWithin = UnrenewedLife / 2
)

var (
	errLate        = fmt.Errorf("%w: timed out", ErrVaultUnavailable)
	errUndelivered = errors.New("the credential was not delivered")
	errOpen        = errors.New("an equal request is open")
)

// Result is what became of a request.
type Result struct {
	// Record is the record in the ledger. Its ID is empty if Earlier is set, and if a denial was only counted (AttemptBudget).
	Record Record
	// Credential is set only if the status of Record is StatusIssued. It is nil for a permit (KindNone).
	Credential *Credential
	// Earlier is the record of an earlier request that this one repeats, if that was denied or is pending. For a redemption, it is
	// the request to redeem, if that is still pending or was rejected.
	Earlier *View
}

// Deliver gives a result to the caller. Issue, RedeemApproval and Delegate call it once, when the record is durable. If the
// result holds a credential, Deliver returns nil only if it has written the credential.
type Deliver func(Result) error

// Issue decides a request, commits the record, and only then mints and delivers. If Issue returns an error, the sandbox gets no
// credential. The error is *scopes.InvalidAsk for an invalid request, *UnexpectedGrantError, the error of deliver, or a sentinel of this
// package. A denial is a result, not an error.
//
// A request that repeats an open one is that request: if people still have to approve it, the result has Earlier, and nothing is
// recorded; if they have approved it, Issue redeems it. A request repeats another if it has the same idempotency key, or if neither has
// one and they are equal (see Approvals.EqualRequest).
func (b *Broker) Issue(ctx context.Context, who attest.Identity, req Request, deliver Deliver) error {
	var closed []string
	for range maxSuperseded {
		open, err := b.issue(ctx, who, req, closed, deliver)
		if open != nil {
			err = b.RedeemApproval(ctx, who, redemptionOf(open.ID, req), deliver)
		}
		switch {
		case open != nil && (errors.Is(err, ErrNotApproved) || errors.Is(err, ErrStale)):
			closed = append(closed, open.ID) // it cannot be redeemed any more, so this is a new request
		case !errors.Is(err, ErrAlreadyAsked): // otherwise the equal request was made a moment ago: the next round finds it
			return err
		}
	}
	return ErrConcurrentChange
}

// issue is Issue, except that it only returns an equal request that people have approved.
func (b *Broker) issue(ctx context.Context, who attest.Identity, req Request, closed []string, deliver Deliver) (open *View, err error) {
	var reuse string // the request whose approval covers this one
	rec, key, earlier, err := b.begin(ctx, who, func(catalogue *scopes.Catalogue, now time.Time) (Record, Key, error) {
		decision, err := catalogue.Decide(asking(who, req), askOf(req), now)
		if err != nil {
			return Record{}, Key{}, err
		}
		if err := req.Expect.check(decision); err != nil {
			return Record{}, Key{}, err
		}
		rec, key, err := b.prepare(who, bindable(req, decision), decision, now)
		if err != nil || rec.Status != StatusPending {
			return rec, key, err
		}
		leave, err := b.lookUp(ctx, who)
		if err != nil {
			return Record{}, Key{}, err
		}
		defer leave()
		if open, err = b.openRequest(ctx, rec, closed); err != nil {
			return Record{}, Key{}, err
		}
		if open != nil && open.Status != StatusPending {
			return Record{}, Key{}, errOpen
		}
		if reuse, err = b.reusableApproval(ctx, rec); err != nil {
			return Record{}, Key{}, err
		}
		switch {
		case open != nil:
			return Record{}, Key{}, errOpen
		case reuse == "":
			rec.Limits = append(rec.Limits, askingLimit(rec))
		}
		return rec, key, nil
	})
	switch {
	case errors.Is(err, errOpen) && reuse != "" && open.Votes > 0:
		return nil, b.giveWay(ctx, who, open)
	case errors.Is(err, errOpen) && reuse != "":
		return nil, b.reuseApproval(ctx, who, open.ID, req, reuse, deliver)
	case errors.Is(err, errOpen) && open.Status == StatusPending:
		return nil, deliver(Result{Earlier: open})
	case errors.Is(err, errOpen):
		return open, nil
	case err != nil:
		return nil, err
	case earlier != nil && earlier.RequestDigest != rec.Digest:
		return nil, ErrIdempotencyMismatch
	case earlier != nil:
		return nil, b.repeat(ctx, who, req, earlier, deliver)
	case rec.Status == StatusPending && reuse != "":
		return nil, b.reuseApproval(ctx, who, rec.ID, req, reuse, deliver)
	}
	return nil, b.mint(ctx, rec, key, deliver)
}

// repeat answers a request whose idempotency key was used before, for the same request.
func (b *Broker) repeat(ctx context.Context, who attest.Identity, req Request, earlier *View, deliver Deliver) error {
	switch {
	case earlier.Decision == string(scopes.Allow):
		return ErrAlreadyIssued
	case earlier.Status != StatusApproved && earlier.Status != StatusRedeemed:
		return deliver(Result{Earlier: earlier})
	}
	err := b.RedeemApproval(ctx, who, redemptionOf(earlier.ID, req), deliver)
	if earlier.Status == StatusRedeemed && errors.Is(err, ErrNotApproved) {
		return ErrAlreadyIssued
	}
	return err
}

// begin decides a request and commits its record. If the ledger refuses the decision because another catalogue came into force,
// begin starts again with that catalogue. It returns the durable record: the decided one, or a denial if the ledger knows a
// reason that policy does not. earlier is the record that already has the idempotency key.
func (b *Broker) begin(
	ctx context.Context, who attest.Identity, decide func(*scopes.Catalogue, time.Time) (Record, Key, error),
) (rec Record, key Key, earlier *View, err error) {
	for range maxSuperseded {
		catalogue := b.catalogue()
		if rec, key, err = decide(catalogue, b.cfg.Now()); err != nil {
			return Record{}, Key{}, nil, err
		}
		if rec.Decision.Outcome == scopes.Deny && !b.mayRecord(rec.Subject) {
			rec.ID = "" // counted, and not recorded
			return rec, Key{}, nil, nil
		}
		if earlier, err = b.cfg.Ledger.Begin(ctx, rec); err == nil {
			return rec, key, earlier, nil
		}
		if rec, err = b.turnAway(ctx, who, rec, err); !errors.Is(err, ErrSuperseded) {
			return rec, Key{}, nil, err
		}
		if err := b.reload(ctx, catalogue.Digest()); err != nil {
			return Record{}, Key{}, nil, fmt.Errorf("loading the catalogue in force: %w", err)
		}
	}
	return Record{}, Key{}, nil, ErrSuperseded
}

// prepare turns a decision into the record to commit. For an allowed request the record has the intent: every byte of a JWT except
// its signature, what Vault is to make, or that there is no credential. For a JWT, prepare also returns the signing key that the intent
// names.
func (b *Broker) prepare(who attest.Identity, req Request, d scopes.Decision, now time.Time) (Record, Key, error) {
	rec, err := newRecord(who, req, d, now)
	if err != nil || d.Outcome != scopes.Allow {
		return rec, Key{}, err
	}
	credential := d.Scope.Credential
	rec.Intent = &Intent{ID: rec.ID, Expires: rec.Expires, Kind: credential.Kind, Grant: d.Grant}
	switch {
	case d.Grant != nil, credential.Kind == scopes.KindNone:
		return rec, Key{}, nil
	case credential.Federated():
		return b.prepareFederated(rec, d)
	}
	key, err := b.cfg.Minter.Key(credential.Algorithm)
	if err != nil {
		return Record{}, Key{}, fmt.Errorf("choosing a signing key: %w", err)
	}
	var in place
	if credential.StatusList {
		if in, err = b.places.take(rec.Subject.ID.TrustDomain().Name(), now); err != nil {
			return Record{}, Key{}, err
		}
	}
	claims := token.Claims{
		Issuer:   b.cfg.Issuer,
		Subject:  rec.Subject.ID.String(),
		ClientID: rec.Subject.ID.String(),
		Audience: credential.Audience,
		IssuedAt: rec.Time.Unix(),
		Expires:  rec.Expires.Unix(),
		ID:       rec.ID,
		Scope:    d.Scope.Name,
		Task:     req.Task,
		Details: []token.Detail{{
			Type: d.Scope.Name, Actions: []string{string(d.Scope.Authority)}, Locations: []string{credential.Audience},
			Identifier: d.Resource, Params: d.Params,
		}},
		OnBehalfOf: PersonOf(req.User),
		OneShot:    credential.OneShot,
		Status:     in.status(b.cfg.Issuer),
	}
	bound := token.Confirm{JKT: rec.Request.JKT} // the keys that the token is bound to
	if credential.Bind == scopes.BindMTLS {
		bound.X5T = rec.Subject.Thumbprint
	}
	if bound != (token.Confirm{}) {
		claims.Confirm = &bound
	}
	if p := req.Parent; p != nil {
		claims.Subject, claims.Actor = p.Subject, &token.Actor{Subject: claims.ClientID, Actor: p.Actor}
	}
	rec.Intent.OneShot, rec.Intent.StatusList, rec.Intent.StatusIndex = credential.OneShot, in.list, in.index
	return rec, key, rec.Intent.describe("", credential.Audience, key, claims)
}

// prepareFederated adds the intent of a token for another system. Its jti is the id of the record, so no two tokens share one.
func (b *Broker) prepareFederated(rec Record, d scopes.Decision) (Record, Key, error) {
	credential := d.Scope.Credential
	key, err := b.cfg.Minter.Key(credential.Federation.Algorithm)
	if err != nil {
		return Record{}, Key{}, fmt.Errorf("choosing a signing key: %w", err)
	}
	claims := token.FederatedClaims{
		Issuer:    b.cfg.Issuer,
		Subject:   d.FederatedSubject,
		Audience:  credential.Audience,
		IssuedAt:  rec.Time.Unix(),
		NotBefore: rec.Time.Unix(),
		Expires:   rec.Expires.Unix(),
		ID:        rec.ID,
		ClientID:  rec.Subject.ID.String(),
		Scope:     d.Scope.Name,
		Task:      rec.Request.Task,
	}
	return rec, key, rec.Intent.describe(token.FederatedType, credential.Audience, key, claims)
}

// describe fixes the type, the key and the claims of a JWT. An access token has no type.
func (i *Intent) describe(typ, audience string, key Key, claims any) error {
	payload, err := json.Marshal(claims)
	if err != nil {
		return fmt.Errorf("encoding claims: %w", err)
	}
	i.Type, i.Audience, i.KeyID, i.Algorithm = typ, audience, key.ID, key.Algorithm
	i.Claims, i.ClaimsDigest = payload, sha256.Sum256(payload)
	return nil
}

// turnAway commits a denial for a request that the ledger refused because of a quarantine, an ended task or a limit. If cause
// is none of these, it returns cause as the error.
func (b *Broker) turnAway(ctx context.Context, who attest.Identity, rec Record, cause error) (Record, error) {
	denial, err := stoppedRecord(who, rec, cause)
	if err != nil {
		return Record{}, fmt.Errorf("recording the decision: %w", err)
	}
	if !b.mayRecord(denial.Subject) {
		denial.ID = "" // counted, and not recorded
	} else if _, err := b.cfg.Ledger.Begin(ctx, denial); err != nil {
		return Record{}, fmt.Errorf("recording a denial: %w", err)
	}
	var limited *Limited
	if errors.As(cause, &limited) {
		return Record{}, &Limited{Limit: limited.Limit, RetryAfter: limited.RetryAfter, Record: denial}
	}
	return denial, nil
}

// mint asks the minter once for what a durable record allows, and delivers it. A permit (KindNone) is the record itself, so there is
// nothing to mint. A JWT needs no second record: its intent fixes all of it. For every other credential, mint commits what Vault made
// before it delivers. Such a credential expires soon. If deliver has written it, mint renews it to its full lifetime. If not, mint
// revokes it.
func (b *Broker) mint(ctx context.Context, rec Record, key Key, deliver Deliver) (err error) {
	if rec.Intent == nil || rec.Intent.Kind == scopes.KindNone {
		return deliver(Result{Record: rec})
	}
	left := mintWithin - b.cfg.Now().Sub(rec.Time)
	bounded, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	var credential Credential
	err = errLate
	if left > 0 {
		credential, err = b.cfg.Minter.Mint(bounded, &Order{intent: *rec.Intent, key: key})
	}
	if err != nil {
		b.fail(ctx, rec, err)
		return fmt.Errorf("minting %s: %w", rec.ID, err)
	}
	if credential.Minted == nil {
		return deliver(Result{Record: rec, Credential: &credential})
	}
	err = b.recordOutcome(ctx, Outcome{ID: rec.ID, Time: b.cfg.Now(), Status: StatusIssued, Minted: credential.Minted})
	if err != nil {
		b.discard(ctx, rec, credential.Minted.VaultLease)
		if errors.Is(err, ErrInvalidTransition) { // somebody revoked it: nothing else advances a record in StatusIntent
			err = ErrRevoked
		}
		return fmt.Errorf("recording what was minted for %s: %w", rec.ID, err)
	}
	issued := rec // a copy: the deferred function would keep rec on the heap, also for a JWT
	issued.Status = StatusIssued
	minted := *credential.Minted
	if minted.Empty() {
		// Nobody can end it before it expires. A certificate for the caller's own key is useless to anybody else, and keys of another
		// system are known to nobody else.
		return deliver(Result{Record: issued, Credential: &credential})
	}
	err = errUndelivered // also after a panic
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if err != nil {
			b.end(ctx, []LiveCredential{liveOf(issued, minted.VaultLease)}, ending{cause: CauseUndelivered})
		} else if failure := b.renew(ctx, minted); failure != nil {
			b.renewals.Go(func() { b.renewLater(ctx, issued, minted, failure) })
		}
	}()
	return deliver(Result{Record: issued, Credential: &credential})
}

// recordOutcome writes an outcome even if the caller has disconnected.
func (b *Broker) recordOutcome(ctx context.Context, out Outcome) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	return b.cfg.Ledger.RecordOutcome(ctx, out)
}

// fail records that a mint failed. If the store is down, the record of a JWT continues to say issued, which claims too much
// rather than too little. Any other record says intent until the sweeper finds it.
func (b *Broker) fail(ctx context.Context, rec Record, cause error) {
	out := Outcome{ID: rec.ID, Time: b.cfg.Now(), Status: StatusFailed, Detail: failureCode(cause)}
	var lost *LostMintError
	if errors.As(cause, &lost) {
		out.Status, out.Minted, out.MayLiveUntil = StatusUnknown, &Minted{VaultLease: lost.VaultLease}, lost.Until
	}
	if err := b.recordOutcome(ctx, out); err != nil {
		b.cfg.Log.ErrorContext(ctx, "outcome not recorded", "issuance", rec.ID, "status", string(out.Status), "error", err)
	}
}

func failureCode(cause error) string {
	switch {
	case errors.Is(cause, ErrMintMismatch):
		return "mint_mismatch"
	case errors.Is(cause, ErrGitHubRefused):
		return "github_refused"
	case errors.Is(cause, ErrGitHubUnavailable):
		return "github_unavailable"
	case errors.Is(cause, ErrVaultRefused):
		return "vault_refused"
	case errors.Is(cause, ErrVaultUnavailable):
		return "vault_unavailable"
	case errors.Is(cause, ErrLedgerUnavailable):
		return "ledger_unavailable"
	default:
		return "internal"
	}
}

// discard revokes a minted credential that cannot be delivered. It would expire unrenewed anyway; discard only makes this faster.
// The record may say intent, issued or, if somebody revoked it, revoking. discard finishes only the last case and leaves the
// others to the sweeper.
func (b *Broker) discard(ctx context.Context, rec Record, h VaultLease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	if !h.Empty() {
		if err := b.cfg.Minter.Revoke(ctx, h); err != nil {
			b.cfg.Log.WarnContext(ctx, "undelivered credential not revoked: it expires unrenewed, or the sweeper revokes it", "issuance", rec.ID, "error", err)
			return
		}
	}
	reach := Reach{Subject: rec.Subject.ID.String()}
	held, err := b.cfg.Live.Live(ctx, Selector{ID: rec.ID}, reach, LivePage{Limit: 1})
	if err != nil || len(held) == 0 || held[0].Status != StatusRevoking {
		return
	}
	if err := b.cfg.Ledger.RecordOutcome(ctx, finally(held[0], b.cfg.Now(), 0)); err != nil {
		b.cfg.Log.WarnContext(ctx, "revocation of a credential left to the sweeper", "issuance", rec.ID, "error", err)
	}
}

func (b *Broker) renew(ctx context.Context, minted Minted) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outcomeTimeout)
	defer cancel()
	return b.cfg.Minter.Renew(ctx, minted)
}

// renewLater retries while there is something to renew. A credential that is not renewed expires early. The sweeper finds it and
// records this.
func (b *Broker) renewLater(ctx context.Context, rec Record, minted Minted, err error) {
	for errors.Is(err, ErrVaultUnavailable) && b.cfg.Now().Sub(rec.Time) < UnrenewedLife {
		wait.For(ctx, time.Second)
		err = b.renew(ctx, minted)
	}
	if err == nil {
		return
	}
	b.cfg.Log.ErrorContext(ctx, "delivered credential not renewed: it expires early", "issuance", rec.ID, "error", err)
	if errors.Is(err, ErrMintMismatch) { // it was renewed for longer than granted
		b.end(ctx, []LiveCredential{liveOf(rec, minted.VaultLease)}, ending{cause: CauseOverdue})
	}
}

func liveOf(rec Record, h VaultLease) LiveCredential {
	live := LiveCredential{
		ID: rec.ID, Subject: rec.Subject.ID.String(), Task: rec.Request.Task, Scope: rec.Request.Scope,
		Kind: rec.Intent.Kind, Status: StatusIssued, StatusTime: rec.Time, Expires: rec.Expires, VaultLease: h,
	}
	if g := rec.Intent.Grant; g != nil {
		live.Leased, live.Static = g.Leased, g.Static
	}
	return live
}

// asking returns the subject of a decision: the workload, whether it has proved a DPoP key, and the person that it acts for.
func asking(who attest.Identity, req Request) scopes.Subject {
	return scopes.Subject{
		ID: who.ID(), Expires: who.Expires(), Bound: who.Kind() == attest.KindX509, Proved: req.JKT != "", User: req.User,
	}
}

// bindable drops the proved key from a request if the credential cannot be bound to it.
func bindable(req Request, d scopes.Decision) Request {
	if d.Scope == nil || !d.Scope.Credential.AccessToken() {
		req.JKT = ""
	}
	return req
}

func askOf(req Request) scopes.Ask {
	return scopes.Ask{
		Scope: req.Scope, Params: req.Params, TTL: req.TTL, RequestContext: req.RequestContext, CSR: req.CSR, PublicKey: req.PublicKey,
	}
}

// newID returns a new UUIDv7. It cannot fail, because crypto/rand cannot.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// newRecord builds the record of a decided request. It truncates the expiry to whole seconds, as tokens count them, so that it is
// never later than granted.
func newRecord(who attest.Identity, req Request, d scopes.Decision, now time.Time) (Record, error) {
	accepted := req
	if d.Params != nil {
		accepted.Params = d.Params // in canonical form, however the caller wrote them
	}
	digest, err := requestDigest(accepted)
	if err != nil {
		return Record{}, err
	}
	rec := Record{
		ID: newID(), Time: now.UTC(), Subject: workload(who), Request: req, Decision: d, Digest: digest,
	}
	switch d.Outcome {
	case scopes.Allow:
		rec.Status, rec.Expires = StatusIntent, rec.Time.Add(d.TTL).Truncate(time.Second)
		if d.Grant == nil {
			rec.Status = StatusIssued
		}
	case scopes.Pending:
		rec.Status, rec.Expires = StatusPending, rec.Time.Add(d.Approval.Expires).Truncate(time.Second)
		if rec.Canonical, err = canonical(rec, *d.Approval); err != nil {
			return Record{}, err
		}
	default:
		rec.Status = StatusDenied
	}
	rec.Limits = limitsOf(rec)
	return rec, nil
}

// Order is the right to mint one credential. Only this package creates orders, after the intent is durable. An order can be
// redeemed once.
type Order struct {
	intent Intent
	key    Key
	spent  atomic.Bool
}

// Spend spends the order and returns what to mint. A second call returns ErrOrderSpent.
func (o *Order) Spend() (Intent, Key, error) {
	if o.spent.Swap(true) {
		return Intent{}, Key{}, ErrOrderSpent
	}
	return o.intent, o.key, nil
}

// PersonOf returns a person in the form that tokens use. It returns nil if u is nil.
func PersonOf(u *scopes.User) *token.Person {
	if u == nil {
		return nil
	}
	issuer, subject, _ := strings.Cut(u.ID, "#")
	return &token.Person{Issuer: issuer, Subject: subject}
}

// userID returns the ID of a person. It returns "" if u is nil.
func userID(u *scopes.User) string {
	if u == nil {
		return ""
	}
	return u.ID
}

// requestDigest returns the same digest for two requests that ask for the same thing: the encoder sorts map keys.
func requestDigest(req Request) ([32]byte, error) {
	canonical, err := json.Marshal(struct {
		Scope  string         `json:"scope"`
		Params map[string]any `json:"params"`
		TTL    time.Duration  `json:"ttl"`
		scopes.RequestContext
		Reason    string `json:"reason"`
		CSR       string `json:"csr,omitempty"`
		PublicKey string `json:"public_key,omitempty"`
		JKT       string `json:"jkt,omitempty"`
		User      string `json:"on_behalf_of,omitempty"`
	}{req.Scope, req.Params, req.TTL, req.RequestContext, req.Reason, req.CSR, req.PublicKey, req.JKT, userID(req.User)})
	if err != nil {
		return [32]byte{}, fmt.Errorf("encoding the request: %w", err)
	}
	return sha256.Sum256(canonical), nil
}

// canonical returns what people are shown of a record.
func canonical(rec Record, asks scopes.Approval) (string, error) {
	d := rec.Decision
	s := approval.Shown{
		Version: 1, Request: rec.ID, TrustDomain: rec.Subject.ID.TrustDomain().Name(), SPIFFEID: rec.Subject.ID.String(),
		Scope: d.Scope.Name, Authority: string(d.Scope.Authority), Resource: d.Resource, Params: d.Params,
		TTL: int64(d.TTL / time.Second), RequestContext: rec.Request.RequestContext, Audience: d.Scope.Credential.Audience,
		Catalogue: d.Catalogue, Digest: rec.Digest[:], Group: asks.Group, Quorum: asks.Quorum,
		BreakGlass: asks.BreakGlass, Expires: rec.Expires.Unix(), JKT: rec.Request.JKT, User: userID(rec.Request.User),
		FederatedSubject: d.FederatedSubject,
		Exchange:         d.Exchange.String(),
	}
	if d.Grant != nil && d.Scope.Credential.Kind == scopes.KindGitHub {
		s.Repositories, s.Permissions = d.Grant.Data["repositories"], d.Grant.Data["permissions"]
	}
	if d.Scope.Credential.Kind == scopes.KindNone {
		var hosts []string
		for _, rule := range d.Scope.Egress {
			hosts = append(hosts, rule.Hosts...)
		}
		slices.Sort(hosts)
		s.Opens = strings.Join(slices.Compact(hosts), ", ")
	}
	if d.Scope.Credential.Bind == scopes.BindMTLS {
		s.Thumbprint = rec.Subject.Thumbprint
	}
	if key := rec.Request.CSR + rec.Request.PublicKey; key != "" {
		digest := sha256.Sum256([]byte(key))
		s.Key = hex.EncodeToString(digest[:])
	}
	if d.Scope.Approval != nil && d.Scope.Approval.Remember == scopes.RememberTask {
		s.Remember = scopes.RememberTask
	}
	if asks.Passkey == scopes.PasskeyRequired {
		s.Passkey = scopes.PasskeyRequired
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("describing the request to people: %w", err)
	}
	return string(text), nil
}

// Expectation is what a caller expects of a grant, beyond its request. An empty field expects nothing.
type Expectation struct {
	Kind      string // of the credential
	Audience  string
	Authority string
	Resource  string
	// AccessToken means that the credential must be one that resource servers accept, and not a token for another system.
	AccessToken bool
}

// The properties of a grant that can differ from the expectation.
const (
	UnexpectedKind      = "kind"
	UnexpectedAudience  = "audience"
	UnexpectedAuthority = "authority"
	UnexpectedResource  = "resource"
)

// UnexpectedGrantError means that the grant would differ from what the caller expects. No decision was recorded, and nothing was
// minted.
type UnexpectedGrantError struct{ Field string }

func (u *UnexpectedGrantError) Error() string {
	return "granted " + u.Field + " differs from the expected one"
}

// check compares a decision with the expectation. It ignores denials, because they grant nothing.
func (e Expectation) check(d scopes.Decision) error {
	if d.Outcome == scopes.Deny {
		return nil
	}
	if e.AccessToken && !d.Scope.Credential.AccessToken() {
		return &UnexpectedGrantError{UnexpectedKind}
	}
	for _, f := range []struct{ field, want, got string }{
		{UnexpectedKind, e.Kind, d.Scope.Credential.Kind},
		{UnexpectedAudience, e.Audience, d.Scope.Credential.Audience},
		{UnexpectedAuthority, e.Authority, string(d.Scope.Authority)},
		{UnexpectedResource, e.Resource, d.Resource},
	} {
		if f.want != "" && f.want != f.got {
			return &UnexpectedGrantError{f.field}
		}
	}
	return nil
}
