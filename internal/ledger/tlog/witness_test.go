package tlog_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

func TestConsistencyProofVerifies(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	l := db.Ledger(t)
	if _, _, _, err := l.Growth(t.Context(), 0); !errors.Is(err, audit.ErrNotYet) {
		t.Errorf("got %v of an empty ledger, want %v", err, audit.ErrNotYet)
	}
	grow(t, l, 5)
	sealed(t, l, n)
	five := testkit.LastCheckpoint(t, l, n)
	grow(t, l, 4)
	sealed(t, l, n)
	nine := testkit.LastCheckpoint(t, l, n)
	for from, want := range map[int64]audit.Checkpoint{5: five, 9: nine} {
		size, signed, proof, err := l.Growth(t.Context(), from)
		if err != nil || size != 9 || !strings.HasPrefix(signed, nine.String()) {
			t.Fatalf("from %d: got %d, %q, %v, want the last checkpoint", from, size, signed, err)
		}
		if err := tlog.CheckTree(proof, 9, nine.Hash, from, want.Hash); err != nil {
			t.Errorf("from %d: %v", from, err)
		}
	}
	for _, from := range []int64{0, 10} {
		if size, _, proof, err := l.Growth(t.Context(), from); err != nil || size != 9 || len(proof) != 0 {
			t.Errorf("from %d: got %d, %v, %v, want no proof", from, size, proof, err)
		}
	}
}

func TestCosignaturesAreKept(t *testing.T) {
	t.Parallel()
	db, n := testkit.NewDB(t), newNotary(t)
	l := db.Ledger(t)
	var plain [3]string
	for i := range plain {
		grow(t, l, 1)
		sealed(t, l, n)
		var err error
		if plain[i], err = l.Checkpoint(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		witness string
		size    int64
		line    string
	}{
		{"b", 1, line},
		{"a", 1, strings.Replace(line, "AAAA", "BBBB", 1)},
		{"b", 2, line},
		{"b", 2, strings.Replace(line, "AAAA", "CCCC", 1)}, // the first one stays
	} {
		if err := l.Cosign(t.Context(), c.witness, c.size, c.line); err != nil {
			t.Fatal(err)
		}
	}
	for witnesses, want := range []string{plain[2], plain[1] + line, plain[0] + strings.Replace(line, "AAAA", "BBBB", 1) + line} {
		if got, err := l.Checkpoint(t.Context(), witnesses); err != nil || got != want {
			t.Errorf("with %d witnesses: got %q, %v, want %q", witnesses, got, err, want)
		}
	}
	if got, err := l.Checkpoint(t.Context(), 3); !errors.Is(err, audit.ErrNotYet) {
		t.Errorf("got %q, %v, want %v", got, err, audit.ErrNotYet)
	}

	as := map[string]*pgx.Conn{
		"broker":  testkit.Connect(t, db.BrokerURL),
		"auditor": testkit.Connect(t, db.AuditorURL),
		"owner":   testkit.Connect(t, db.AdminURL),
	}
	const insert = `INSERT INTO cosignatures (size, witness, line, time) VALUES ($1, $2, $3, now())`
	for _, tc := range []struct {
		who, sql, want string
		args           []any
	}{
		{"broker", insert, "", []any{3, "c", line}},
		{"broker", insert, noParent, []any{4, "c", line}},
		{"broker", insert, notUnique, []any{1, "a", line}},
		{"broker", insert, violation, []any{3, "C", line}},
		{"broker", insert, violation, []any{3, "c", line + line}},
		{"broker", insert, violation, []any{3, "c", "\n" + line}},
		{"broker", insert, violation, []any{3, "c", strings.TrimSpace(line)}},
		{"broker", insert, violation, []any{3, "c", strings.Replace(line, "witness.", "witness+", 1)}},
		{"broker", insert, violation, []any{3, "c", strings.Replace(line, "AAAA", "", 1)}},
		{"broker", insert, violation, []any{3, "c", strings.Replace(line, "witness", strings.Repeat("w", 1024), 1)}},
		{"broker", `UPDATE cosignatures SET line = line`, noRight, nil},
		{"broker", `DELETE FROM cosignatures`, noRight, nil},
		{"broker", `TRUNCATE cosignatures`, noRight, nil},
		{"auditor", `SELECT FROM cosignatures`, "", nil},
		{"auditor", insert, noRight, []any{3, "c", line}},
		{"owner", `UPDATE cosignatures SET line = line`, noRight, nil},
		{"owner", `DELETE FROM cosignatures`, noRight, nil},
		{"owner", `TRUNCATE cosignatures`, noRight, nil},
		{"owner", `TRUNCATE checkpoints CASCADE`, noRight, nil},
	} {
		if got := refusedBy(t, as[tc.who], tc.sql, tc.args...); got != tc.want {
			t.Errorf("%s: %s %q: got SQLSTATE %q, want %q", tc.who, tc.sql, tc.args, got, tc.want)
		}
	}
}
