package httpapi_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	tokens "github.com/brevet-dev/brevet/internal/token"
)

// asker introspects tokens at a replica, over connections that it keeps open.
type asker struct {
	http *http.Client
	url  string
}

func askerOf(t *testing.T, s *testkit.Stack) asker {
	t.Helper()
	c := s.HTTP(t, s.X509(t, gitServer))
	c.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	return asker{c, s.URL + "/oauth2/introspect"}
}

// active reports whether the token is active. If there is no response, it fails the test and returns false.
func (a asker) active(t *testing.T, token string) bool {
	t.Helper()
	resp, err := a.http.PostForm(a.url, url.Values{"token": {token}})
	if err != nil {
		t.Errorf("introspecting: %v", err)
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("got %d %s, %v", resp.StatusCode, text, err)
	}
	return strings.Contains(string(text), `"active":true`)
}

// remembered introspects a token until the replica answers from its cache, without reading the record.
func remembered(t *testing.T, s *testkit.Stack, issued *client.Token) {
	t.Helper()
	a := askerOf(t, s)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if !a.active(t, issued.Secret.Reveal()) {
			t.Fatal("not active")
		}
		if s.Remembers(issued.ID, tokens.Digest(issued.Secret.Reveal())) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for a replica to answer from memory", patience)
		}
	}
}

// A replica without the record can answer for the tokens in its cache, and for no others.
func TestIntrospectionFromMemory(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withServers)
	seen, unseen := token(t, s.Client(t, agent), read), token(t, s.Client(t, agent), read)
	remembered(t, s, seen)
	exec(t, s, `ALTER TABLE issuances RENAME TO elsewhere`)
	for _, who := range []string{gitServer, agent} {
		if got := introspected(t, s, who, seen.Secret.Reveal()); got == inactive {
			t.Errorf("%s: got %s", who, got)
		}
	}
	for _, who := range []string{dbServer, twin, admin} { // the token is not for these callers
		if got := introspected(t, s, who, seen.Secret.Reveal()); got != inactive {
			t.Errorf("%s: got %s", who, got)
		}
	}
	if got := about(t, s, "/oauth2/introspect", gitServer, unseen.Secret.Reveal()); got.status != http.StatusServiceUnavailable {
		t.Errorf("got %d %s about one that was not seen", got.status, got.text)
	}
	exec(t, s, `ALTER TABLE elsewhere RENAME TO issuances`)
}

// H106 and I6 under load: once one replica has confirmed the end of a token, the other does not report it as active, even if it
// did so just before.
func TestConfirmedEndHoldsOnEveryReplicaUnderLoad(t *testing.T) {
	t.Parallel()
	const tokens, callers = 500, 16
	s := testkit.NewStack(t, withServers)
	stacks := []*testkit.Stack{s, s.Replica(t)}
	askers := []asker{askerOf(t, stacks[0]), askerOf(t, stacks[1])}
	for _, on := range stacks {
		remembered(t, on, token(t, on.Client(t, agent), read))
	}
	var next, late atomic.Int64
	var busy sync.WaitGroup
	for range callers {
		busy.Go(func() {
			clients := []*client.Client{stacks[0].Client(t, agent), stacks[1].Client(t, agent)}
			for n := next.Add(1); n <= tokens && !t.Failed(); n = next.Add(1) {
				issued, err := clients[n%2].Request(t.Context(), read)
				if err != nil {
					t.Errorf("asking: %v", err)
					return
				}
				raw, there := issued.Token.Secret.Reveal(), askers[(n+1)%2]
				for range 2 {
					if !there.active(t, raw) {
						t.Error("not active before its end")
					}
				}
				if _, err := clients[n%2].Release(t.Context(), issued.Token.ID); err != nil {
					t.Errorf("releasing: %v", err)
				}
				if there.active(t, raw) {
					late.Add(1)
				}
			}
		})
	}
	busy.Wait()
	if late.Load() > 0 {
		t.Errorf("%d of %d tokens were active after their end was confirmed", late.Load(), tokens)
	}
	s.DB.Check(t)
}

// A check from the cache uses the catalogue that was applied last, on any replica.
func TestCheckFromTheCacheUsesTheCatalogueInForce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, guarded)
	other := s.Replica(t)
	issued := token(t, s.Client(t, agent), readIssues)
	call := held{token: "Bearer " + issued.Secret.Reveal()}
	shut := changed(t, gated, "paths: ['/repos/{repo}/issues', '/repos/{repo}/issues/*']", "paths: ['/repos/{repo}/pulls']")
	for range 5 {
		// Until a replica notices that a call is allowed again, it may deny it.
		for deadline := time.Now().Add(patience); call.asNginx(t, other).send(t, other).status != 200 || !other.Remembers(issued.ID, tokens.Digest(issued.Secret.Reveal())); {
			if time.Now().After(deadline) {
				t.Fatalf("waited %s for a gateway to be answered from memory", patience)
			}
		}
		checks(t, "open", other, call, 200, "")
		apply(t, s.Client(t, chief), shut)
		checks(t, "shut", other, call, 403, "insufficient_scope")
		apply(t, s.Client(t, chief), gated)
	}
}
