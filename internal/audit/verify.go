// Package audit is for an auditor who trusts neither the database nor the broker. It defines the format of the log's
// checkpoints and proofs, and it checks the entries, the Merkle tree over them and the current state against each other.
// The log is a tree as in RFC 6962, with checkpoints as in c2sp.org/tlog-checkpoint.
//
// It must never open a file or a connection, and never take a value from the code that writes the ledger: it reads entries
// as anybody could who knows only their documentation.
package audit

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"
)

// Config holds what an auditor knows about a log from other sources.
type Config struct {
	// Keys are the keys that sign the log's checkpoints. Each has the name that the log had when the key was in use. Without
	// keys, Verify checks no signatures.
	Keys note.Verifiers
	// Trusted are checkpoints that the auditor has opened before and kept.
	Trusted []Checkpoint
	// Progress, unless nil, is called from time to time with the number of entries done and in total.
	Progress func(done, of int64)
}

// batchSize is the approximate number of items in a batch.
const batchSize = 512

// Verify reads a ledger and reports what is wrong with it. It returns an error only if reading fails or ctx ends, and then
// no report.
func Verify(ctx context.Context, items Items, cfg Config) (Report, error) {
	group, ctx := errgroup.WithContext(ctx)
	todo, ordered := make(chan *batch), make(chan *batch, 4*runtime.GOMAXPROCS(0))
	group.Go(func() error {
		defer close(todo)
		defer close(ordered)
		return split(items, func(b *batch) error {
			for _, to := range []chan *batch{todo, ordered} {
				select {
				case to <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			for b := range todo {
				b.parse()
			}
			return nil
		})
	}
	v := &verification{cfg: cfg, state: newState(), evidence: newEvidence(cfg)}
	for b := range ordered {
		<-b.parsed
		v.take(b)
	}
	if err := group.Wait(); err != nil {
		return Report{}, fmt.Errorf("reading the ledger: %w", err)
	}
	return v.report(), nil
}

// batch holds some items in order, and the parsed form of each entry among them.
type batch struct {
	items  []Item
	made   []*parsed // by place of the item
	parsed chan struct{}
}

// split makes batches. It never separates an entry from the items that follow it.
func split(items Items, send func(*batch) error) error {
	b := &batch{parsed: make(chan struct{})}
	for item, err := range items {
		if err != nil {
			return err
		}
		if _, is := item.(Entry); is && len(b.items) >= batchSize {
			if err := send(b); err != nil {
				return err
			}
			b = &batch{parsed: make(chan struct{})}
		}
		b.items = append(b.items, item)
	}
	return send(b)
}

// parsed is an entry, its body, and the defects that can be found without other entries.
type parsed struct {
	entry   Entry
	body    *body // nil if it cannot be read
	hash    tlog.Hash
	flaws   []Finding
	row     []string // of issuances, next to the entry
	differs []Finding
}

// parse does the work that does not need earlier entries.
func (b *batch) parse() {
	defer close(b.parsed)
	b.made = make([]*parsed, len(b.items))
	var last *parsed
	for i, item := range b.items {
		switch item := item.(type) {
		case Entry:
			last = parseEntry(item)
			b.made[i] = last
		case Row:
			if last == nil || last.row != nil || last.body == nil || !last.body.begins() || item.Table != Issuances ||
				item.Values[0] != last.body.ID || item.index() != last.entry.Index {
				continue // it is not the row of issuances that the entry creates
			}
			b.made[i], last.row = last, item.Values
			// Compare the columns that cannot change.
			want := last.body.issuance(last.entry.Index)[:len(lasting)]
			last.differs = Issuances.differ(last.entry.Index, want, last.row, 0)
		}
	}
}

func parseEntry(e Entry) *parsed {
	p := &parsed{entry: e, hash: tlog.RecordHash(e.Body)}
	body := &body{}
	// In the canonical form, which is checked separately, no name occurs twice.
	if err := json.Unmarshal(e.Body, body, jsontext.AllowDuplicateNames(true)); err != nil {
		p.flaw(Unreadable, "", "its body is not a valid entry: "+show(err.Error()))
		return p
	}
	if !canonical(e.Body) {
		p.flaw(NotCanonical, "", "its body is not in canonical form")
	}
	p.body = body
	if e.ID != body.ID {
		p.flaw(ColumnDiffers, "entries.id", "the column has "+show(e.ID)+", the body says "+show(body.ID))
	}
	if e.Kind != body.Kind {
		p.flaw(ColumnDiffers, "entries.kind", "the column has "+show(e.Kind)+", the body says "+show(body.Kind))
	}
	if at := instant(e.Time); at != body.Time && !same("time", at, body.Time) {
		p.flaw(ColumnDiffers, "entries.time", "the column has "+show(at)+", the body says "+show(body.Time))
	}
	return p
}

func (p *parsed) flaw(code Code, where, what string) {
	p.flaws = append(p.flaws, Finding{Code: code, Index: p.entry.Index, Where: where, What: what})
}

// verification is the state of Verify.
type verification struct {
	cfg      Config
	size     int64 // that the head claims
	count    int64
	state    *state
	evidence *evidence
	flaws    findings
}

func (v *verification) take(b *batch) {
	for i, item := range b.items {
		switch item := item.(type) {
		case Head:
			v.size = item.Size
		case Pruned:
			v.evidence.prunes.add(item)
			v.state.pruned = v.evidence.prunes.beyond
		case Tile:
			v.evidence.tile(item)
		case Entry:
			p := b.made[i]
			v.count++
			v.flaws.add(p.flaws...)
			placed := v.evidence.entry(p.entry, p.hash)
			v.evidence.prunes.take(p.entry, p.body)
			if placed && p.body != nil {
				v.state.apply(p)
			} else if p.row != nil {
				v.state.stray(p.row)
			}
		case SignedCheckpoint:
			v.evidence.checkpoint(item)
		case Row:
			switch {
			case b.made[i] != nil: // already compared with its entry
			case item.Table == Issuances:
				v.state.stray(item.Values)
			default:
				v.state.table(item)
			}
		}
	}
	if v.cfg.Progress != nil {
		v.cfg.Progress(v.count+v.evidence.prunes.dropped(), v.size)
	}
}

func (v *verification) report() Report {
	v.state.end()
	v.evidence.end(v.size)
	r := Report{
		Entries: v.count + v.evidence.prunes.dropped(), Sealed: v.evidence.good, Checkpoints: v.evidence.holds,
		Pruned: v.evidence.prunes.report(), Signatures: v.cfg.Keys != nil,
	}
	// Sort the findings of all checks, and keep the first MaxFindings.
	r.Findings = []Finding{}
	for _, f := range []findings{v.evidence.entries, v.flaws, v.state.steps, v.evidence.others, v.state.projections} {
		r.Findings = append(r.Findings, f.all...)
		r.More += f.more
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Index, b.Index))
	})
	if beyond := len(r.Findings) - MaxFindings; beyond > 0 {
		r.Findings, r.More = r.Findings[:MaxFindings], r.More+beyond
	}
	return r
}

