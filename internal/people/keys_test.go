package people_test

import (
	"context"
	"crypto/elliptic"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/go-jose/go-jose/v4"
)

// The keys are fetched once, at the first token, for any number of tokens.
func TestKeysAreFetchedOnce(t *testing.T) {
	w := newWorld(t)
	if got := w.fetches(); got != 0 {
		t.Errorf("got %d fetches before the first token, want none", got)
	}
	token := w.token(t, w.claims())
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := w.Identify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := w.fetches(); got != 1 {
		t.Errorf("got %d fetches for 50 tokens at once, want 1", got)
	}
}

// A new key costs one fetch. A flood of unknown keys costs one fetch per five seconds.
func TestUnknownKeyFetchesAreRateLimited(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Fatal(err)
	}
	fresh := ecKey(t, elliptic.P256())
	w.set(nil, jose.JSONWebKey{Key: fresh.Public(), KeyID: "k2"})
	rotated := jws(t, fresh, marshal(t, merged(header(), map[string]any{"kid": "k2"})), marshal(t, w.claims()))
	w.clock.advance(5 * time.Second)
	if _, err := w.Identify(t.Context(), rotated); err != nil {
		t.Fatalf("got %v for the provider's new key, want a person", err)
	}
	if got := w.fetches(); got != 2 {
		t.Fatalf("got %d fetches after one rotation, want 2", got)
	}
	person, err := w.Identify(t.Context(), w.token(t, w.claims()))
	wantReason(t, person, err, "id_token_key") // the old one is withdrawn
	flood := func() {
		var all sync.WaitGroup
		for i := range 200 {
			token := head(map[string]any{"kid": fmt.Sprint("no-such-", i)})(t, w)
			all.Go(func() {
				person, err := w.Identify(t.Context(), token)
				wantReason(t, person, err, "id_token_key")
			})
		}
		all.Wait()
	}
	flood()
	if got := w.fetches(); got != 2 {
		t.Errorf("got %d fetches in the first five seconds of a flood, want 2", got)
	}
	w.clock.advance(5 * time.Second)
	flood()
	if got := w.fetches(); got > 3 {
		t.Errorf("got %d fetches in the next five seconds, want 3", got)
	}
	if _, err := w.Identify(t.Context(), rotated); err != nil {
		t.Errorf("got %v during a flood, want a person", err)
	}
}

// A key that the provider has withdrawn is accepted for ten minutes at most.
func TestWithdrawnKeysEnd(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Fatal(err)
	}
	w.set(nil, jose.JSONWebKey{Key: ecKey(t, elliptic.P256()).Public(), KeyID: "k2"})
	w.clock.advance(10 * time.Minute)
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Errorf("got %v while the keys are fresh, want a person", err)
	}
	w.clock.advance(time.Second)
	person, err := w.Identify(t.Context(), w.token(t, w.claims()))
	wantReason(t, person, err, "id_token_key")
}

// While the provider is down, new keys cannot be fetched, and known keys work for an hour. Brevet retries once per five
// seconds.
func TestProviderIsDown(t *testing.T) {
	down := func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) }
	w := newWorld(t)
	w.set(down)
	unavailable := func(want int) {
		t.Helper()
		person, err := w.Identify(t.Context(), w.token(t, w.claims()))
		wantReason(t, person, err, "provider_unavailable")
		if !errors.Is(err, people.ErrProviderUnavailable) || errors.Is(err, people.ErrToken) {
			t.Errorf("got %v, want ErrProviderUnavailable alone", err)
		}
		if got := w.fetches(); got != want {
			t.Errorf("got %d fetches, want %d", got, want)
		}
	}
	unavailable(1)
	w.clock.advance(4 * time.Second)
	unavailable(1)
	w.clock.advance(time.Second)
	unavailable(2)
	w.set(nil)
	w.clock.advance(5 * time.Second)
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Fatalf("got %v once the provider is back, want a person", err)
	}
	w.set(down)
	w.clock.advance(time.Hour)
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Errorf("got %v an hour after the last fetch, want a person", err)
	}
	w.clock.advance(5 * time.Second)
	unavailable(5)
}

