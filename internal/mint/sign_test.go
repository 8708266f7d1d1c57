package mint_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/golang-jwt/jwt/v5"
)

// held holds the first request to sign until the test releases it, so that the test controls what queues in the meantime.
type held struct {
	arrived, open chan struct{}
	once          sync.Once
	mu            sync.Mutex
	sizes         []int
}

func hold(v *impostor, answer func(inputs []string) any) *held {
	h := &held{arrived: make(chan struct{}), open: make(chan struct{})}
	v.lie(signPath, func(w http.ResponseWriter, r *http.Request) {
		inputs, _ := asked(r)
		h.mu.Lock()
		h.sizes = append(h.sizes, len(inputs))
		h.mu.Unlock()
		h.once.Do(func() { close(h.arrived); <-h.open })
		reply(w, map[string]any{"data": map[string]any{"batch_results": answer(inputs)}})
	})
	return h
}

// TestQueuedSignaturesShareARequest: each caller gets the signature of its own text.
func TestQueuedSignaturesShareARequest(t *testing.T) {
	private := p256(t)
	v := newImpostor(t, private)
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	h := hold(v, func(inputs []string) any {
		var results []map[string]any
		for _, digest := range inputs {
			results = append(results, map[string]any{"signature": "vault:v1:" + base64.RawURLEncoding.EncodeToString(signSent(private, []byte(digest)))})
		}
		return results
	})
	var callers sync.WaitGroup
	sign := func(text string) {
		callers.Go(func() {
			encoded, err := m.Sign(t.Context(), key, text)
			raw, _ := base64.RawURLEncoding.DecodeString(encoded)
			if err != nil || jwt.SigningMethodES256.Verify(text, raw, private.Public()) != nil {
				t.Errorf("%s: got %q, %v; want its own signature", text, encoded, err)
			}
		})
	}
	sign("first")
	<-h.arrived
	for i := range 300 {
		sign(fmt.Sprintf("text %d", i))
	}
	until(t, "all to queue", func() bool { return m.Queued() == 300 })
	close(h.open)
	callers.Wait()
	if fmt.Sprint(h.sizes) != "[1 256 44]" {
		t.Errorf("got requests of %v texts, want [1 256 44]", h.sizes)
	}
}

// TestRefusedTextFailsAlone: no caller gets a wrong signature, even if Vault returns them in another order than the texts.
func TestRefusedTextFailsAlone(t *testing.T) {
	private := p256(t)
	good := func(digest string) map[string]any {
		return map[string]any{"signature": "vault:v1:" + base64.RawURLEncoding.EncodeToString(signSent(private, []byte(digest)))}
	}
	for _, tc := range []struct {
		name   string
		answer func(digest string) map[string]any
		want   error
	}{
		{"refused", func(string) map[string]any { return map[string]any{"error": "version is too old"} }, broker.ErrVaultUnavailable},
		{"that of another", func(string) map[string]any { return good(string(digestOf([]byte("other")))) }, broker.ErrMintMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newImpostor(t, private)
			m := open(t, knock(t, v.URL))
			key, err := m.Key("ES256")
			if err != nil {
				t.Fatal(err)
			}
			h := hold(v, func(inputs []string) any {
				var results []map[string]any
				for _, digest := range inputs {
					if digest == string(digestOf([]byte("bad"))) {
						results = append(results, tc.answer(digest))
						continue
					}
					results = append(results, good(digest))
				}
				return results
			})
			errs := map[string]error{}
			var mu sync.Mutex
			var callers sync.WaitGroup
			sign := func(text string) {
				callers.Go(func() {
					_, err := m.Sign(t.Context(), key, text)
					mu.Lock()
					defer mu.Unlock()
					errs[text] = err
				})
			}
			sign("first")
			<-h.arrived
			sign("bad")
			sign("other")
			until(t, "both to queue", func() bool { return m.Queued() == 2 })
			close(h.open)
			callers.Wait()
			if errs["first"] != nil || errs["other"] != nil || !errors.Is(errs["bad"], tc.want) {
				t.Errorf("got %v, want only bad to fail, with %v", errs, tc.want)
			}
		})
	}
}

// TestAbandonedTextIsNotSigned: a text whose caller has given up while it was queued never reaches Vault.
func TestAbandonedTextIsNotSigned(t *testing.T) {
	private := p256(t)
	v := newImpostor(t, private)
	m := open(t, knock(t, v.URL))
	key, err := m.Key("ES256")
	if err != nil {
		t.Fatal(err)
	}
	h := hold(v, func(inputs []string) any {
		var results []map[string]any
		for range inputs {
			results = append(results, map[string]any{"signature": "vault:v1:" + base64.RawURLEncoding.EncodeToString(signWith(private, []byte("first")))})
		}
		return results
	})
	first := make(chan error, 1)
	go func() { _, err := m.Sign(t.Context(), key, "first"); first <- err }()
	<-h.arrived
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := m.Sign(ctx, key, "gone"); gone <- err }()
	until(t, "it to queue", func() bool { return m.Queued() == 1 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	close(h.open)
	if err := <-first; err != nil {
		t.Errorf("the first: got %v", err)
	}
	until(t, "nothing to wait", func() bool { return m.Queued() == 0 })
	if got := v.called(signPath); got != 1 {
		t.Errorf("got %d requests, want 1", got)
	}
}
