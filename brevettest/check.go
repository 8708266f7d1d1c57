package brevettest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// Entry is one entry of the ledger, as an auditor reads it.
type Entry struct {
	Index int64
	Kind  string
	ID    string
	Body  map[string]any
}

// Entries reads the whole ledger, in order.
func (db *DB) Entries(t testing.TB) []Entry {
	t.Helper()
	rows, err := Connect(t, db.AdminURL).Query(t.Context(),
		`SELECT index, kind, id::text, convert_from(body, 'UTF8')::jsonb FROM entries ORDER BY index`)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// Check is CheckLedger on this schema.
func (db *DB) Check(t testing.TB) {
	t.Helper()
	CheckLedger(t, db.AdminURL)
}

// CheckLedger holds a ledger to its promises: a gapless index from 0, leaf hashes of the very bytes, and a current
// state that is exactly what the entries say, column by column.
func CheckLedger(t testing.TB, adminURL string) {
	t.Helper()
	conn := Connect(t, adminURL)
	want := replay(t, conn)
	rows, err := conn.Query(t.Context(), `
		SELECT id::text, to_jsonb(i) - '{id,time,status_time,expires_at}'::text[] || jsonb_build_object(
			'time', extract(epoch FROM time)::text, 'status_time', extract(epoch FROM status_time)::text,
			'expires_at', extract(epoch FROM expires_at)::text)
		FROM issuances AS i ORDER BY entry_index`)
	if err != nil {
		t.Fatal(err)
	}
	var id string
	var got map[string]any
	_, err = pgx.ForEachRow(rows, []any{&id, &got}, func() error {
		if diff := cmp.Diff(want[id], got); diff != "" {
			t.Errorf("issuance %s differs from its entries (-entries +table):\n%s", id, diff)
		}
		delete(want, id)
		got = nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range want {
		t.Errorf("request %s has entries and no issuance", id)
	}
}

// replay rebuilds the current state from the entries' bodies alone, and checks the entries on the way.
func replay(t testing.TB, conn *pgx.Conn) map[string]map[string]any {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT index, body, leaf_hash FROM entries ORDER BY index`)
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]map[string]any{}
	var index, next int64
	var raw, leaf []byte
	_, err = pgx.ForEachRow(rows, []any{&index, &raw, &leaf}, func() error {
		if index != next {
			t.Errorf("got index %d, want %d", index, next)
		}
		if want := tlog.RecordHash(raw); !bytes.Equal(leaf, want[:]) {
			t.Errorf("entry %d: leaf hash %x, want %x", index, leaf, want)
		}
		next = index + 1
		var body entryBody
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Fatalf("entry %d: %v", index, err)
		}
		body.applyTo(t, state, index)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	if err := conn.QueryRow(t.Context(), `SELECT size FROM ledger_head`).Scan(&size); err != nil {
		t.Fatal(err)
	}
	if size != next {
		t.Errorf("the head counts %d entries, there are %d", size, next)
	}
	return state
}

// entryBody is what an auditor's program knows about bodies.
type entryBody struct {
	Kind, ID, Status, Detail string
	Version                  int
	Time                     time.Time
	Expires                  *time.Time
	Subject                  struct {
		SPIFFEID    string `json:"spiffe_id"`
		TrustDomain string `json:"trust_domain"`
		SVID        string
		Thumbprint  string
	}
	Request struct {
		Scope, Task, Reason, Digest string
		Params                      map[string]any
		TTL                         float64
		IdempotencyKey              *string `json:"idempotency_key"`
	}
	Decision struct {
		Outcome, Code, Explanation, Authority, Resource, Catalogue string
		Params                                                     map[string]any
		TTL                                                        float64
		Clamps                                                     []struct{ Bound string }
		Policies                                                   []any
		Approval                                                   *struct {
			Group  string
			Quorum float64
		}
	}
	Intent *struct {
		Kind, Audience string
		KeyID          string `json:"key_id"`
		ClaimsDigest   string `json:"claims_digest"`
	}
}

func (b *entryBody) applyTo(t testing.TB, state map[string]map[string]any, index int64) {
	t.Helper()
	switch before := state[b.ID]; {
	case b.Version != 1:
		t.Errorf("entry %d has version %d", index, b.Version)
	case b.Kind == "call.refused":
	case b.Kind == "issuance.failed" && before != nil && before["status"] == "issued":
		before["status"], before["status_detail"], before["status_time"] = "failed", b.Detail, epoch(&b.Time)
		before["idempotency_key"] = nil
	case b.Kind == "issuance.failed" || before != nil:
		t.Errorf("entry %d (%s) does not follow from the entries before it", index, b.Kind)
	default:
		state[b.ID] = b.row(index)
	}
}

// row is the line of issuances that an entry stands for, as Postgres writes it in JSON.
func (b *entryBody) row(index int64) map[string]any {
	params := b.Request.Params
	if b.Decision.Params != nil {
		params = b.Decision.Params
	}
	clamps := []any{}
	for _, c := range b.Decision.Clamps {
		clamps = append(clamps, c.Bound)
	}
	row := map[string]any{
		"entry_index": float64(index), "time": epoch(&b.Time), "expires_at": epoch(b.Expires),
		"trust_domain": b.Subject.TrustDomain, "spiffe_id": b.Subject.SPIFFEID, "svid_kind": b.Subject.SVID,
		"thumbprint": b.Subject.Thumbprint, "task": b.Request.Task, "scope": b.Request.Scope,
		"authority": b.Decision.Authority, "resource": b.Decision.Resource, "params": params,
		"reason": b.Request.Reason, "ttl_asked": b.Request.TTL, "ttl": b.Decision.TTL,
		"decision": b.Decision.Outcome, "decision_code": b.Decision.Code, "explanation": b.Decision.Explanation,
		"policies": b.Decision.Policies, "clamps": clamps, "catalogue": b.Decision.Catalogue,
		"status": b.Status, "status_detail": nil, "status_time": epoch(&b.Time),
		"approval_group": nil, "approval_quorum": nil,
		"credential_kind": nil, "audience": nil, "key_id": nil, "claims_digest": nil,
		"request_digest": `\x` + b.Request.Digest, "idempotency_key": nil,
	}
	if b.Request.IdempotencyKey != nil {
		row["idempotency_key"] = *b.Request.IdempotencyKey
	}
	if a := b.Decision.Approval; a != nil {
		row["approval_group"], row["approval_quorum"] = a.Group, a.Quorum
	}
	if i := b.Intent; i != nil {
		row["credential_kind"], row["audience"], row["key_id"] = i.Kind, i.Audience, i.KeyID
		row["claims_digest"] = `\x` + i.ClaimsDigest
	}
	return row
}

// epoch is a time as extract(epoch) writes it: seconds with six digits.
func epoch(at *time.Time) any {
	if at == nil {
		return nil
	}
	return fmt.Sprintf("%d.%06d", at.Unix(), at.Nanosecond()/1000)
}