// Items is a ledger as Verify reads it, from one snapshot. The head comes first, then the entries that describe pruned
// ranges, then the tiles above level 0. The items of each entry follow, in the order of the entries' indexes: each tile of
// level 0 before its first entry, then the entry, its row of issuances, and the checkpoint that covers it last. The rows
// of the other tables come last.
//
// The order is part of what is verified: an item out of order counts as damage. An error ends the items.
type Items = iter.Seq2[Item, error]

// Item is one of Head, Pruned, Tile, Entry, Row and SignedCheckpoint.
type Item interface{ item() }

// Head is the number of entries that the ledger claims to have.
type Head struct {
	Size int64 `json:"size"`
}

// Pruned is an entry of the kind ledger.pruned, which also comes at its own place: the entries before it need its data.
type Pruned struct {
	Index int64  `json:"index"`
	Body  []byte `json:"body"`
}

// Tile is a whole tile of the tree over the entries, as in c2sp.org/tlog-tiles, with the root of its hashes.
type Tile struct {
	Level  int    `json:"level"`
	Number int64  `json:"number"`
	Hashes []byte `json:"hashes"`
	Root   []byte `json:"root"`
}

// Entry is one event: its body, and the columns that are stored beside it.
type Entry struct {
	Index    int64     `json:"index"`
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Body     []byte    `json:"-"`
	LeafHash []byte    `json:"leaf_hash"`
}

