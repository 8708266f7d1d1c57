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

// Ask is a sandbox's request for the credential of one action.
type Ask struct {
	Scope  string
	Params map[string]any
	// TTL is the requested lifetime of the credential, in whole seconds. Zero requests the scope's default.
	TTL  time.Duration
	Task string
	// Reason is why the credential is needed, in the caller's own words, in at most 1000 bytes.
	Reason string
	// IdempotencyKey prevents a repeated request from getting a second credential. A repeat after delivery fails with
	// ErrConflict.
	IdempotencyKey string
	// CSR is a certificate signing request in PEM, and PublicKey is a public key in OpenSSH format. They are for scopes that
	// certify the caller's own key.
	CSR, PublicKey string
	// Signer binds a JWT to its key (RFC 9449): to present the token, a client must prove possession of that key. If Signer is
	// nil, the token is not bound to such a key, and scopes that require one deny the request. Redeem must get the same Signer.
	Signer *dpop.Signer
	// OnBehalfOf returns an ID token of the person on whose behalf the credential is requested. Its audience must be one that
	// the operator configured for this. Nil means no such person. It is called whenever a request is sent.
	OnBehalfOf PersonSource
}

// Token is a credential with its metadata.
type Token struct {
	ID string
	// Kind is jwt, vault-token, database, pki, ssh, kv or vault.
	Kind string
	// Secret is the token of a JWT. For every other kind it is a JSON object; Field returns its members.
	Secret secret.Text
	// Type is how to present a JWT: "Bearer", or "DPoP" with a proof by the Signer of the Ask.
	Type string
	// Name is how the target system knows the credential, such as the database user or the serial number.
	Name string
	// Static reports that the credential does not end at Expires. Only the secret's owner can change it.
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
	// BreakGlass reports that people approved the request by break-glass, in place of the group that it asked.
	BreakGlass bool
	// OnBehalfOf is the ID of the person on whose behalf the credential was requested, or empty if there is none.
	OnBehalfOf string
}

// Pending is a request that waits for approval. Wait returns when people have decided, and Redeem then gets the credential.
type Pending struct {
	ID         string
	Group      string
	Quorum     int
	BreakGlass string // the group of which two members can approve instead; empty if there is none
	Expires    time.Time
	RetryAfter time.Duration
}

// Answer is the result of an ask. Exactly one of the two fields is set.
type Answer struct {
	Token   *Token
	Pending *Pending
}

// Scopes lists the scopes that the caller may request. A request for one of them may still be denied because of its parameters
// or TTL.
func (c *Client) Scopes(ctx context.Context) (openapi.ScopeList, error) {
	var list openapi.ScopeList
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/scopes", nil)
	if err != nil {
		return list, fmt.Errorf("making a call: %w", err)
	}
	return list, c.read(req, &list)
}

// Request requests a credential. If policy denies it, the error matches ErrDenied.
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

// answer sends a call whose response may hold a credential.
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

// fieldsOf returns the members of a credential, or nil if it is not a JSON object.
func fieldsOf(credential json.RawMessage) map[string]secret.Text {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(credential, &members); err != nil {
		return nil
	}
	fields := make(map[string]secret.Text, len(members))
	for name, value := range members {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			text = string(value) // a number, a list or an object stays JSON
		}
		fields[name] = secret.New(text)
	}
	return fields
}

// Field returns one member of a credential that is not a JWT, such as "password". A string is returned as its text, and any
// other value as JSON. If there is no such member, the result is empty.
func (t *Token) Field(name string) secret.Text { return t.fields[name] }

// Fields returns the names of the members, sorted. The names are not secret.
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

// State reads the state of one of the caller's own requests.
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
