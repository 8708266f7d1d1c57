package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// mintingPaths are the paths of the calls that make a database login.
var mintingPaths = []string{"auth/token/create/", "database/creds/"}

// wrongStatus makes Vault carry out a call and then answer as a standby, an overloaded or a broken server does. The credential
// that Vault made is never delivered, and expires.
func (w *world) wrongStatus(t *testing.T) string {
	s, k, tried := w.sandbox(t), kindCalled("database"), 0
	statuses := []int{429, 473, 500, 502, 503}
	if !*all {
		statuses = statuses[:1]
	}
	for _, path := range mintingPaths {
		for _, status := range statuses {
			r := w.startReplica(t, &fault{Spoils: path, Says: status})
			if got := w.ask(t, r, s.id, k); got.status != http.StatusServiceUnavailable {
				t.Errorf("%s answers %d: got status %d %s, want 503", path, status, got.status, got.Code)
			}
			r.stop(t)
			tried++
		}
	}
	return fmt.Sprintf("%d answers, 503 each time", tried)
}

// cutAnswers cuts the answers that hold a token or a secret, after each number of bytes, until a whole answer gets through.
func (w *world) cutAnswers(t *testing.T) string {
	s, k, cut := w.sandbox(t), kindCalled("database"), 0
	most := 20
	if *all {
		most = 4096
	}
	for _, path := range mintingPaths {
		r := w.startReplica(t, &fault{Spoils: path})
		n := 0
		for ; n < most; n++ {
			got := w.ask(t, r, s.id, k)
			if got.has() {
				break
			}
			if got.status != http.StatusServiceUnavailable {
				t.Errorf("%s cut after %d bytes: got status %d %s, want 503", path, n, got.status, got.Code)
			}
		}
		if *all && n == most {
			t.Errorf("%s: no answer of %d bytes gets through", path, n)
		}
		cut += n
		r.stop(t)
	}
	return fmt.Sprintf("%d cuts, 503 each time", cut)
}

// busyReaders lists the record as fast as it can while credentials are revoked.
func (w *world) busyReaders(t *testing.T) string {
	s := w.sandbox(t)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 24 {
		readers.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.stack.URL+"/v1/issuances?limit=500", nil)
				if err != nil {
					return
				}
				if resp, err := s.client.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			}
		})
	}
	var took []time.Duration
	orders := 20
	if *all {
		orders = 100
	}
	for range orders {
		got := s.must(t, kindCalled("jwt"))
		began := time.Now()
		order := map[string]any{"id": got.ID, "reason": "test"}
		if ended, err := call(t.Context(), w.admin, s.stack.URL+"/v1/revocations", order); err != nil || ended.status != http.StatusOK {
			t.Errorf("revoking: status %d %s, %v", ended.status, ended.Code, err)
		}
		took = append(took, time.Since(began))
	}
	stop()
	readers.Wait()
	slices.Sort(took)
	if p99 := took[orders-1-orders/100]; p99 > patience(500*time.Millisecond) {
		t.Errorf("revoking takes %s at p99", p99)
	}
	return fmt.Sprintf("revoking meanwhile takes %s at p99", took[orders-1-orders/100].Round(time.Millisecond))
}
