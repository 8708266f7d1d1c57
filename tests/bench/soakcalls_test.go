package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// errFalse marks errors that no fault excuses: the broker gave a false response, or one that is not expected from it.
var errFalse = errors.New("nothing that goes wrong excuses this")

// unanswered is a call that a replica did not serve. On is the replica, counted from 0.
type unanswered struct {
	op  string
	on  int
	err error
}

func (u *unanswered) Error() string { return fmt.Sprintf("%s at replica %d: %v", u.op, u.on+1, u.err) }
func (u *unanswered) Unwrap() error { return u.err }

// failure is a call that did not succeed.
type failure struct {
	from, to time.Time
	err      error
}

// excused reports whether a fault during the call, or shortly before, can make this replica fail such a call.
func (f failure) excused(by wrong) bool {
	var u *unanswered
	if errors.Is(f.err, errFalse) || !errors.As(f.err, &u) {
		return false
	}
	return f.from.Before(by.until.Add(grace)) && !f.to.Before(by.from) && by.excuses(u.op, u.on)
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

// handed holds the ids of issued credentials.
type handed struct {
	mu  sync.Mutex
	ids [][16]byte
}

func (h *handed) add(id [16]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, id)
}

// line is a connection to one replica, for one kind of call.
type line struct {
	op string
	on int
	do func(context.Context, []byte) (answer, error)
}

// These are the kinds of calls.
const (
	opIssue      = "issue"
	opIntrospect = "introspect"
	opRevoke     = "revoke"
	opLogin      = "log in"
	opLogout     = "log out"
)

// caller has connections to both replicas. The first of each pair is the replica that it mainly calls.
type caller struct {
	*soak
	sandbox, bearer, gateway, officer [2]line
	held                              token
	since                             time.Time
}

// callers returns soakCallers callers, half on each replica. Of eight, one authenticates with a JWT-SVID, two introspect
// tokens, one revokes its own tokens and checks that both replicas know, and the others request tokens. In addition, one
// caller of each replica requests logins.
func (s *soak) callers(t *testing.T) (all, logins []call) {
	t.Helper()
	for i := range soakCallers + len(s.brokers) {
		c, err := s.caller(i)
		if err != nil {
			t.Fatal(err)
		}
		if i >= soakCallers {
			logins = append(logins, s.kept(c.login))
			continue
		}
		do := c.issueOne
		switch i / 2 % 8 {
		case 0:
			do = c.issueAsBearer
		case 1, 2:
			do = c.introspect
		case 3:
			do = c.revoke
		}
		all = append(all, s.kept(do))
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
		on := (i + n) % 2
		at := s.brokers[on].url
		c.sandbox[n] = line{opIssue, on, asking(agent, http.MethodPost, at+"/v1/tokens", http.Header{})}
		c.bearer[n] = line{opIssue, on, s.bearer(i, at)}
		c.gateway[n] = line{opIntrospect, on, asking(gateway, http.MethodPost, at+"/oauth2/introspect", form)}
		c.officer[n] = line{opRevoke, on, asking(officer, http.MethodPost, at+"/v1/revocations", http.Header{})}
	}
	return c, nil
}

// bearer sends a JWT-SVID, which it renews before it expires.
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

// kept records failures in the journal. After a failure it waits a moment, as an agent would.
func (s *soak) kept(ask call) call {
	return func(ctx context.Context) error {
		from := time.Now()
		err := ask(ctx)
		if err != nil {
			s.journal.add(failure{from, time.Now(), err})
			<-time.After(50 * time.Millisecond)
		}
		return err
	}
}

// wants expects one status. A replica that cannot serve the call may say so with Retry-After, or not respond at all. The
// revocation of a login may also be accepted (202) before Vault has confirmed it.
func (l line) wants(ctx context.Context, body []byte, want int) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	got, err := l.do(ctx, body)
	later := got.status == http.StatusServiceUnavailable || got.status == http.StatusTooManyRequests
	switch {
	case err != nil:
	case got.status == want:
		return got, nil
	case later && got.header.Get("Retry-After") != "", l.op == opLogout && got.status == http.StatusAccepted:
		err = fmt.Errorf("status %d: %.300s", got.status, got.body)
	default:
		err = fmt.Errorf("%w: status %d: %.300s", errFalse, got.status, got.body)
	}
	return got, &unanswered{l.op, l.on, err}
}

// issue requests a credential and records its id.
func (c *caller) issue(ctx context.Context, l line, what map[string]any) (token, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return token{}, err
	}
	got, err := l.wants(ctx, body, http.StatusCreated)
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

