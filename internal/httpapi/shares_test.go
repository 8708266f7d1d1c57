package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/uuid"
)

// As many event streams as one trust domain can open leave room for those of another one.
func TestEventStreamsAreSharedBetweenTrustDomains(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	opened, refused := 0, false
	for n := 0; n < 100 && !refused; n++ {
		who := fmt.Sprintf("spiffe://acme.test/loud/%d", n)
		for range 4 {
			if got := tail(t, s, who, "", ""); got.StatusCode == http.StatusOK {
				opened++
			} else if refused = true; got.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("got %d", got.StatusCode)
			}
		}
	}
	if !refused || opened < 64 || opened > 100 {
		t.Errorf("got %d streams of one trust domain, want at most half of 200", opened)
	}
	for range 4 {
		if got := tail(t, s, foreign, "", ""); got.StatusCode != http.StatusOK {
			t.Errorf("another trust domain: got %d", got.StatusCode)
		}
	}
}

// A sandbox that introspects as much as it can leaves room for its neighbours and for other trust domains.
func TestIntrospectionIsShared(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{
		Catalogue: catalogue, ResourceServers: map[string][]string{foreign: {"https://git.test"}, twin: {"https://git.test"}},
	})
	held, err := s.Client(t, agent).Request(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	token := held.Token.Secret.Reveal()
	release := s.Server.HoldIntrospections("acme.test", agent)
	if got := about(t, s, "/oauth2/introspect", agent, token); got.status != http.StatusTooManyRequests || !soon(got.header) {
		t.Errorf("the loud one: got %d %s, want 429", got.status, got.text)
	}
	for _, who := range []string{twin, foreign} {
		if got := about(t, s, "/oauth2/introspect", who, token); got.status != http.StatusOK || !strings.Contains(got.text, `"active":true`) {
			t.Errorf("%s: got %d %s", who, got.status, got.text)
		}
	}
	release()
	if got := about(t, s, "/oauth2/introspect", agent, token); got.status != http.StatusOK {
		t.Errorf("after that: got %d %s", got.status, got.text)
	}
}

// A caller that fills the queue for reads delays no other trust domain, and finds its own further reads refused.
func TestReadsTakeTurns(t *testing.T) {
	t.Parallel()
	const auditor = "spiffe://other.test/ops/auditor"
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, CatalogueAuditors: []string{auditor}})
	release := s.Server.HoldReads(t.Context(), "acme.test", agent)
	defer release()
	loud := s.Client(t, agent)
	for began := time.Now(); ; { // the queue fills concurrently
		_, err := loud.Page(t.Context(), client.Filter{Task: "t"})
		if code(err) == openapi.CodeRateLimited {
			break
		}
		if time.Since(began) > patience {
			t.Fatalf("got %v of a caller that fills the queue, want a refusal", err)
		}
	}
	if _, err := s.Client(t, foreign).Page(t.Context(), client.Filter{Task: "t"}); err != nil {
		t.Errorf("a search of another trust domain: got %v", err)
	}
	other := s.Client(t, auditor)
	if _, err := other.Page(t.Context(), client.Filter{Task: "t"}); err != nil {
		t.Errorf("a search of another trust domain's auditor: got %v", err)
	}
	if _, err := other.LogKeys(t.Context()); err != nil {
		t.Errorf("reading the log: got %v", err)
	}
}

// A stranger can look up only so many unknown status lists. A workload can still look up one.
func TestStatusListLookupsAreShared(t *testing.T) {
	t.Parallel()
	// The clock stands still, so a slow machine also reaches the limit.
	began := time.Now()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, Now: func() time.Time { return began }})
	stranger, workload := s.HTTP(t, nil), s.HTTP(t, s.X509(t, foreign))
	look := func(c *http.Client) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/status-lists/"+uuid.NewString(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	refused := false
	for time.Since(began) < patience && !refused {
		refused = look(stranger) == http.StatusTooManyRequests
		if refused {
			if got := look(workload); got != http.StatusNotFound {
				t.Errorf("a workload: got %d, want 404", got)
			}
		}
	}
	if !refused {
		t.Error("a stranger may look for as many lists as it likes")
	}
}
