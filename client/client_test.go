package client_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

// newClient returns a client of a server with the given handler. The handler also stands for the network, which may return
// anything.
func newClient(t *testing.T, answer http.HandlerFunc) *client.Client {
	t.Helper()
	srv := httptest.NewTLSServer(answer)
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{BaseURL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func writeProblem(w http.ResponseWriter, p openapi.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Request-Id", "r-1")
	w.Header().Set("Retry-After", "7")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// problemCodes returns the problem codes in the API description.
func problemCodes(t *testing.T) []openapi.ProblemCode {
	t.Helper()
	var spec struct {
		Components struct {
			Schemas struct {
				ProblemCode struct {
					Enum []openapi.ProblemCode `yaml:"enum"`
				} `yaml:"ProblemCode"`
			} `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(openapi.Spec, &spec); err != nil {
		t.Fatal(err)
	}
	codes := spec.Components.Schemas.ProblemCode.Enum
	if len(codes) < 30 {
		t.Fatalf("got %d problem codes: the description is not being read", len(codes))
	}
	return codes
}

// A program can test for every problem of the server with errors.Is, however it is wrapped.
func TestEveryProblemMatchesASentinelError(t *testing.T) {
	wants := map[openapi.ProblemCode]error{
		openapi.CodeMalformedBody:        client.ErrInvalid,
		openapi.CodeInvalidParameter:     client.ErrInvalid,
		openapi.CodeInvalidCursor:        client.ErrInvalid,
		openapi.CodeInvalidRequest:       client.ErrInvalid,
		openapi.CodeTooLarge:             client.ErrInvalid,
		openapi.CodeUnsupportedMediaType: client.ErrInvalid,
		openapi.CodeMethodNotAllowed:     client.ErrInvalid,
		openapi.CodeMisdirected:          client.ErrInvalid,
		openapi.CodeUnauthenticated:      client.ErrUnauthenticated,
		openapi.CodeDenied:               client.ErrDenied,
		openapi.CodeNotAllowed:           client.ErrNotAllowed,
		openapi.CodeRevoked:              client.ErrRevoked,
		openapi.CodeVaultRefused:         client.ErrVaultRefused,
		openapi.CodeGitHubUnavailable:    client.ErrUnavailable,
		openapi.CodeGitHubRefused:        client.ErrVaultRefused,
		openapi.CodeNotFound:             client.ErrNotFound,
		openapi.CodeAlreadyIssued:        client.ErrConflict,
		openapi.CodeIdempotencyMismatch:  client.ErrConflict,
		openapi.CodeAlreadyReported:      client.ErrAlreadyReported,
		openapi.CodeRateLimited:          client.ErrRateLimited,
		openapi.CodeLedgerUnavailable:    client.ErrUnavailable,
		openapi.CodeLedgerFull:           client.ErrUnavailable,
		openapi.CodeOverloaded:           client.ErrUnavailable,
		openapi.CodeVaultUnavailable:     client.ErrUnavailable,
		openapi.CodeMintMismatch:         client.ErrUnavailable,
		openapi.CodePreconditionRequired: client.ErrInvalid,
		openapi.CodePreconditionFailed:   client.ErrOtherCatalogue,
		openapi.CodeOwnProposal:          client.ErrNotAllowed,
		openapi.CodeInvalidCatalogue:     client.ErrInvalid,
		openapi.CodeVaultNotPrepared:     client.ErrVaultRefused,
		openapi.CodeSuperseded:           client.ErrUnavailable,
		openapi.CodeInternal:             client.ErrInternal,
		openapi.CodeBundleUnavailable:    client.ErrUnavailable,
		openapi.CodeProviderUnavailable:  client.ErrUnavailable,
		openapi.CodeNotSealed:            client.ErrUnavailable,
		openapi.CodeOwnRequest:           client.ErrNotAllowed,
		openapi.CodeNotEligible:          client.ErrNotAllowed,
		openapi.CodePasskeyRequired:      client.ErrNotAllowed,
		openapi.CodeDecided:              client.ErrDecided,
		openapi.CodeNotApproved:          client.ErrDecided,
		openapi.CodeStale:                client.ErrStale,
		openapi.CodeTooBroad:             client.ErrInvalid,
		openapi.CodeInvalidToken:         client.ErrUnauthenticated,
		openapi.CodeInsufficientScope:    client.ErrDenied,
		openapi.CodeInvalidDPoPProof:     client.ErrUnauthenticated,
		openapi.CodeUseDPoPNonce:         client.ErrUnauthenticated,
	}
	for _, code := range problemCodes(t) {
		want := wants[code]
		if want == nil {
			t.Errorf("%s has no error of its own: add it to sentinels", code)
			continue
		}
		t.Run(string(code), func(t *testing.T) {
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				writeProblem(w, openapi.Problem{Type: code.Type(), Code: code, Status: 418, Title: "x", Detail: "y"})
			})
			_, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
			if !errors.Is(err, want) || !errors.Is(fmt.Errorf("asking: %w", err), want) {
				t.Errorf("got %v, want %v", err, want)
			}
			for _, other := range []error{client.ErrInvalid, client.ErrUnauthenticated, client.ErrDenied, client.ErrUnavailable} {
				if !errors.Is(want, other) && errors.Is(err, other) {
					t.Errorf("%s is %v too", code, other)
				}
			}
			var p *client.Problem
			if !errors.As(err, &p) || p.RequestID != "r-1" || p.RetryAfter != 7*time.Second {
				t.Errorf("got %+v, want the request id and the wait", p)
			}
		})
	}
}

// A program can distinguish the reasons for a denial that it may act on, and each is still a denial.
func TestReasonsOfDenials(t *testing.T) {
	for reason, want := range map[string]error{"quarantined": client.ErrQuarantined, "task_ended": client.ErrTaskEnded, "no_permit": nil} {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			writeProblem(w, openapi.Problem{Type: openapi.CodeDenied.Type(), Code: openapi.CodeDenied, Status: 403, Reason: reason})
		})
		_, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
		if !errors.Is(err, client.ErrDenied) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: got %v", reason, err)
		}
		for other, of := range map[string]error{"quarantined": client.ErrQuarantined, "task_ended": client.ErrTaskEnded} {
			if other != reason && errors.Is(err, of) {
				t.Errorf("%s is %v too", reason, of)
			}
		}
	}
}

func TestInvalidResponsesAreRefused(t *testing.T) {
	const secret = "s3cr3t-token"
	problem := openapi.Problem{Type: openapi.CodeDenied.Type(), Code: openapi.CodeDenied, Status: 403}
	for name, answer := range map[string]http.HandlerFunc{
		"HTML":          func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>"+secret) },
		"200 for a 201": func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 200, `{"id":"1","token":"`+secret+`"}`) },
		"no token":      func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, `{"id":"1","token_type":"Bearer"}`) },
		"no kind":       func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, `{"id":"1","token":"`+secret+`"}`) },
		"no credential": func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, `{"id":"1","kind":"database"}`) },
		"an empty one": func(w http.ResponseWriter, _ *http.Request) {
			writeToken(w, 201, `{"id":"1","kind":"kv","credential":{}}`)
		},
		"a token for none": func(w http.ResponseWriter, _ *http.Request) {
			writeToken(w, 201, `{"id":"1","kind":"none","token":"`+secret+`"}`)
		},
		"a credential for none": func(w http.ResponseWriter, _ *http.Request) {
			writeToken(w, 201, `{"id":"1","kind":"none","credential":{"a":"`+secret+`"}}`)
		},
		"no object": func(w http.ResponseWriter, _ *http.Request) {
			writeToken(w, 201, `{"id":"1","kind":"kv","credential":"`+secret+`"}`)
		},
		"no JSON":        func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, secret) },
		"wrong type":     func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, `{"id":1,"token":"`+secret+`"}`) },
		"an HTML error":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusBadGateway) },
		"too large":      func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 201, `"`+strings.Repeat("x", 17<<20)+`"`) },
		"pending, no id": func(w http.ResponseWriter, _ *http.Request) { writeToken(w, 202, `{}`) },
		"status differs": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(500)
			_ = json.NewEncoder(w).Encode(problem)
		},
		"type differs": func(w http.ResponseWriter, _ *http.Request) {
			p := problem
			p.Type = "https://evil.example/problems/denied"
			writeProblem(w, p)
		},
		"unknown code": func(w http.ResponseWriter, _ *http.Request) {
			writeProblem(w, openapi.Problem{Code: "new_one", Type: openapi.ProblemCode("new_one").Type(), Status: 400})
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newClient(t, answer).Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
			if !errors.Is(err, client.ErrAnswer) {
				t.Errorf("got %v and %v, want ErrAnswer", got, err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error holds the answer's body: %v", err)
			}
		})
	}
}

func writeToken(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var reached atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := newClient(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		if _, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"}); !errors.Is(err, client.ErrAnswer) {
			t.Errorf("%d: got %v, want ErrAnswer", status, err)
		}
		if _, err := c.Issuance(t.Context(), "x"); !errors.Is(err, client.ErrAnswer) {
			t.Errorf("%d: got %v, want ErrAnswer", status, err)
		}
	}
	if reached.Load() {
		t.Error("the redirect was followed")
	}
}

func TestRequest(t *testing.T) {
	expires := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		want := map[string]any{"scope": "a.b", "params": map[string]any{"n": 3.0}, "ttl": 90.0, "task": "t", "reason": "why"}
		if diff := cmp.Diff(want, body); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		if got := r.Header.Get("Idempotency-Key"); got != "k" {
			t.Errorf("got key %q, want k", got)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(openapi.Token{
			ID: "1", Kind: "jwt", Token: "eyJ", TokenType: "Bearer", ExpiresAt: expires, Scope: "a.b", TTL: 60,
			Clamped: []openapi.Clamp{{Bound: "scope.max", From: 90, To: 60}},
		})
	})
	got, err := c.Request(t.Context(), client.Ask{
		Scope: "a.b", Params: map[string]any{"n": 3}, TTL: 90 * time.Second, Task: "t", Reason: "why", IdempotencyKey: "k",
	})
	if err != nil || got.Token == nil || got.Pending != nil {
		t.Fatalf("got %+v, %v, want a token", got, err)
	}
	if got.Token.Secret.Reveal() != "eyJ" || got.Token.TTL != time.Minute || !got.Token.Expires.Equal(expires) || len(got.Token.Clamped) != 1 {
		t.Errorf("got %+v", got.Token)
	}
	if _, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t", TTL: 1500 * time.Millisecond}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a TTL of 1.5 s: got %v, want ErrInvalid", err)
	}
}

func TestPendingNamesTheApproverGroup(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "5")
		writeToken(w, 202, `{"id":"9","status":"pending","approval":{"group":"oncall","quorum":2},"expires_at":"2030-01-02T03:04:05Z"}`)
	})
	got, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
	if err != nil || got.Pending == nil || got.Token != nil {
		t.Fatalf("got %+v, %v, want it pending", got, err)
	}
	if p := got.Pending; p.ID != "9" || p.Group != "oncall" || p.Quorum != 2 || p.RetryAfter != 5*time.Second {
		t.Errorf("got %+v", p)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		writeToken(w, 201, `{"id":"1","kind":"jwt","token":"eyJhbGci"}`)
	})
	got, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", got.Token, "secret", got.Token.Secret)
	encoded, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	s := got.Token.Secret
	for _, text := range []string{
		log.String(), string(encoded), fmt.Sprint(got.Token), fmt.Sprintf("%+v %#v %s %q %x %d", s, s, s, s, s, s), fmt.Sprintf("%#v", *got.Token), s.String(),
		fmt.Sprintf("%v %+v", struct{ hidden secret.Text }{s}, struct{ hidden *client.Token }{got.Token}),
	} {
		if strings.Contains(text, "eyJ") || strings.Contains(text, "65794a") {
			t.Errorf("the credential shows in %s", text)
		}
	}
}

func TestIssuancesReadsEveryPage(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		pages := map[string]openapi.IssuancePage{
			"":  {Issuances: []openapi.Issuance{{ID: "3"}, {ID: "2"}}, Next: "c"},
			"c": {Issuances: []openapi.Issuance{{ID: "1"}}},
		}
		if got := r.URL.Query().Get("scope"); got != "a.b" {
			t.Errorf("got the filter %q on a page, want a.b", got)
		}
		_ = json.NewEncoder(w).Encode(pages[r.URL.Query().Get("cursor")])
	})
	var got []string
	for one, err := range c.Issuances(t.Context(), client.Filter{Scope: "a.b"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, one.ID)
	}
	if diff := cmp.Diff([]string{"3", "2", "1"}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestIDCannotLeaveItsPath(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.EscapedPath(), "/v1/issuances/") || strings.Count(r.URL.EscapedPath(), "/") != 3 || r.URL.RawQuery != "" {
			t.Errorf("an id led to %s", r.RequestURI)
		}
		writeProblem(w, openapi.Problem{Type: openapi.CodeNotFound.Type(), Code: openapi.CodeNotFound, Status: 404})
	})
	for _, id := range []string{"../tokens", "a/b", "a?b=c", "%2e%2e", "a#b"} {
		if _, err := c.Issuance(t.Context(), id); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", id, err)
		}
	}
	for _, id := range []string{"", ".", ".."} {
		if _, err := c.Issuance(t.Context(), id); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", id, err)
		}
	}
}

func TestNewRefusesUnsafeBaseURLs(t *testing.T) {
	for _, base := range []string{"http://a.test", "https://", "a.test", "https://u:p@a.test", "https://a.test/path", "https://a.test?x=1", "://"} {
		if _, err := client.New(client.Config{BaseURL: base}); err == nil {
			t.Errorf("%s: got no error", base)
		}
	}
}

// T10: a program that uses the package keeps its own default logger, so net/http must not print what a server sends after its response.
func TestNothingIsPrintedOfWhatFollowsAResponse(t *testing.T) {
	const hidden = "hvs.CAESIJ-the-credential"
	var printed syncedBuffer
	log.SetOutput(&printed)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	closed := make(chan struct{}, 16)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			body := `{"id":"spiffe://acme.test/a"}`
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s%s", len(body), body, hidden)
			_, _ = io.Copy(io.Discard, conn) // until the client closes
			_ = conn.Close()
			closed <- struct{}{}
		}()
	}))
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c, err := client.New(client.Config{BaseURL: srv.URL}, client.WithRoots(roots))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for range 3 {
		if _, err := c.WhoAmI(t.Context()); err != nil {
			t.Error(err)
		}
		<-closed
	}
	if text := printed.String(); text != "" {
		t.Errorf("printed %s", text)
	}
}

// syncedBuffer is a buffer that several goroutines may write to.
type syncedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
