package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
)

func subjectOf(who attest.Identity) scopes.Subject {
	return scopes.Subject{ID: who.ID(), Expires: who.Expires(), Bound: who.Kind() == attest.KindX509}
}

// asking returns the subject of a decision: the workload, whether it has proved a DPoP key, and the person that it acts for.
func asking(who attest.Identity, req Request) scopes.Subject {
	s := subjectOf(who)
	s.Proved, s.User = req.JKT != "", req.User
	return s
}

// bindable drops the proved key from a request if the credential cannot be bound to it.
func bindable(req Request, d scopes.Decision) Request {
	if d.Scope == nil || d.Scope.Credential.Kind != scopes.KindJWT {
		req.JKT = ""
	}
	return req
}

func askOf(req Request) scopes.Ask {
	return scopes.Ask{
		Scope: req.Scope, Params: req.Params, TTL: req.TTL, Task: req.Task, CSR: req.CSR, PublicKey: req.PublicKey,
	}
}

// newRecord builds the record of a decided request. It truncates the expiry to whole seconds, as tokens count them, so that it is
// never later than granted.
func newRecord(id string, who attest.Identity, req Request, d scopes.Decision, now time.Time) (Record, error) {
	accepted := req
	if d.Params != nil {
		accepted.Params = d.Params // in canonical form, however the caller wrote them
	}
	digest, err := requestDigest(accepted)
	if err != nil {
		return Record{}, err
	}
	rec := Record{
		ID:       id,
		Time:     now.UTC(),
		Subject:  Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()},
		Request:  req,
		Decision: d,
		Digest:   digest,
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

// confirmOf returns the keys that the token of a record is bound to. It returns nil if there are none.
func confirmOf(rec Record) *token.Confirm {
	bound := token.Confirm{JKT: rec.Request.JKT}
	if rec.Decision.Scope.Credential.Bind == scopes.BindMTLS {
		bound.X5T = rec.Subject.Thumbprint
	}
	if bound == (token.Confirm{}) {
		return nil
	}
	return &bound
}

// requestDigest returns the same digest for two requests that ask for the same thing: the encoder sorts map keys.
func requestDigest(req Request) ([32]byte, error) {
	canonical, err := json.Marshal(struct {
		Scope     string         `json:"scope"`
		Params    map[string]any `json:"params"`
		TTL       time.Duration  `json:"ttl"`
		Task      string         `json:"task"`
		Reason    string         `json:"reason"`
		CSR       string         `json:"csr,omitempty"`
		PublicKey string         `json:"public_key,omitempty"`
		JKT       string         `json:"jkt,omitempty"`
		User      string         `json:"on_behalf_of,omitempty"`
	}{req.Scope, req.Params, req.TTL, req.Task, req.Reason, req.CSR, req.PublicKey, req.JKT, userID(req.User)})
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
		TTL: int64(d.TTL / time.Second), Task: rec.Request.Task, Audience: d.Scope.Credential.Audience,
		Catalogue: d.Catalogue, Digest: rec.Digest[:], Group: asks.Group, Quorum: asks.Quorum,
		BreakGlass: asks.BreakGlass, Expires: rec.Expires.Unix(), JKT: rec.Request.JKT, User: userID(rec.Request.User),
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
