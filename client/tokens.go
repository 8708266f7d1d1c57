package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
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
	// IdempotencyKey names the request: a repeat with the same key never gets a second credential, and fails with ErrConflict after
	// the first one was delivered. Without a key, a repeat is the same request only while that is open.
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
	// Kind is jwt, vault-token, database, pki, ssh, kv, vault, github or none.
	Kind string
	// Secret is the token of a JWT. For every other kind it is a JSON object; Field returns its members. It is empty for KindNone.
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
	// Exchange is what another system gives for the token. As is empty if the scope does not say so.
	Exchange openapi.Exchange
}

// KindNone is the kind of a Token without a credential. It is a permit: with it, an egress gateway opens the hosts of the scope.
const KindNone = "none"

// Pending is a request that waits for approval. Wait returns when people have decided. Redeem then gets the credential, and so does an
// equal Ask.
type Pending struct {
	ID         string
	Group      string
	Quorum     int
	BreakGlass string // the group of which two members can approve instead; empty if there is none
	Expires    time.Time
	URL        string // the page of the request in the console, for approvers; empty if there is no console
	// Earlier reports that the request was made earlier, perhaps by another process of the sandbox.
	Earlier    bool
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
	return fetch[openapi.ScopeList](ctx, c, call{path: "/v1/scopes"})
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
	req, err := c.request(ctx, call{method: http.MethodPost, path: "/v1/tokens", body: wanted})
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
		var t openapi.Token
		if err := got.decode(&t); err != nil {
			return Answer{}, err
		}
		token := &Token{
			ID: t.ID, Kind: t.Kind, Secret: secret.New(t.Token), Type: t.TokenType, Name: t.Name, Static: t.Static,
			Expires: t.ExpiresAt, Scope: t.Scope, Resource: t.Resource, Task: t.Task, TTL: time.Duration(t.TTL) * time.Second,
			Clamped: t.Clamped, Policies: t.Policies, Catalogue: t.Catalogue, BreakGlass: t.BreakGlass,
			OnBehalfOf: t.OnBehalfOf, Exchange: t.Exchange,
		}
		if t.Token == "" && len(t.Credential) > 0 {
			token.Secret, token.fields = secret.New(string(t.Credential)), map[string]secret.Text{}
			var members map[string]json.RawMessage
			_ = json.Unmarshal(t.Credential, &members) // what is not an object has no members
			for name, value := range members {
				var text string
				if err := json.Unmarshal(value, &text); err != nil {
					text = string(value) // a number, a list or an object stays JSON
				}
				token.fields[name] = secret.New(text)
			}
		}
		held := t.Token != "" || t.Credential != nil
		if t.ID == "" || t.Kind == "" || held == (t.Kind == KindNone) || held && (t.Token == "") == (len(token.fields) == 0) {
			return Answer{}, fmt.Errorf("%w: no credential in it", ErrAnswer)
		}
		return Answer{Token: token}, nil

	case http.StatusAccepted:
		var p openapi.Pending
		if err := got.decode(&p); err != nil {
			return Answer{}, err
		}
		if p.ID == "" {
			return Answer{}, fmt.Errorf("%w: no id in it", ErrAnswer)
		}
		return Answer{Pending: &Pending{
			ID: p.ID, Group: p.Approval.Group, Quorum: p.Approval.Quorum, BreakGlass: p.Approval.BreakGlass, Expires: p.ExpiresAt,
			URL: p.Approval.URL, Earlier: p.Earlier, RetryAfter: retryAfter(got.header),
		}}, nil

	default:
		return Answer{}, fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
}

// Field returns one member of a credential that is not a JWT, such as "password". A string is returned as its text, and any
// other value as JSON. If there is no such member, the result is empty.
func (t *Token) Field(name string) secret.Text { return t.fields[name] }

// Fields returns the names of the members, sorted. The names are not secret.
func (t *Token) Fields() []string { return slices.Sorted(maps.Keys(t.fields)) }

