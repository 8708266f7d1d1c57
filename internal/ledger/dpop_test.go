package ledger_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func proof(name string) dpop.Proof {
	return dpop.Proof{Digest: sha256.Sum256([]byte(name)), Until: time.Now().Add(time.Minute)}
}

// T8: if a hundred callers use one proof at once, on two replicas, one succeeds.
func TestProofIsUsedOnce(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []broker.DPoPReplayCache{db.Ledger(t), db.Ledger(t)}
	var accepted, replayed atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			switch err := replicas[i%2].UseProof(t.Context(), proof("one")); {
			case err == nil:
				accepted.Add(1)
			case errors.Is(err, dpop.ErrReplayed):
				replayed.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 1 || replayed.Load() != 99 {
		t.Errorf("got %d accepted and %d replayed, want 1 and 99", accepted.Load(), replayed.Load())
	}
	if err := replicas[0].UseProof(t.Context(), proof("another")); err != nil {
		t.Errorf("another proof: got %v", err)
	}
}

func TestExpiredProofsArePruned(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
	exec(t, owner, `
		INSERT INTO dpop_seen SELECT sha256(n::text::bytea), now() - interval '61 s' FROM generate_series(1, 2500) AS n`)
	exec(t, owner, `INSERT INTO dpop_seen VALUES (sha256('recent'), now() - interval '50 s')`)
	if err := l.UseProof(t.Context(), proof("new")); err != nil {
		t.Fatal(err)
	}
	if err := l.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM dpop_seen`).Scan(&left); err != nil || left != 2 {
		t.Errorf("got %d left, %v; want the two that matter", left, err)
	}
	if err := l.UseProof(t.Context(), proof("recent")); !errors.Is(err, dpop.ErrReplayed) {
		t.Errorf("got %v, want %v", err, dpop.ErrReplayed)
	}
}

func TestProofIsRefusedWithoutTheStore(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, owner := db.Ledger(t), testkit.Connect(t, db.AdminURL)
	exec(t, owner, `REVOKE INSERT ON dpop_seen FROM brevet_broker`)
	if err := l.UseProof(t.Context(), proof("one")); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
	exec(t, owner, `GRANT INSERT ON dpop_seen TO brevet_broker`)
	l.Close()
	if err := l.UseProof(t.Context(), proof("two")); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("closed: got %v, want %v", err, broker.ErrLedgerUnavailable)
	}
}

func BenchmarkUseProof(b *testing.B) {
	l := testkit.NewDB(b).Ledger(b)
	for i := 0; b.Loop(); i++ {
		if err := l.UseProof(b.Context(), proof(fmt.Sprint(i))); err != nil {
			b.Fatal(err)
		}
	}
}

// I4: an approved credential is issued for the key that people were shown, whoever writes it.
func TestApprovalIsForOneKey(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	request := approved(t, l)
	forged := redeems(request)
	forged.Request.JKT = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
	if _, err := l.Begin(t.Context(), forged); !errors.Is(err, record.ErrUnrecordable) {
		t.Errorf("for another key: got %v, want %v", err, record.ErrUnrecordable)
	}
	begin(t, l, redeems(request))
}
