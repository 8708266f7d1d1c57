package testkit

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/mod/sumdb/note"
)

// Origin is the name of the log of a NewNotary.
const Origin = "brevet.test/ledger"

// Notary signs checkpoints with a key of this process.
type Notary struct {
	signer note.Signer
	// Public are the keys that a checkpoint may be signed with. The notary signs with the first.
	Public []string
}

// NewNotary returns a notary for the log with a name.
func NewNotary(t testing.TB, name string) Notary {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return Notary{signer, []string{public}}
}

// Origin implements tlog.Notary.
func (n Notary) Origin() string { return n.signer.Name() }

// Keys implements tlog.Notary.
func (n Notary) Keys(context.Context) ([]string, error) { return n.Public, nil }

// Sign implements tlog.Notary.
func (n Notary) Sign(_ context.Context, text string) ([]byte, error) {
	return note.Sign(&note.Note{Text: text}, n.signer)
}

// Verifiers returns the key that the notary signs with.
func (n Notary) Verifiers(t testing.TB) note.Verifiers {
	t.Helper()
	v, err := note.NewVerifier(n.Public[0])
	if err != nil {
		t.Fatal(err)
	}
	return note.VerifierList(v)
}

// Sealed makes a ledger check once for something to sign.
func Sealed(t testing.TB, l *ledger.Ledger, n Notary) {
	t.Helper()
	if _, err := l.SealOnce(t.Context(), n); err != nil {
		t.Fatalf("SealOnce: %v", err)
	}
}

// LastCheckpoint returns the last checkpoint that a ledger has signed.
func LastCheckpoint(t testing.TB, l *ledger.Ledger, n Notary) audit.Checkpoint {
	t.Helper()
	signed, err := l.Checkpoint(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := audit.OpenCheckpoint([]byte(signed), n.Origin(), n.Verifiers(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Cosignature has the form of a cosignature.
var Cosignature = "— witness.example/w AAAA" + strings.Repeat("A", 98) + "==\n"

// Grow appends this many entries.
func Grow(t testing.TB, l *ledger.Ledger, entries int) {
	t.Helper()
	var wg sync.WaitGroup
	for range entries {
		wg.Go(func() {
			if err := l.Refuse(t.Context(), broker.Refusal{Time: RecordTime(), Code: "invalid"}); err != nil {
				t.Errorf("Refuse: %v", err)
			}
		})
	}
	wg.Wait()
}

// Tamper changes a ledger as only the owner of the database can.
func Tamper(t testing.TB, db *DB, statements ...string) {
	t.Helper()
	owner := Connect(t, db.AdminURL)
	for _, sql := range append([]string{`SET session_replication_role = replica`}, statements...) {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// HangUp closes all connections of the broker to this schema.
func HangUp(t testing.TB, db *DB) {
	t.Helper()
	parsed, err := pgx.ParseConfig(db.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Connect(t, db.AdminURL).Exec(t.Context(),
		`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1`, parsed.User)
	if err != nil {
		t.Fatal(err)
	}
}

// RefusedBy runs a statement in a transaction that is rolled back, and returns the SQLSTATE it was refused with.
func RefusedBy(t testing.TB, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), sql, args...)
	if err == nil {
		return ""
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		t.Fatalf("%s: %v", sql, err)
	}
	return refused.Code
}