// SignedCheckpoint is a checkpoint as the ledger stores it: the signed note, and the columns that are stored beside it.
type SignedCheckpoint struct {
	Size int64     `json:"size"`
	Root []byte    `json:"root"`
	Time time.Time `json:"time"`
	Note string    `json:"note"`
}

// Row is a row of a table that follows from the entries, with its values as text in the order of the table's columns.
// Times are RFC 3339 in UTC, bytes are hexadecimal, and arrays are JSON.
type Row struct {
	Table  *Table
	Values []string
}

// Null stands for a missing value. No text in Postgres can hold it.
const Null = "\x00"

func (Head) item()             {}
func (Pruned) item()           {}
func (Tile) item()             {}
func (Entry) item()            {}
func (SignedCheckpoint) item() {}
func (Row) item()              {}

// Table is a table that follows from the entries.
type Table struct {
	Name    string
	Columns []string
	// Key is the number of leading columns that identify a row.
	Key int
	// index is the position of the column that names the entry, or -1 if there is none.
	index int
}

func table(name string, key int, columns ...string) *Table {
	return &Table{name, columns, key, slices.Index(columns, "entry_index")}
}

// These are the tables that follow from the entries. In issuances, the columns that can change come after the others.
var (
	Issuances = table("issuances", 1, slices.Concat(lasting, changing)...)
	TaskEnds  = table("task_ends", 2, "spiffe_id", "task", "ends_at", "ended", "since", "command", "entry_index")

	Quarantines = table("quarantines", 1, "spiffe_id", "since", "actor", "reason", "command", "entry_index")
	People      = table("people", 1, "id", "name", "handle", "groups", "said_at", "entry", "entry_index")
	Votes       = table("votes", 3, "request", "voter", "verdict", "covers", "time", "note", "entry_index", "credential", "assertion")
	Passkeys    = table("passkeys", 1, "id", "person", "credential", "public_key", "digest", "algorithm", "sign_count", "name",
		"time", "entry_index", "removed_at", "removed_index")
	Uses        = table("uses", 1, "issuance", "began", "calls", "last_used_at", "time", "entry_index")
	CallReports = table("call_reports", 1, "id", "trust_domain", "spiffe_id", "task", "session", "sequence", "since", "until", "final",
		"time", "entry_index")

	CatalogueChanges = table("catalogue_changes", 1, "id", "kind", "digest", "base", "version", "proposal", "proposer",
		"actor", "reason", "time", "entry_index")
	CatalogueHead = table("catalogue_head", 1, "only_row", "version", "digest", "change")
	Catalogues    = table("catalogues", 1, "digest", "names", "contents")

	// Tables are the tables whose rows come last.
	Tables = []*Table{TaskEnds, Quarantines, People, Passkeys, Votes, Uses, CallReports, CatalogueChanges, CatalogueHead, Catalogues}
)

var (
	lasting = []string{
		"id", "entry_index", "time", "trust_domain", "spiffe_id", "svid_kind", "thumbprint", "task", "scope", "authority",
		"resource", "params", "reason", "ttl_asked", "ttl", "decision", "decision_code", "explanation", "policies", "clamps",
		"catalogue", "expires_at", "approval_group", "approval_quorum", "break_glass", "credential_kind", "audience", "key_id",
		"claims_digest", "vault_path", "leased", "static", "one_shot", "request_digest", "canonical", "approves", "jkt",
		"parent", "status_list", "status_index", "on_behalf_of", "on_behalf_groups", "context",
	}
	changing = []string{
		"status", "status_detail", "status_time", "actor", "idempotency_key", "vault_accessor", "vault_lease",
		"credential_name", "secret_digest", "votes", "redemptions", "redeemed_by", "remembered",
	}
)
