package httpapi_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	access "github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/brevet-dev/brevet/scopes"
)

// withLists has a scope whose tokens refer to status lists, and one whose tokens do not.
func withLists() testkit.Options {
	return testkit.Options{
		Catalogue: []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: mail.read
    title: Read mail
    authority: read
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://mail.test, status_list: true}
  - name: mail.send
    title: Send mail
    authority: write
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://mail.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)}},
	}
}

// listOf returns the path of a token's status list, and its index there.
func listOf(t *testing.T, claims access.Claims) (path string, index int64) {
	t.Helper()
	if claims.Status == nil || claims.Status.List == nil {
		t.Fatalf("got %+v, want a token that names a list", claims)
	}
	at, err := url.Parse(claims.Status.List.URI)
	if err != nil || !strings.HasPrefix(claims.Status.List.URI, testkit.Audience+"/v1/status-lists/") {
		t.Fatalf("got the list %q, want one at the issuer", claims.Status.List.URI)
	}
	return at.Path, claims.Status.List.Index
}

// statusList reads and verifies a list at a replica with nothing but the issuer's keys.
func statusList(t *testing.T, s *testkit.Stack, path string, now func() time.Time) access.StatusList {
	t.Helper()
	status, header, raw := get(t, s, path)
	if status != 200 || header.Get("Content-Type") != "application/statuslist+jwt" || header.Get("Cache-Control") != "public, max-age=20" {
		t.Fatalf("got %d %v %s", status, header, raw)
	}
	jwks, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := access.Parse(jwks)
	if err != nil {
		t.Fatal(err)
	}
	v, err := access.NewIssuerVerifier(access.Config{Issuer: testkit.Audience, Keys: func() access.KeySet { return keys }, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	list, err := v.StatusList(raw, testkit.Audience+path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A token that has ended is marked in its list on each replica after one second.
func TestEndedTokenIsMarkedInItsStatusList(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	o := withLists()
	o.Now = now
	s := testkit.NewStack(t, o)
	other := s.Replica(t)
	c := s.Client(t, agent)
	kept := token(t, c, client.Ask{Scope: "mail.read", Task: "t-1"})
	ended := token(t, c, client.Ask{Scope: "mail.read", Task: "t-2"})
	path, keptAt := listOf(t, tokenOf(t, s, kept.Secret.Reveal(), "https://mail.test"))
	same, endedAt := listOf(t, tokenOf(t, s, ended.Secret.Reveal(), "https://mail.test"))
	if same != path || keptAt == endedAt {
		t.Fatalf("got %s %d and %s %d, want two places in one list", path, keptAt, same, endedAt)
	}
	wants := func(step string, on *testkit.Stack, want bool) {
		t.Helper()
		list := statusList(t, on, path, now)
		for place, want := range map[int64]bool{keptAt: false, endedAt: want} {
			if got, err := list.Ended(place); err != nil || got != want {
				t.Errorf("%s, place %d: got %v, %v, want %v", step, place, got, err, want)
			}
		}
		if list.TTL != 20*time.Second || list.Expires.Sub(now()) > time.Minute {
			t.Errorf("%s: got %s for %s", step, list.Expires, list.TTL)
		}
	}
	wants("issued", s, false)
	wants("issued, elsewhere", other, false)
	if _, err := c.EndTask(t.Context(), "t-2", client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(time.Second))
	wants("ended", s, true)
	wants("ended, elsewhere", other, true)
	if c := tokenOf(t, s, token(t, c, client.Ask{Scope: "mail.send", Task: "t-1"}).Secret.Reveal(), "https://mail.test"); c.Status != nil {
		t.Errorf("got %+v of a scope without lists", c.Status)
	}
	s.DB.Check(t)
}

func TestStatusListsArePublicAndCacheable(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withLists())
	raw := token(t, s.Client(t, agent), client.Ask{Scope: "mail.read", Task: "t-1"}).Secret.Reveal()
	path, _ := listOf(t, tokenOf(t, s, raw, "https://mail.test"))
	_, header, _ := get(t, s, path)
	signings := s.Signings(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("If-None-Match", header.Get("ETag"))
	resp, err := s.HTTP(t, nil).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 304 || s.Signings(t) != signings {
		t.Errorf("got %d and %d signatures more, want nothing new", resp.StatusCode, s.Signings(t)-signings)
	}
	for at, want := range map[string]int{
		"/v1/status-lists/" + someID: 404, "/v1/status-lists/x": 404, path[:len(path)-36] + strings.ToUpper(path[len(path)-36:]): 404, path + "?time=1686925000": 400,
	} {
		if status, header, text := get(t, s, at); status != want || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s, want %d", at, status, text, want)
		}
	}
	s.DB.Check(t)
}

// A resource server with status lists accepts a token until the list says that it has ended.
func TestResourceServerChecksStatusLists(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withLists())
	c := s.Client(t, agent)
	raw := token(t, c, client.Ask{Scope: "mail.read", Task: "t-1"})
	guard := func() *resourceserver.Guard {
		g, err := resourceserver.New(resourceserver.Config{
			Issuer: testkit.Audience, Audience: "https://mail.test", StatusLists: true,
			HTTPClient: &http.Client{Transport: toStack{s.HTTP(t, nil).Transport, s.Addr}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	call := func(g *resourceserver.Guard) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://mail.test/inbox", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+raw.Secret.Reveal())
		_, err = g.Check(r)
		return err
	}
	if err := call(guard()); err != nil {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Release(t.Context(), raw.ID); err != nil {
		t.Fatal(err)
	}
	// The other replica has not served the list yet.
	s = s.Replica(t)
	if err := call(guard()); !errors.Is(err, resourceserver.ErrInactive) {
		t.Errorf("got %v, want %v", err, resourceserver.ErrInactive)
	}
}

// toStack sends requests for the issuer to a stack.
type toStack struct {
	http.RoundTripper
	addr string
}

func (to toStack) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host, r.Host = to.addr, to.addr
	return to.RoundTripper.RoundTrip(r)
}