// introspect introspects a token that stays in force. It requests a new token every 30 seconds.
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

// stands introspects a token at a replica and checks whether it is in force.
func (c *caller) stands(ctx context.Context, on int, held token, want bool) error {
	got, err := c.gateway[on].wants(ctx, []byte(url.Values{"token": {held.Token}}.Encode()), http.StatusOK)
	if err != nil {
		return err
	}
	var is struct{ Active bool }
	if err := json.Unmarshal(got.body, &is); err != nil || is.Active != want {
		return fmt.Errorf("%w: token %s: got %.300s, want active %t, %w", errFalse, held.ID, got.body, want, err)
	}
	return nil
}

// revoke revokes a token that is in force at the other replica, and checks that it is then in force at neither. It also
// checks a token that was revoked before: a replica that restarts must not have it cached as active (I6).
func (c *caller) revoke(ctx context.Context) error {
	if before, found := c.ended.any(); found {
		if err := errors.Join(c.stands(ctx, 0, before, false), c.stands(ctx, 1, before, false)); err != nil {
			return err
		}
	}
	held, err := c.issue(ctx, c.sandbox[0], read)
	if err != nil {
		return err
	}
	if err := c.stands(ctx, 1, held, true); err != nil {
		return err
	}
	if err := c.end(ctx, c.officer[0], held); err != nil {
		return err
	}
	c.ended.add(held)
	return errors.Join(c.stands(ctx, 1, held, false), c.stands(ctx, 0, held, false))
}

func (c *caller) end(ctx context.Context, by line, held token) error {
	body, err := json.Marshal(map[string]any{"id": held.ID, "reason": "soak"})
	if err != nil {
		return err
	}
	_, err = by.wants(ctx, body, http.StatusOK)
	return err
}

// login requests a database login for a sandbox and revokes it.
func (c *caller) login(ctx context.Context) error {
	in, out := c.sandbox[0], c.officer[0]
	in.op, out.op = opLogin, opLogout
	held, err := c.issue(ctx, in, map[string]any{"scope": "bench.database", "task": "soak"})
	if err != nil {
		return err
	}
	return c.end(ctx, out, held)
}

// ended holds the last revoked tokens. Only tokens that would not have expired yet are checked again.
type ended struct {
	mu     sync.Mutex
	tokens [256]token
	since  [256]time.Time
	next   int
}

func (e *ended) add(t token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tokens[e.next%len(e.tokens)], e.since[e.next%len(e.since)] = t, time.Now()
	e.next++
}

func (e *ended) any() (token, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := rand.IntN(len(e.tokens))
	return e.tokens[i], time.Since(e.since[i]) < 50*time.Second
}

// each calls do repeatedly until over is closed.
func each(ctx context.Context, every time.Duration, over <-chan struct{}, do call) {
	for {
		_ = do(ctx) // do records its failures
		select {
		case <-over:
			return
		case <-time.After(every):
		}
	}
}

// onRecord checks that each issued credential is on record (I1).
func (s *soak) onRecord(t *testing.T) {
	conn := testkit.Connect(t, s.database())
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
		SELECT FROM issuances AS i WHERE i.id = handed.id AND i.decision = 'allow' AND i.status NOT IN ('intent', 'failed', 'unknown', 'compensated'))`
	if err := conn.QueryRow(t.Context(), missing).Scan(&lost); err != nil || lost > 0 {
		t.Errorf("of %d credentials that were handed out, %d are not on record as issued: %v", n, lost, err)
	}
}

// finished waits until all interrupted requests reach a final state, which takes a sweeper a minute at most, and until the
// database has no login that is not on record (I2, I13).
func (s *soak) finished(t *testing.T) {
	conn := testkit.Connect(t, s.database())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		var open, unknown int64
		const left = `SELECT (SELECT count(*) FROM issuances WHERE status IN ('intent', 'unknown', 'revoking')),
			(SELECT count(*) FROM pg_roles WHERE rolcanlogin AND rolname LIKE 'v-%' AND rolvaliduntil > now() AND NOT EXISTS (
				SELECT FROM issuances AS i WHERE i.credential_name = rolname AND i.status IN ('issued', 'revoking')))`
		if err := conn.QueryRow(t.Context(), left).Scan(&open, &unknown); err != nil {
			t.Fatal(err)
		}
		if open == 0 && unknown == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("after a minute %d logins are alive that are not on record", unknown)
			testkit.CheckStates(t, s.database(), 0)
			return
		}
	}
}
