package ledger_test

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	here, there := db.Ledger(t), db.Ledger(t)
	alive, over := sha256.Sum256([]byte("alive")), sha256.Sum256([]byte("over"))
	keep := func(id [32]byte, data string, ends time.Time) {
		t.Helper()
		if err := here.KeepSession(t.Context(), id, []byte(data), ends); err != nil {
			t.Fatal(err)
		}
	}
	keep(alive, "first", time.Now().Add(time.Hour))
	keep(alive, "second", time.Now().Add(time.Hour))
	keep(over, "late", time.Now().Add(-time.Second))

	if got, err := there.Session(t.Context(), alive); err != nil || string(got) != "second" {
		t.Errorf("got %q, %v of another replica, want what was kept last", got, err)
	}
	if got, err := there.Session(t.Context(), over); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %q, %v of a session that is over, want ErrNotFound", got, err)
	}
	if err := here.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := testkit.Connect(t, db.AdminURL).QueryRow(t.Context(), `SELECT count(*) FROM sessions`).Scan(&left); err != nil || left != 1 {
		t.Errorf("got %d sessions, %v after they were pruned, want the one that goes on", left, err)
	}
	if err := there.DropSession(t.Context(), alive); err != nil {
		t.Fatal(err)
	}
	keep(alive, "third", time.Now().Add(time.Hour)) // by a call that was already under way
	if got, err := here.Session(t.Context(), alive); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %q, %v of a session that was dropped, want ErrNotFound", got, err)
	}
}