// State reads the state of one of the caller's own requests.
func (c *Client) State(ctx context.Context, id string) (openapi.RequestState, error) {
	return fetch[openapi.RequestState](ctx, c, call{path: "/v1/requests/%s", name: id})
}

// MaxInForce is how many ids one call of InForce can have.
const MaxInForce = 1000

// InForce returns those of the ids whose credentials are in force. It leaves out those of other callers.
func (c *Client) InForce(ctx context.Context, ids []string) ([]string, error) {
	alive, err := fetch[openapi.InForce](ctx, c, call{method: http.MethodPost, path: "/v1/in-force", body: openapi.InForceRequest{Ids: ids}})
	return alive.Ids, err
}

// Wait returns the state of one of the caller's own requests once it is no longer pending. If ctx ends first, it returns the
// last state with an error. It calls the server as often as it needs to.
func (c *Client) Wait(ctx context.Context, id string) (openapi.RequestState, error) {
	query := url.Values{"wait": {strconv.Itoa(int(longestWait/time.Second)) + "s"}}
	for {
		began := time.Now() //nolint:forbidigo // for a pause, not for a decision
		state, err := fetch[openapi.RequestState](ctx, c, call{path: "/v1/requests/%s", name: id, query: query})
		if err != nil || state.Status != openapi.StatusPending {
			return state, err
		}
		// An overloaded server responds at once instead of waiting.
		if pause := time.Second - time.Since(began); pause > 0 && !wait.For(ctx, pause) {
			return state, fmt.Errorf("waiting for people: %w", ctx.Err())
		}
	}
}

// Redeem gets the credential of an approved request. ask is the ask that the request was made with; only its keys are sent
// again. The answer is pending while the request still waits for approval. If a person rejected it, the error is ErrDenied.
func (c *Client) Redeem(ctx context.Context, id string, ask Ask) (Answer, error) {
	body := openapi.Redemption{Csr: ask.CSR, PublicKey: ask.PublicKey}
	req, err := c.request(ctx, call{method: http.MethodPost, path: "/v1/requests/%s/token", name: id, body: body})
	if err != nil {
		return Answer{}, err
	}
	return c.answer(req, ask.Signer)
}

// Withdraw withdraws one of the caller's own requests. It is idempotent.
func (c *Client) Withdraw(ctx context.Context, id string) error {
	req, err := c.request(ctx, call{method: http.MethodDelete, path: "/v1/requests/%s", name: id})
	if err != nil {
		return err
	}
	_, err = c.do(req)
	return err
}

// Release ends one of the caller's own credentials. It is idempotent.
func (c *Client) Release(ctx context.Context, id string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/issuances/%s/release", id, nil)
}

// TaskEnd holds the options of EndTask. The zero value ends one of the caller's own tasks now.
type TaskEnd struct {
	// SPIFFEID is the sandbox that the task belongs to, for orchestrators and admins.
	SPIFFEID string
	// At is when the task ends. Zero means now.
	At time.Time
	// Reason is why the task ends, in at most 1000 bytes.
	Reason string
}

// EndTask ends a task and every credential that was issued for it. It is idempotent.
func (c *Client) EndTask(ctx context.Context, task string, end TaskEnd) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/tasks/%s/end", task, openapi.TaskEndRequest{SpiffeID: end.SPIFFEID, At: end.At, Reason: end.Reason})
}

