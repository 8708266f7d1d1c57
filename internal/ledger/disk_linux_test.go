package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// TestFullDiskTakesNothingNewUntilItHasRoom fills the disk of a Postgres. It goes on with pages that have room, and then refuses
// until there is room again.
func TestFullDiskTakesNothingNewUntilItHasRoom(t *testing.T) {
	d := testkit.NewSmallDisk(t)
	l := open(t, d.DB.BrokerURL)
	kept := 0
	d.Fill(t)
	var full error
	for rec := range records(1000) {
		if _, full = l.Begin(t.Context(), rec); full != nil {
			break
		}
		kept++
	}
	if !errors.Is(full, broker.ErrLedgerFull) || !strings.Contains(full.Error(), "53100 (disk full)") {
		t.Fatalf("after %d records: got %v, want ErrLedgerFull", kept, full)
	}
	keepsQuiet(t, full, d.DB.BrokerURL)
	for range 3 {
		if _, err := l.Begin(t.Context(), allowed(nil)); !errors.Is(err, broker.ErrLedgerFull) || !errors.Is(err, broker.ErrLedgerUnavailable) {
			t.Errorf("got %v, want ErrLedgerFull", err)
		}
		if err := l.Refuse(t.Context(), broker.Refusal{Time: moment(), Code: "unauthenticated"}); !errors.Is(err, broker.ErrLedgerFull) {
			t.Errorf("a refusal: got %v, want ErrLedgerFull", err)
		}
		time.Sleep(700 * time.Millisecond) // longer than the disk is asked again
	}
	if err := l.Ready(t.Context()); !errors.Is(err, broker.ErrLedgerFull) {
		t.Errorf("Ready: got %v, want ErrLedgerFull", err)
	}
	if err := l.HasRoom(t.Context()); !errors.Is(err, broker.ErrLedgerFull) {
		t.Errorf("HasRoom: got %v, want ErrLedgerFull", err)
	}
	if s, err := l.Status(t.Context()); err != nil || !s.Full {
		t.Errorf("Status: got full %t, %v", s.Full, err)
	}
	if got := len(d.DB.Entries(t)); got != kept {
		t.Errorf("got %d entries, want the %d that were confirmed", got, kept)
	}
	d.Free(t)
	for began := time.Now(); l.HasRoom(t.Context()) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 15*time.Second {
			t.Fatal("it does not find the room")
		}
	}
	begin(t, l, allowed(nil))
	if err := l.Ready(t.Context()); err != nil {
		t.Errorf("Ready with room: %v", err)
	}
	if got := len(d.DB.Entries(t)); got != kept+1 {
		t.Errorf("got %d entries, want %d", got, kept+1)
	}
	d.DB.Check(t)
}