// A bad response from the provider is never worse than no response.
func TestBadProviderResponseIsNoWorseThanNone(t *testing.T) {
	elsewhere := newWorld(t)
	at := func(path string, answer http.HandlerFunc) func(*world) http.HandlerFunc {
		return func(w *world) http.HandlerFunc {
			return func(rw http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case path:
					answer(rw, r)
				case "/jwks":
					_, _ = rw.Write(marshal(t, jose.JSONWebKeySet{Keys: w.keys}))
				default:
					_, _ = rw.Write(marshal(t, map[string]string{"issuer": w.issuer, "jwks_uri": w.issuer + "/jwks"}))
				}
			}
		}
	}
	discovery := func(document func(w *world) string) func(*world) http.HandlerFunc {
		return func(w *world) http.HandlerFunc {
			return at("/.well-known/openid-configuration", say(document(w)))(w)
		}
	}
	jwks := func(document string) func(*world) http.HandlerFunc { return at("/jwks", say(document)) }
	key := string(marshal(t, elsewhere.keys[0]))
	twin := string(marshal(t, jose.JSONWebKey{Key: ecKey(t, elliptic.P256()).Public(), KeyID: "k1"}))
	huge := `{"keys":[` + key + `],"pad":"` + strings.Repeat("a", 1<<20) + `"}`
	for name, answer := range map[string]func(*world) http.HandlerFunc{
		"another issuer": discovery(func(*world) string {
			return `{"issuer":"` + elsewhere.issuer + `","jwks_uri":"` + elsewhere.issuer + `/jwks"}`
		}),
		"no jwks_uri":      discovery(func(w *world) string { return `{"issuer":"` + w.issuer + `"}` }),
		"jwks_uri in http": discovery(func(w *world) string { return `{"issuer":"` + w.issuer + `","jwks_uri":"http://evil.test/jwks"}` }),
		"jwks_uri a file":  discovery(func(w *world) string { return `{"issuer":"` + w.issuer + `","jwks_uri":"file:///etc/passwd"}` }),
		"HTML":             discovery(func(*world) string { return `<html>` }),
		"discovery redirects": at("/.well-known/openid-configuration", func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.issuer+r.URL.Path, http.StatusFound)
		}),
		"discovery is huge": discovery(func(w *world) string {
			return `{"issuer":"` + w.issuer + `","jwks_uri":"` + w.issuer + `/jwks","pad":"` + strings.Repeat("a", 1<<20) + `"}`
		}),
		"keys redirect": at("/jwks", func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.issuer+r.URL.Path, http.StatusFound)
		}),
		"keys are huge": jwks(huge),
		"keys are HTML": jwks(`<html>`),
		"an error in colour": at("/.well-known/openid-configuration", func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(rw, strings.Repeat("\x1b[2J\n", 1000))
		}),
		"no keys":       jwks(`{"keys":[]}`),
		"nothing":       jwks(``),
		"symmetric key": jwks(`{"keys":[{"kty":"oct","kid":"k1","k":"AAAA"}]}`),
		"two of one id": jwks(`{"keys":[` + key + `,` + twin + `]}`),
		"no id":         jwks(strings.ReplaceAll(`{"keys":[`+key+`]}`, `"kid":"k1",`, ``)),
		"reply cut": at("/jwks", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "900")
			_, _ = rw.Write([]byte(`{"keys":[`))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(answer(w))
			person, err := w.Identify(t.Context(), w.token(t, w.claims()))
			wantReason(t, person, err, "provider_unavailable")
			if text := err.Error(); len(text) > 1000 || strings.ContainsAny(text, "\x1b\n") {
				t.Errorf("got an error of %d bytes, want a short one that is safe to print: %.300q", len(text), text)
			}
			if got := elsewhere.fetches(); got != 0 {
				t.Errorf("got %d calls of a provider that is not ours", got)
			}
		})
	}
}

func say(text string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(text)) }
}

// A key that is listed twice is one key, and keys for other purposes are ignored.
func TestDuplicateAndUnrelatedKeysAreIgnored(t *testing.T) {
	w := newWorld(t)
	w.set(nil, w.keys[0], w.keys[0], jose.JSONWebKey{Key: ecKey(t, elliptic.P384()).Public(), KeyID: "k3"},
		jose.JSONWebKey{Key: rsaKey(t, 2048).Public(), KeyID: "k1", Use: "enc"})
	if _, err := w.Identify(t.Context(), w.token(t, w.claims())); err != nil {
		t.Errorf("got %v, want a person", err)
	}
}

// Keys of an https issuer are never fetched over plain HTTP.
func TestKeysAreFetchedOverTLSOnly(t *testing.T) {
	plain := newWorld(t)
	var issuer string
	srv := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(marshal(t, map[string]string{"issuer": issuer, "jwks_uri": plain.issuer + "/jwks"}))
	}))
	t.Cleanup(srv.Close)
	issuer = srv.URL
	v := plain.verifier(t, func(cfg *people.Config) { cfg.Issuer, cfg.HTTPClient = issuer, srv.Client() })
	person, err := v.Identify(t.Context(), plain.token(t, merged(plain.claims(), map[string]any{"iss": issuer})))
	wantReason(t, person, err, "provider_unavailable")
	if got := plain.fetches(); got != 0 {
		t.Errorf("got %d fetches in the clear", got)
	}
}

// A caller that stops waiting ends neither the fetch nor the wait of other callers.
func TestCancelledCallerDoesNotEndTheFetch(t *testing.T) {
	w := newWorld(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	w.set(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			_, _ = rw.Write(marshal(t, jose.JSONWebKeySet{Keys: w.keys}))
			return
		}
		asked <- struct{}{}
		<-answer
		_, _ = rw.Write(marshal(t, map[string]string{"issuer": w.issuer, "jwks_uri": w.issuer + "/jwks"}))
	})
	token := w.token(t, w.claims())
	impatient, leave := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.Identify(impatient, token)
		left <- err
	}()
	<-asked
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, people.ErrProviderUnavailable) {
		t.Errorf("got %v, want both that it was cancelled and that nobody could be told", err)
	}
	go func() {
		_, err := w.Identify(t.Context(), token)
		stayed <- err
	}()
	close(answer)
	if err := <-stayed; err != nil {
		t.Errorf("got %v for the caller who waits, want a person", err)
	}
	if got := w.fetches(); got != 1 {
		t.Errorf("got %d fetches, want 1", got)
	}
}