const (
	// longestWait is how long one call waits for a decision. It is shorter than the timeout of a call.
	longestWait = 20 * time.Second
	// givingUp bounds the call that withdraws a request.
	givingUp = 5 * time.Second
	// firstPause and longestPause bound the pauses between retries. The server can ask for a longer pause.
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Obtain requests a credential. If people must approve the request, Obtain calls waiting, which may be nil, and waits for their
// decision. If the credential of an equal request goes to another process of the sandbox meanwhile, Obtain requests it again. If ctx
// ends during the wait, Obtain withdraws the request, unless it was made earlier. If the scope has no credential, Obtain releases the
// permit, and the error is ErrNoCredential.
func (c *Client) Obtain(ctx context.Context, ask Ask, waiting func(Pending)) (*Token, error) {
	return c.obtain(ctx, ctx, ask, waiting)
}

// maxOvertaken limits how often Obtain requests a credential again. Each time, people have to approve it again.
const maxOvertaken = 8

// obtain makes its calls under ctx, and waits for approval only while patience lasts. A request that was sent should not be
// cancelled with patience, since the server may have answered it.
func (c *Client) obtain(ctx, patience context.Context, ask Ask, waiting func(Pending)) (*Token, error) {
	for range maxOvertaken {
		answer, err := c.Request(ctx, ask)
		if err != nil {
			return nil, err
		}
		if answer.Token != nil {
			return c.credentialIn(ctx, answer.Token)
		}
		pending := answer.Pending
		if waiting != nil {
			waiting(*pending)
		}
		state, err := c.Await(patience, pending)
		if err != nil {
			return nil, err
		}
		if answer, err = c.Redeem(ctx, pending.ID, ask); err == nil && answer.Token != nil {
			return c.credentialIn(ctx, answer.Token)
		}
		if err == nil {
			return nil, fmt.Errorf("%w: and people have not agreed", ErrDecided)
		}
		// Another process has redeemed the request, or has withdrawn one that it made before this process asked.
		overtaken := state.Status == openapi.StatusApproved || state.Status == openapi.StatusRedeemed ||
			state.Status == openapi.StatusWithdrawn && pending.Earlier
		if ask.IdempotencyKey != "" || !overtaken || !errors.Is(err, ErrDecided) && !errors.Is(err, ErrStale) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: each time by another process of this sandbox", ErrDecided)
}

// Await waits until people have decided, also through transient errors. If it fails, it withdraws the request, which nobody waits for
// any longer, unless the request was made earlier: then others may wait for it too. The error is an *AbandonedError.
func (c *Client) Await(ctx context.Context, pending *Pending) (openapi.RequestState, error) {
	// The server ends the wait when the request expires. This deadline applies if it does not.
	until, cancel := context.WithDeadline(ctx, pending.Expires.Add(longestWait))
	defer cancel()
	var state openapi.RequestState
	var err error
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if state, err = c.Wait(until, pending.ID); err == nil {
			return state, nil
		}
		if !passes(err) {
			break
		}
		if !wait.For(until, max(pause, wanted(err))) {
			err = fmt.Errorf("waiting for people: %w", until.Err())
			break
		}
	}
	abandoned := &AbandonedError{Pending: *pending, Err: err, Kept: errEarlier}
	if !pending.Earlier {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingUp)
		defer cancel()
		abandoned.Kept = c.Withdraw(ctx, pending.ID)
	}
	return state, abandoned
}

// credentialIn returns a token that holds a credential, and releases any other.
func (c *Client) credentialIn(ctx context.Context, token *Token) (*Token, error) {
	if token.Kind != KindNone {
		return token, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingUp)
	defer cancel()
	_, _ = c.Release(ctx, token.ID) // on failure it expires
	return nil, ErrNoCredential
}

// passes reports whether a later retry can succeed. It is true for a call that got no response, and false if the server refused
// the request for good.
func passes(err error) bool {
	if _, ok := errors.AsType[*Problem](err); ok {
		return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRateLimited) || errors.Is(err, ErrInternal) ||
			errors.Is(err, ErrVaultRefused) || errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrRevoked)
	}
	return !errors.Is(err, ErrInvalid)
}

// wanted returns how long the server asks the client to wait, or zero if it did not say.
func wanted(err error) time.Duration {
	if problem, ok := errors.AsType[*Problem](err); ok {
		return problem.RetryAfter
	}
	return 0
}
