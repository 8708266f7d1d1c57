package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// following follows the records for as long as the test runs.
type following struct {
	events chan openapi.Issuance
	ended  chan error
}

func follow(t *testing.T, watch *client.IssuanceWatch) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f := &following{events: make(chan openapi.Issuance, 1000), ended: make(chan error, 1)}
	go func() {
		f.ended <- watch.Follow(ctx, func(one openapi.Issuance) error {
			f.events <- one
			return nil
		})
	}()
	return f
}

// wants waits for a record in a state. Earlier events may be repeated.
func (f *following) wants(t *testing.T, id string, status openapi.Status) {
	t.Helper()
	end := time.After(patience)
	for {
		select {
		case one := <-f.events:
			if one.ID == id && one.Status == status {
				return
			}
		case err := <-f.ended:
			t.Fatalf("the stream has ended: %v", err)
		case <-end:
			t.Fatalf("waited %s for %s to be told as %s", patience, id, status)
		}
	}
}

// seen waits until the stream has begun: it creates records until the stream sends one.
func (f *following) seen(t *testing.T, make func() string) {
	t.Helper()
	eventually(t, func() error {
		id := make()
		select {
		case one := <-f.events:
			if one.SpiffeID == "" {
				return errors.New(id)
			}
			return nil
		case <-time.After(time.Second):
			return errors.New("nothing is told yet")
		}
	})
}

// A follower receives the matching records within its reach, when they begin and when they change, and no others.
func TestFollowing(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: staffed.Catalogue, Auditors: []string{auditor}, Admins: []string{admin}})
	one := func(who string) string { return token(t, s.Client(t, who), read).ID }
	eyes, mine := follow(t, s.Client(t, auditor).WatchIssuances(client.Filter{})), follow(t, s.Client(t, agent).WatchIssuances(client.Filter{}))
	some := follow(t, s.Client(t, auditor).WatchIssuances(client.Filter{SPIFFEID: twin, Params: map[string]string{"repo": "acme/api"}}))
	eyes.seen(t, func() string { return one(agent) })
	mine.seen(t, func() string { return one(agent) })
	some.seen(t, func() string { return one(twin) })
	first, second := one(agent), one(twin)
	eyes.wants(t, first, openapi.StatusIssued)
	eyes.wants(t, second, openapi.StatusIssued)
	mine.wants(t, first, openapi.StatusIssued)
	some.wants(t, second, openapi.StatusIssued)
	if _, err := s.Client(t, admin).Revoke(t.Context(), client.Selection{TrustDomain: "acme.test"}, "test"); err != nil {
		t.Fatal(err)
	}
	for f, id := range map[*following]string{mine: first, some: second} {
		f.wants(t, id, openapi.StatusRevoked)
		for len(f.events) > 0 {
			if e := <-f.events; (e.SpiffeID == twin) != (f == some) || (e.Index == nil) != (f == mine) {
				t.Errorf("got %+v", e)
			}
		}
	}
	eyes.wants(t, second, openapi.StatusRevoked)
}

// A client that reconnects misses nothing, and an id continues only the stream that it came from.
func TestFollowResumesAfterReconnect(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: staffed.Catalogue, Auditors: []string{auditor}})
	watch := s.Client(t, auditor).WatchIssuances(client.Filter{Scope: read.Scope})
	enough := errors.New("enough")
	ended := make(chan error, 1)
	go func() { ended <- watch.Follow(t.Context(), func(openapi.Issuance) error { return enough }) }()
	eventually(t, func() error {
		token(t, s.Client(t, agent), read)
		select {
		case err := <-ended:
			if !errors.Is(err, enough) {
				t.Fatalf("got %v, want the caller's own error", err)
			}
			return nil
		case <-time.After(time.Second):
			return errors.New("nothing is told yet")
		}
	})
	missed := token(t, s.Client(t, twin), read).ID
	follow(t, watch).wants(t, missed, openapi.StatusIssued)

	for name, last := range map[string]string{"forged": "AAAA", "foreign": flip(watchID(t, s))} {
		if got := tail(t, s, auditor, "", last); got.StatusCode != 400 {
			t.Errorf("%s id: got %d, want 400", name, got.StatusCode)
		}
	}
	if got := tail(t, s, agent, "", watchID(t, s)); got.StatusCode != 400 {
		t.Errorf("another's id: got %d, want 400", got.StatusCode)
	}
	for query, want := range map[string]int{"?limit=1": 400, "?q=%00": 400, "?cursor=AAAA": 400, "?params.x=1&q=words": 200} {
		if got := tail(t, s, twin, query, ""); got.StatusCode != want {
			t.Errorf("%s: got %d, want %d", query, got.StatusCode, want)
		}
	}
}

func TestFollowStreamsAreLimitedPerCaller(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: staffed.Catalogue, Auditors: []string{auditor}})
	for range 4 {
		if got := tail(t, s, agent, "", ""); got.StatusCode != 200 {
			t.Fatalf("got %d", got.StatusCode)
		}
	}
	if got := tail(t, s, agent, "", ""); got.StatusCode != 429 {
		t.Errorf("a fifth: got %d, want 429", got.StatusCode)
	}
	if got := tail(t, s, twin, "", ""); got.StatusCode != 200 {
		t.Errorf("somebody else: got %d", got.StatusCode)
	}
}

// tail opens a stream without reading it.
func tail(t *testing.T, s *testkit.Stack, who, query, last string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/issuances/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	carrier := s.HTTP(t, s.X509(t, who))
	carrier.Timeout = 0
	resp, err := carrier.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// watchID returns the first id that the auditor's stream sends.
func watchID(t *testing.T, s *testkit.Stack) string {
	t.Helper()
	resp := tail(t, s, auditor, "", "")
	defer func() { _ = resp.Body.Close() }()
	buffer := make([]byte, 1024)
	var text strings.Builder
	for {
		n, err := resp.Body.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(string(buffer[:n]))
		if m := eventID.FindStringSubmatch(text.String()); m != nil {
			return m[1]
		}
	}
}

var eventID = regexp.MustCompile(`(?m)^id: (\S+)\n`)
