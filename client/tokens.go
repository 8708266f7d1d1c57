package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/secret"
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
}

// Token is a credential and what it is good for.
type Token struct {
	ID     string
	Secret secret.Text
	// Type is how the credential is presented: "Bearer".
	Type      string
	Expires   time.Time
	Scope     string
	Resource  string
	Task      string
	TTL       time.Duration
	Clamped   []openapi.Clamp
	Policies  []string
	Catalogue string
}

// Pending is an ask that waits for a person. State tells when it has ended.
type Pending struct {
	ID         string
	Group      string
	Quorum     int
	Expires    time.Time
	RetryAfter time.Duration
}

// Answer is what became of an ask: exactly one of the two is set.
type Answer struct {
	Token   *Token
	Pending *Pending
}

// Request asks for a credential. A denial is an error that is ErrDenied.
func (c *Client) Request(ctx context.Context, ask Ask) (Answer, error) {
	if ask.TTL < 0 || ask.TTL%time.Second != 0 {
		return Answer{}, fmt.Errorf("%w: a TTL is in whole seconds", ErrInvalid)
	}
	body, err := json.Marshal(openapi.TokenRequest{
		Scope: ask.Scope, Params: ask.Params, TTL: int64(ask.TTL / time.Second), Task: ask.Task, Reason: ask.Reason,
	})
	if err != nil {
		return Answer{}, fmt.Errorf("encoding an ask: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath("/v1/tokens").String(), bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("making a call: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if ask.IdempotencyKey != "" {
		req.Header.Set("Idempotency-Key", ask.IdempotencyKey)
	}
	got, err := c.do(req)
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
	if t.Token == "" || t.ID == "" {
		return Answer{}, fmt.Errorf("%w: no token in it", ErrAnswer)
	}
	return Answer{Token: &Token{
		ID: t.ID, Secret: secret.New(t.Token), Type: t.TokenType, Expires: t.ExpiresAt, Scope: t.Scope,
		Resource: t.Resource, Task: t.Task, TTL: time.Duration(t.TTL) * time.Second, Clamped: t.Clamped,
		Policies: t.Policies, Catalogue: t.Catalogue,
	}}, nil
}

func pendingAnswer(got reply) (Answer, error) {
	var p openapi.Pending
	if err := got.decode(&p); err != nil {
		return Answer{}, err
	}
	if p.ID == "" {
		return Answer{}, fmt.Errorf("%w: no id in it", ErrAnswer)
	}
	return Answer{Pending: &Pending{
		ID: p.ID, Group: p.Approval.Group, Quorum: p.Approval.Quorum, Expires: p.ExpiresAt, RetryAfter: got.retryAfter(),
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
