package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/brevettest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// errFalse is what no fault excuses: the broker has said what is not so, or has met what it did not expect.
var errFalse = errors.New("nothing that goes wrong excuses this")

// failure is a call that did not get what it asked for.
type failure struct {
	kind     string
	from, to time.Time
	err      error
	wrong    bool
}

// during tells whether something was wrong during the call, or shortly before.
func (f failure) during(w wrong) bool {
	return f.from.Before(w.until.Add(grace)) && !f.to.Before(w.from)
}

type journal struct {
	mu       sync.Mutex
	failures []failure
}

func (j *journal) add(f failure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failures = append(j.failures, f)
}

func (j *journal) empty() []failure {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.failures
	j.failures = nil
	return all
}

// handed is the ids of what was handed out.
type handed struct {
	mu  sync.Mutex
	ids [][16]byte
}

func (h *handed) add(id [16]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, id)
}

// caller is connections of each kind to both replicas, first to the one that it asks.
type caller struct {
	*soak
	sandbox, bearer, gateway, officer [2]func(context.Context, []byte) (answer, error)
	held                              token
	since                             time.Time
}

// callers are half on one replica and half on the other. Of eight one proves itself with a JWT-SVID, two ask about tokens, one ends
// what it was given, and sees that both replicas know, and the others ask for tokens. Logins are for one caller of each replica.
func (s *soak) callers(t *testing.T) (all, logins []call) {
	t.Helper()
	for i := range soakCallers + len(s.brokers) {
		c, err := s.caller(i)
		if err != nil {
			t.Fatal(err)
		}
		if i >= soakCallers {
			logins = append(logins, s.kept("database login", c.login))
			continue
		}
		kind, do := "issue", c.issueOne
		switch i / 2 % 8 {
		case 0:
			kind, do = "issue with a JWT-SVID", c.issueAsBearer
		case 1, 2:
			kind, do = "introspect", c.introspect
		case 3:
			kind, do = "revoke", c.revoke
		}
		all = append(all, s.kept(kind, do))
	}
	return all, logins
}

func (s *soak) caller(i int) (*caller, error) {
	c := &caller{soak: s}
	agent, err := s.proved(agent(i))
	if err != nil {
		return nil, err
	}
	gateway, err := s.proved(spiffeid.RequireFromString("spiffe://" + domain + "/gateway"))
	if err != nil {
		return nil, err
	}
	officer, err := s.proved(spiffeid.RequireFromString("spiffe://" + domain + "/ops/admin"))
	if err != nil {
		return nil, err
	}
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	for n := range c.sandbox {
		at := s.brokers[(i+n)%2].url
		c.sandbox[n] = asking(agent, http.MethodPost, at+"/v1/tokens", http.Header{})
		c.gateway[n] = asking(gateway, http.MethodPost, at+"/oauth2/introspect", form)
		c.officer[n] = asking(officer, http.MethodPost, at+"/v1/revocations", http.Header{})
		c.bearer[n] = s.bearer(i, at)
	}
	return c, nil
}

// bearer shows a JWT-SVID, of which it gets a new one in time.
func (s *soak) bearer(i int, at string) func(context.Context, []byte) (answer, error) {
	var until time.Time
	header := http.Header{}
	do := asking(s.anonymous(), http.MethodPost, at+"/v1/tokens", header)
	return func(ctx context.Context, body []byte) (answer, error) {
		if now := time.Now(); now.After(until) {
			svid, err := s.issuer.JWTSVID(agent(i), "https://"+domain)
			if err != nil {
				return answer{}, err
			}
			header.Set("Authorization", "Bearer "+svid)
			until = now.Add(time.Minute)
		}
		return do(ctx, body)
	}
}

// kept writes down what does not succeed.
func (s *soak) kept(kind string, ask call) call {
	return func(ctx context.Context) error {
		from := time.Now()
		err := ask(ctx)
		if err != nil {
			s.journal.add(failure{kind, from, time.Now(), err, errors.Is(err, errFalse)})
		}
		return err
	}
}

// wants wants one status. Whoever cannot answer well may say so, with a time to come back at, or not at all; and what Vault has not
// confirmed yet is accepted, and no more.
func wants(ctx context.Context, do func(context.Context, []byte) (answer, error), body []byte, want int) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	got, err := do(ctx, body)
	switch {
	case err != nil:
		return got, err
	case got.status == want:
		return got, nil
	case got.status == http.StatusAccepted, (got.status == http.StatusServiceUnavailable || got.status == http.StatusTooManyRequests) && got.header.Get("Retry-After") != "":
		return got, fmt.Errorf("status %d: %.300s", got.status, got.body)
	}
	return got, fmt.Errorf("%w: status %d: %.300s", errFalse, got.status, got.body)
}

