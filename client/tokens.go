package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// Ask is what a sandbox wants for one action.
type Ask struct {
	Scope  string
	Params map[string]any
	// TTL is how long the credential should live, in whole seconds; zero asks for the scope's default.
	TTL  time.Duration
	Task string
	// Reason is why, in your own words, in at most 1000 bytes.
	Reason string
	// IdempotencyKey makes a repeated ask answer once.
	IdempotencyKey string
	// CSR is a certificate signing request in PEM and PublicKey a public key as OpenSSH writes it, for scopes that
	// certify the caller's own key.
	CSR, PublicKey string
	// Signer binds a JWT to its key (RFC 9449): whoever presents the token has to prove that key. Nil binds to no such key,
	// and scopes that demand one deny the ask. To Redeem takes the same one.
	Signer *dpop.Signer
	// OnBehalfOf gives an ID token of the person on whose behalf you ask, for an audience that the operator has named for
	// that; nil asks on nobody's. It is asked whenever a request is sent.
	OnBehalfOf PersonSource
}

// Token is a credential and what it is good for.
type Token struct {
	ID string
	// Kind is jwt, vault-token, database, pki, ssh, kv or vault.
	Kind string
	// Secret is the token of a JWT; for every other kind a JSON object, whose members Field gives one by one.
	Secret secret.Text
	// Type is how a JWT is presented: "Bearer", or "DPoP" with a proof by the Signer that it was asked for with.
	Type string
	// Name is what the far side knows it by, such as the database user or the serial number.
	Name string
	// Static tells that it does not end at Expires: only its owner can change it.
	Static    bool
	fields    map[string]secret.Text
	Expires   time.Time
	Scope     string
	Resource  string
	Task      string
	TTL       time.Duration
	Clamped   []openapi.Clamp
	Policies  []string
	Catalogue string
	// BreakGlass tells that people have approved it in place of the group that was asked.
	BreakGlass bool
	// OnBehalfOf is the id of the person on whose behalf it was asked; empty for nobody.
	OnBehalfOf string
}

// Pending is an ask that waits for people. Wait tells when they have decided, and Redeem gets the credential then.
type Pending struct {
	ID         string
	Group      string
	Quorum     int
	BreakGlass string // the group of which two can agree in their place; empty when nobody can
	Expires    time.Time
	RetryAfter time.Duration
}

// Answer is what became of an ask: exactly one of the two is set.
type Answer struct {
	Token   *Token
	Pending *Pending
}

// Scopes lists what the caller may ask for. An ask for one of them may still be denied, for its parameters or TTL.
func (c *Client) Scopes(ctx context.Context) (openapi.ScopeList, error) {
	var list openapi.ScopeList
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/scopes", nil)
	if err != nil {
		return list, fmt.Errorf("making a call: %w", err)
	}
	return list, c.read(req, &list)
}

// Request asks for a credential. A denial is an error that is ErrDenied.
func (c *Client) Request(ctx context.Context, ask Ask) (Answer, error) {
	if ask.TTL < 0 || ask.TTL%time.Second != 0 {
		return Answer{}, fmt.Errorf("%w: a TTL is in whole seconds", ErrInvalid)
	}
	wanted := openapi.TokenRequest{
		Scope: ask.Scope, Params: ask.Params, TTL: int64(ask.TTL / time.Second), Task: ask.Task, Reason: ask.Reason,
		Csr: ask.CSR, PublicKey: ask.PublicKey,
	}
	if ask.OnBehalfOf != nil {
		var err error
		if wanted.OnBehalfOf, err = ask.OnBehalfOf.IDToken(ctx); err != nil {
			return Answer{}, fmt.Errorf("fetching an ID token: %w", err)
		}
	}
	req, err := c.post(ctx, "/v1/tokens", wanted)
	if err != nil {
		return Answer{}, err
	}
	if ask.IdempotencyKey != "" {
		req.Header.Set("Idempotency-Key", ask.IdempotencyKey)
	}
	return c.answer(req, ask.Signer)
}

// answer sends a call whose answer may hold a credential.
func (c *Client) answer(req *http.Request, signer *dpop.Signer) (Answer, error) {
	got, err := c.prove(req, signer)
	if err != nil {
		return Answer{}, err
	}
	switch got.status {
	case http.StatusCreated:
		return tokenAnswer(got)
	case http.StatusAccepted:
		return pendingAnswer(got)
	default:
		return Answer{}, fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
}

func tokenAnswer(got reply) (Answer, error) {
	var t openapi.Token
	if err := got.decode(&t); err != nil {
		return Answer{}, err
	}
	token := &Token{
		ID: t.ID, Kind: t.Kind, Secret: secret.New(t.Token), Type: t.TokenType, Name: t.Name, Static: t.Static,
		Expires: t.ExpiresAt, Scope: t.Scope, Resource: t.Resource, Task: t.Task, TTL: time.Duration(t.TTL) * time.Second,
		Clamped: t.Clamped, Policies: t.Policies, Catalogue: t.Catalogue, BreakGlass: t.BreakGlass,
		OnBehalfOf: t.OnBehalfOf,
	}
	if t.Token == "" {
		token.Secret, token.fields = secret.New(string(t.Credential)), fieldsOf(t.Credential)
	}
	if t.ID == "" || t.Kind == "" || (t.Token == "") == (len(token.fields) == 0) {
		return Answer{}, fmt.Errorf("%w: no credential in it", ErrAnswer)
	}
	return Answer{Token: token}, nil
}

// fieldsOf takes a credential apart. What is no object has no fields.
func fieldsOf(credential json.RawMessage) map[string]secret.Text {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(credential, &members); err != nil {
		return nil
	}
	fields := make(map[string]secret.Text, len(members))
	for name, value := range members {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			text = string(value) // a number, a list or an object stays the JSON that it is
		}
		fields[name] = secret.New(text)
	}
	return fields
}

// Field is one member of a credential that is not a JWT, such as "password": the text of a string, the JSON of
// anything else, and nothing when there is no such member.
func (t *Token) Field(name string) secret.Text { return t.fields[name] }

// Fields lists the names of the members, sorted. They are no secrets.
func (t *Token) Fields() []string { return slices.Sorted(maps.Keys(t.fields)) }

func pendingAnswer(got reply) (Answer, error) {
	var p openapi.Pending
	if err := got.decode(&p); err != nil {
		return Answer{}, err
	}
	if p.ID == "" {
		return Answer{}, fmt.Errorf("%w: no id in it", ErrAnswer)
	}
	return Answer{Pending: &Pending{
		ID: p.ID, Group: p.Approval.Group, Quorum: p.Approval.Quorum, BreakGlass: p.Approval.BreakGlass, Expires: p.ExpiresAt,
		RetryAfter: got.retryAfter(),
	}}, nil
}

// State reads where one of the caller's own requests stands.
func (c *Client) State(ctx context.Context, id string) (openapi.RequestState, error) {
	var state openapi.RequestState
	err := c.get(ctx, "/v1/requests/", id, &state)
	return state, err
}

func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
