package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// events records what happened, in order.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, what)
}

func (e *events) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

const password = "hvs.zqpassword"

// leasing replaces Vault for a dynamic credential and records what is asked of it.
type leasing struct {
	broker.Minter
	events *events
	// before, if set, is called before the credential is created.
	before func(ctx context.Context)
	object string
}

func (l leasing) Mint(ctx context.Context, order *broker.Order) (broker.Credential, error) {
	if _, _, err := order.Spend(); err != nil {
		return broker.Credential{}, err
	}
	if l.before != nil {
		l.before(ctx)
	}
	return broker.Credential{
		Secret: secret.New(l.object),
		Minted: &broker.Minted{VaultLease: broker.VaultLease{Accessor: "acc-1", Lease: "auth/token/create/1"}, Name: "v-1", Digest: [32]byte{7}},
	}, nil
}

func (l leasing) Renew(context.Context, broker.Minted) error {
	l.events.add("renew")
	return nil
}

func (l leasing) Revoke(context.Context, broker.VaultLease) error {
	l.events.add("revoke")
	return nil
}

// noisyWriter is a connection that records its calls, and fails at the step that broken names.
type noisyWriter struct {
	*httptest.ResponseRecorder
	events *events
	broken string
}

var errBroken = errors.New("connection reset")

func (w *noisyWriter) Write(p []byte) (int, error) {
	w.events.add("write")
	switch w.broken {
	case "write":
		return 0, errBroken
	case "panic":
		panic(errBroken)
	}
	return w.ResponseRecorder.Write(p)
}

func (w *noisyWriter) FlushError() error {
	w.events.add("flush")
	if w.broken == "flush" {
		return errBroken
	}
	return nil
}

func notes(t *testing.T, object string, before func(context.Context)) (*testkit.Stack, *events) {
	t.Helper()
	seen := &events{}
	o := officers
	o.Minter = func(m broker.Minter) broker.Minter {
		return leasing{Minter: m, events: seen, object: object, before: before}
	}
	return testkit.NewStack(t, o), seen
}

const goodObject = `{"token":"` + password + `","uses":9007199254740993}`

const notesBody = `{"scope":"vault.notes.read","task":"t-1"}`

// C7: a credential with a lease is renewed once, after it was written and flushed. If the response was not written completely, the
// credential is revoked, whatever went wrong.
func TestLeaseIsRenewedOnlyAfterDelivery(t *testing.T) {
	t.Parallel()
	for broken, want := range map[string]string{
		"":      "[write flush renew]",
		"write": "[write revoke]",
		"flush": "[write flush revoke]",
		"panic": "[write revoke]",
		"gone":  "[revoke]",
	} {
		t.Run("broken: "+broken, func(t *testing.T) {
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			s, seen := notes(t, goodObject, func(context.Context) {
				if broken == "gone" {
					hangUp()
				}
			})
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/tokens", strings.NewReader(notesBody))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+s.JWT(t, agent))
			w := &noisyWriter{ResponseRecorder: httptest.NewRecorder(), events: seen, broken: broken}
			func() {
				defer func() {
					if v := recover(); (v != nil) != (broken == "panic") {
						t.Errorf("panicked: %v", v)
					}
				}()
				s.Server.Handler().ServeHTTP(w, req)
			}()
			if got := fmt.Sprint(seen.list()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			page, err := s.Client(t, auditor).Page(t.Context(), client.Filter{})
			if err != nil || len(page.Issuances) != 1 {
				t.Fatalf("got %+v, %v", page, err)
			}
			one, status, detail := page.Issuances[0], openapi.StatusIssued, ""
			if broken != "" {
				status, detail = openapi.StatusRevoked, "undelivered"
			}
			if one.Status != status || one.StatusDetail != detail {
				t.Errorf("the record says %s %s, want %s %s", one.Status, one.StatusDetail, status, detail)
			}
			s.DB.Check(t)
		})
	}
}

// I2: if the caller disconnects while Vault creates the credential, it gets nothing, and nothing stays alive.
func TestDisconnectDuringMintLeavesNoCredential(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			started := make(chan struct{})
			s, seen := notes(t, goodObject, func(ctx context.Context) {
				close(started)
				<-ctx.Done()
			})
			cfg := s.ClientTLS(s.X509(t, agent))
			cfg.NextProtos = []string{proto}
			transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: proto == "h2"}
			t.Cleanup(transport.CloseIdleConnections)
			ctx, hangUp := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/tokens", strings.NewReader(notesBody))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			ended := make(chan error, 1)
			go func() {
				resp, err := transport.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				ended <- err
			}()
			<-started
			hangUp()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the call cancelled", err)
			}
			eventually(t, func() error {
				page, err := s.Client(t, auditor).Page(t.Context(), client.Filter{Status: openapi.StatusRevoked})
				if err == nil && len(page.Issuances) != 1 {
					err = fmt.Errorf("%d records say revoked, want 1", len(page.Issuances))
				}
				return err
			})
			if got := fmt.Sprint(seen.list()); got != "[revoke]" {
				t.Errorf("got %s, want it revoked and never renewed", got)
			}
		})
	}
}

