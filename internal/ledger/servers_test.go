package ledger_test

import (
	"errors"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
)

// With a list of servers, the driver looks for one that takes writes. Every pool must find it, also those that only read.
func TestURLMaySelectTheServerThatTakesWrites(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	u, err := url.Parse(db.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("target_session_attrs", "read-write")
	u.RawQuery = query.Encode()
	l, err := ledger.Open(t.Context(), ledger.Config{URL: u.String(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Deadlines(t.Context(), 1); err != nil {
		t.Errorf("reading what is alive: %v", err)
	}
	if _, err := l.Get(t.Context(), uuid.NewString(), everything); err != nil && !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("reading a record: %v", err)
	}
	history, err := ledger.OpenHistory(t.Context(), u.String(), time.Now(), 1)
	if err != nil {
		t.Fatalf("reading the history: %v", err)
	}
	history.Close()
}
