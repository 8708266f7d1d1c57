package audit

import (
	"iter"
	"slices"
	"time"
)

// Items are a ledger as it is read for Verify, from one snapshot. First comes the head, then the entries that
// tell of pruned ones, then the tiles above level 0. Then come, by the index of the entry that they go with, each tile of level 0 before its first entry, each entry, the row of
// issuances with its index, and the checkpoint that it is the last entry of. The rows of the other tables are last.
//
// The order is part of what is verified: what comes out of it is taken for damage. An error ends the items.
type Items = iter.Seq2[Item, error]

// Item is one of Head, Pruned, Tile, Entry, Row and SignedCheckpoint.
type Item interface{ item() }

// Head is how many entries the ledger says that it has.
type Head struct {
	Size int64 `json:"size"`
}

// Pruned is an entry of the kind ledger.pruned, which comes in its place too: what it tells has to be known before.
type Pruned struct {
	Index int64  `json:"index"`
	Body  []byte `json:"body"`
}

// Tile is a whole tile of the tree over the entries, as in c2sp.org/tlog-tiles, with the root of what it holds.
type Tile struct {
	Level  int    `json:"level"`
	Number int64  `json:"number"`
	Hashes []byte `json:"hashes"`
	Root   []byte `json:"root"`
}

// Entry is one event: its body, and the columns beside it.
type Entry struct {
	Index    int64     `json:"index"`
	ID       string    `json:"id"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Body     []byte    `json:"-"`
	LeafHash []byte    `json:"leaf_hash"`
}

// SignedCheckpoint is a checkpoint as the ledger keeps it: the signed note, and the columns beside it.
type SignedCheckpoint struct {
	Size int64     `json:"size"`
	Root []byte    `json:"root"`
	Time time.Time `json:"time"`
	Note string    `json:"note"`
}

// Row is a row of a table that follows from the entries: its values as text, in the order of the table's columns. Times
// are RFC 3339 in UTC, bytes hexadecimal, arrays JSON.
type Row struct {
	Table  *Table
	Values []string
}

// Null is the text of a value that there is none of. No text in Postgres holds it.
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
	// Key is how many of the columns, from the first, name a row.
	Key int
	// index is the place of the column that names the entry, -1 where there is none.
	index int
}

func table(name string, key int, columns ...string) *Table {
	return &Table{name, columns, key, slices.Index(columns, "entry_index")}
}

// The tables that follow from the entries. Of issuances, what can change comes after what cannot.
var (
	Issuances = table("issuances", 1, slices.Concat(lasting, changing)...)
	TaskEnds  = table("task_ends", 2, "spiffe_id", "task", "ends_at", "ended", "since", "command", "entry_index")

	Quarantines = table("quarantines", 1, "spiffe_id", "since", "actor", "reason", "command", "entry_index")
	People      = table("people", 1, "id", "name", "handle", "groups", "said_at", "entry", "entry_index")
	Votes       = table("votes", 3, "request", "voter", "verdict", "covers", "time", "note", "entry_index", "credential", "assertion")
	Passkeys    = table("passkeys", 1, "id", "person", "credential", "public_key", "digest", "algorithm", "sign_count", "name",
		"time", "entry_index", "removed_at", "removed_index")
	Uses = table("uses", 1, "issuance", "began", "calls", "last_used_at", "time", "entry_index")

	CatalogueChanges = table("catalogue_changes", 1, "id", "kind", "digest", "base", "version", "proposal", "proposer",
		"actor", "reason", "time", "entry_index")
	CatalogueHead = table("catalogue_head", 1, "only_row", "version", "digest", "change")
	Catalogues    = table("catalogues", 1, "digest", "names", "contents")

	// Tables are those whose rows come last.
	Tables = []*Table{TaskEnds, Quarantines, People, Passkeys, Votes, Uses, CatalogueChanges, CatalogueHead, Catalogues}
)

var (
	lasting = []string{
		"id", "entry_index", "time", "trust_domain", "spiffe_id", "svid_kind", "thumbprint", "task", "scope", "authority",
		"resource", "params", "reason", "ttl_asked", "ttl", "decision", "decision_code", "explanation", "policies", "clamps",
		"catalogue", "expires_at", "approval_group", "approval_quorum", "break_glass", "credential_kind", "audience", "key_id",
		"claims_digest", "vault_path", "leased", "static", "one_shot", "request_digest", "canonical", "approves", "jkt",
		"parent", "status_list", "status_index", "on_behalf_of", "on_behalf_groups",
	}
	changing = []string{
		"status", "status_detail", "status_time", "actor", "idempotency_key", "vault_accessor", "vault_lease",
		"credential_name", "secret_digest", "votes", "redemptions", "redeemed_by", "remembered",
	}
)