func (c *caller) issue(ctx context.Context, do func(context.Context, []byte) (answer, error), what map[string]any) (token, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return token{}, err
	}
	got, err := wants(ctx, do, body, http.StatusCreated)
	if err != nil {
		return token{}, err
	}
	var is token
	failure := json.Unmarshal(got.body, &is)
	id, err := uuid.Parse(is.ID)
	if err := errors.Join(failure, err); err != nil {
		return token{}, fmt.Errorf("%w: %w: %.300s", errFalse, err, got.body)
	}
	c.handed.add(id)
	return is, nil
}

func (c *caller) issueOne(ctx context.Context) error {
	_, err := c.issue(ctx, c.sandbox[0], read)
	return err
}

func (c *caller) issueAsBearer(ctx context.Context) error {
	_, err := c.issue(ctx, c.bearer[0], read)
	return err
}

// introspect asks about a token that is in force for as long as that is asked.
func (c *caller) introspect(ctx context.Context) error {
	if time.Since(c.since) > 30*time.Second {
		got, err := c.issue(ctx, c.sandbox[0], read)
		if err != nil {
			return err
		}
		c.held, c.since = got, time.Now()
	}
	return c.stands(ctx, 0, c.held, true)
}

// stands asks a replica whether a token is in force.
func (c *caller) stands(ctx context.Context, on int, held token, want bool) error {
	got, err := wants(ctx, c.gateway[on], []byte(url.Values{"token": {held.Token}}.Encode()), http.StatusOK)
	if err != nil {
		return err
	}
	var is struct{ Active bool }
	if err := json.Unmarshal(got.body, &is); err != nil || is.Active != want {
		return fmt.Errorf("%w: token %s: got %.300s, want active %t, %w", errFalse, held.ID, got.body, want, err)
	}
	return nil
}

// revoke has a token ended, which was in force at the other replica and is at none of them then.
func (c *caller) revoke(ctx context.Context) error {
	held, err := c.issue(ctx, c.sandbox[0], read)
	if err != nil {
		return err
	}
	if err := errors.Join(c.stands(ctx, 1, held, true), c.end(ctx, held)); err != nil {
		return err
	}
	return errors.Join(c.stands(ctx, 1, held, false), c.stands(ctx, 0, held, false))
}

func (c *caller) end(ctx context.Context, held token) error {
	body, err := json.Marshal(map[string]any{"id": held.ID, "reason": "soak"})
	if err != nil {
		return err
	}
	_, err = wants(ctx, c.officer[0], body, http.StatusOK)
	return err
}

// login has a sandbox log in at the database, and somebody end that.
func (c *caller) login(ctx context.Context) error {
	held, err := c.issue(ctx, c.sandbox[0], map[string]any{"scope": "bench.database", "task": "soak"})
	if err != nil {
		return err
	}
	return c.end(ctx, held)
}

// each calls again and again until over is closed.
func each(ctx context.Context, every time.Duration, over <-chan struct{}, do call) {
	for {
		_ = do(ctx) // whose failures are kept
		select {
		case <-over:
			return
		case <-time.After(every):
		}
	}
}

// onRecord looks for each credential that was handed out (I1).
func (s *soak) onRecord(t *testing.T) {
	conn := brevettest.Connect(t, s.database())
	if _, err := conn.Exec(t.Context(), `CREATE TEMPORARY TABLE handed (id uuid)`); err != nil {
		t.Fatal(err)
	}
	ids := s.handed.ids
	n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"handed"}, []string{"id"},
		pgx.CopyFromSlice(len(ids), func(i int) ([]any, error) { return []any{ids[i]}, nil }))
	if err != nil || n == 0 {
		t.Fatalf("%d credentials were handed out: %v", n, err)
	}
	var lost int64
	const missing = `SELECT count(*) FROM handed WHERE NOT EXISTS (
		SELECT FROM issuances AS i WHERE i.id = handed.id AND i.decision = 'allow' AND i.status NOT IN ('intent', 'failed', 'unknown'))`
	if err := conn.QueryRow(t.Context(), missing).Scan(&lost); err != nil || lost > 0 {
		t.Errorf("of %d credentials that were handed out, %d are not on record as issued: %v", n, lost, err)
	}
}

// finished waits until what faults interrupted has been brought to its end, which takes a sweeper a minute at most (I2, I13).
func (s *soak) finished(t *testing.T) {
	conn := brevettest.Connect(t, s.database())
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		var left int64
		const open = `SELECT count(*) FROM issuances WHERE status IN ('intent', 'unknown', 'revoking')`
		if err := conn.QueryRow(t.Context(), open).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			return
		}
	}
	brevettest.CheckStates(t, s.database(), 0)
}