// A caller that closes its connection as soon as it has the response keeps its credential.
func TestDisconnectAfterDeliveryKeepsTheCredential(t *testing.T) {
	t.Parallel()
	s, seen := notes(t, goodObject, nil)
	cfg := s.ClientTLS(s.X509(t, agent))
	cfg.NextProtos = []string{"http/1.1"}
	once := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	const callers, calls = 8, 25
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				resp, err := once.Post(s.URL+"/v1/tokens", "application/json", strings.NewReader(notesBody))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
					t.Errorf("got %d, %v", resp.StatusCode, err)
				}
				_ = resp.Body.Close()
			}
		})
	}
	all.Wait()
	eventually(t, func() error {
		if n := len(seen.list()); n != callers*calls {
			return fmt.Errorf("%d of %d credentials were seen to", n, callers*calls)
		}
		return nil
	})
	if slices.Contains(seen.list(), "revoke") {
		t.Error("a delivered credential was revoked")
	}
}

// A credential of any kind but JWT is correct on the wire, in the client, and in the record that each reader sees.
func TestCredentialObject(t *testing.T) {
	t.Parallel()
	s, seen := notes(t, goodObject, nil)
	c := s.Client(t, agent)
	got := token(t, c, client.Ask{Scope: "vault.notes.read", Task: "t-1"})
	if got.Kind != "vault-token" || got.Name != "v-1" || got.Static || got.Secret.Reveal() != goodObject || got.Field("token").Reveal() != password || got.Field("uses").Reveal() != "9007199254740993" {
		t.Errorf("got %+v with %s", got, got.Secret.Reveal())
	}
	raw := wire{body: notesBody}.send(t, s)
	if raw.status != 201 || strings.Contains(raw.text, `"token_type"`) || !strings.Contains(raw.text, `"credential":`+goodObject) || raw.header.Get("Cache-Control") != "no-store" || raw.header.Get("Content-Length") != fmt.Sprint(len(raw.text)) {
		t.Errorf("got %d %v %s", raw.status, raw.header, raw.text)
	}
	for who, inside := range map[string]bool{agent: false, auditor: true} {
		one, err := s.Client(t, who).Issuance(t.Context(), got.ID)
		if err != nil {
			t.Fatal(err)
		}
		facts := one.Credential
		if facts.Kind != "vault-token" || facts.Name != "v-1" || facts.Sha256 != "07"+strings.Repeat("00", 31) || facts.Static {
			t.Errorf("%s sees %+v", who, facts)
		}
		if (facts.Accessor == "acc-1") != inside || (facts.Lease == "auth/token/create/1") != inside {
			t.Errorf("%s sees the inside of Vault: %+v, want that %t", who, facts, inside)
		}
	}
	r, err := c.EndTask(t.Context(), "t-1", client.TaskEnd{})
	if err != nil || len(r.Ended) != 2 || r.Counts["revoked"] != 2 || !r.Ended[0].UsableUntil.IsZero() || r.Ended[0].Kind != "vault-token" {
		t.Errorf("got the receipt %+v, %v, want both dead everywhere", r, err)
	}
	if got := fmt.Sprint(seen.list()); got != "[renew renew revoke revoke]" {
		t.Errorf("got %s", got)
	}
	if strings.Contains(s.Log.String(), password) {
		t.Error("the credential is in the log")
	}
	if text := scrape(t, s.Server); !strings.Contains(text, `brevet_ended_total{cause="task_ended",status="revoked"} 2`) {
		t.Error("the end is not in the metrics")
	}
	s.DB.Check(t)
}

// A credential that is not JSON is never sent, not even in part.
func TestNonJSONCredentialIsNotSent(t *testing.T) {
	t.Parallel()
	s, seen := notes(t, password, nil)
	got := wire{body: notesBody}.send(t, s)
	if got.status != 500 || got.code != "internal" || strings.Contains(got.text, password) || strings.Contains(s.Log.String(), password) {
		t.Errorf("got %d %s", got.status, got.text)
	}
	if got := fmt.Sprint(seen.list()); got != "[revoke]" {
		t.Errorf("got %s, want it revoked", got)
	}
}

// If Vault does not confirm a revocation, the call answers 202, and the record shows that the revocation is not complete.
func TestUnconfirmedRevocationIsReported(t *testing.T) {
	t.Parallel()
	seen := &events{}
	o := officers
	o.Minter = func(m broker.Minter) broker.Minter {
		return unrevoking{leasing{Minter: m, events: seen, object: goodObject}}
	}
	s := testkit.NewStack(t, o)
	got := token(t, s.Client(t, agent), client.Ask{Scope: "vault.notes.read", Task: "t-1"})
	raw := wire{target: "/v1/issuances/" + got.ID + "/release", body: nothing}.send(t, s)
	if raw.status != 202 || !strings.Contains(raw.text, `"why":"vault_unavailable"`) || !strings.Contains(raw.text, `"counts":{"revoking":1}`) {
		t.Errorf("got %d %s, want 202 with why", raw.status, raw.text)
	}
	page, err := s.Client(t, auditor).Page(t.Context(), client.Filter{Status: openapi.StatusRevoking})
	if err != nil || len(page.Issuances) != 1 || page.Issuances[0].StatusDetail != "released" || page.Issuances[0].EndedBy != agent {
		t.Errorf("got %+v, %v", page, err)
	}
}

type unrevoking struct{ leasing }

func (unrevoking) Revoke(context.Context, broker.VaultLease) error { return broker.ErrVaultUnavailable }
