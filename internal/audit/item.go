package audit

import (
	"iter"
	"slices"
	"time"
)

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
	Uses = table("uses", 1, "issuance", "began", "calls", "last_used_at", "time", "entry_index")

	CatalogueChanges = table("catalogue_changes", 1, "id", "kind", "digest", "base", "version", "proposal", "proposer",
		"actor", "reason", "time", "entry_index")
	CatalogueHead = table("catalogue_head", 1, "only_row", "version", "digest", "change")
	Catalogues    = table("catalogues", 1, "digest", "names", "contents")

	// Tables are the tables whose rows come last.
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
