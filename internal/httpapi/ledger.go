package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/brevet-dev/brevet/internal/audit"
	. "github.com/brevet-dev/brevet/openapi"
	"golang.org/x/mod/sumdb/tlog"
)

// InclusionProofs is the log that auditors verify. The errors are audit.ErrNotYet for an entry that no checkpoint covers yet, and
// otherwise those of broker.Ledger. Auditors can verify every result without trusting the server.
type InclusionProofs interface {
	// Checkpoint returns the last signed checkpoint with cosignatures of that many witnesses.
	Checkpoint(ctx context.Context, witnesses int) (string, error)
	// ProveEntry and ProveGrowth use the size of the last checkpoint if the size is zero, and return the size that they used.
	ProveEntry(ctx context.Context, index, size int64) (leaf tlog.Hash, of int64, proof tlog.RecordProof, err error)
	ProveGrowth(ctx context.Context, from, to int64) (of int64, proof tlog.TreeProof, err error)
	// Tile returns a tile as in c2sp.org/tlog-tiles. A width of zero means 256.
	Tile(ctx context.Context, level int, number int64, width int) ([]byte, error)
	Receipt(ctx context.Context, id string) (audit.Receipt, error)
	TaskReceipt(ctx context.Context, spiffeID, task string) (audit.Receipt, error)
	// Entries returns the entries from an index on: up to limit, at most 1000, and fewer if they are large.
	Entries(ctx context.Context, from int64, limit int) ([]audit.LogEntry, error)
}

// GetCheckpoint returns the last checkpoint to an auditor.
func (s *Server) GetCheckpoint(w http.ResponseWriter, r *http.Request, params GetCheckpointParams) {
	s.forAuditors(w, r, "getCheckpoint", func(reader) (any, error) {
		return s.cfg.InclusionProofs.Checkpoint(r.Context(), params.Witnesses)
	})
}

// GetLogKeys returns the public keys of the log to an auditor.
func (s *Server) GetLogKeys(w http.ResponseWriter, r *http.Request) {
	s.forAuditors(w, r, "getLogKeys", func(reader) (any, error) {
		keys, err := s.cfg.LogKeys.Keys(r.Context())
		return strings.Join(append(keys, ""), "\n"), err
	})
}

// ProveInclusion proves to an auditor that an entry is in the log.
func (s *Server) ProveInclusion(w http.ResponseWriter, r *http.Request, params ProveInclusionParams) {
	s.forAuditors(w, r, "proveInclusion", func(reader) (any, error) {
		leaf, size, path, err := s.cfg.InclusionProofs.ProveEntry(r.Context(), params.Index, params.Size)
		return InclusionProof{Index: params.Index, Size: size, LeafHash: leaf.String(), Hashes: hashesOf(path)}, notFound(err, "index")
	})
}

// ProveConsistency proves to an auditor that the log of one size is a prefix of the log of a larger size.
func (s *Server) ProveConsistency(w http.ResponseWriter, r *http.Request, params ProveConsistencyParams) {
	s.forAuditors(w, r, "proveConsistency", func(reader) (any, error) {
		to, path, err := s.cfg.InclusionProofs.ProveGrowth(r.Context(), params.From, params.To)
		return ConsistencyProof{From: params.From, To: to, Hashes: hashesOf(path)}, notFound(err, "size")
	})
}

// GetTile returns hashes of the tree to an auditor.
func (s *Server) GetTile(w http.ResponseWriter, r *http.Request, level int, number int64, params GetTileParams) {
	s.forAuditors(w, r, "getTile", func(reader) (any, error) {
		data, err := s.cfg.InclusionProofs.Tile(r.Context(), level, number, params.Width)
		return data, notFound(err, "tile")
	})
}

// GetReceipt proves to an auditor that an issuance within the auditor's reach is in the log.
func (s *Server) GetReceipt(w http.ResponseWriter, r *http.Request, id ID) {
	s.forAuditors(w, r, "getReceipt", func(by reader) (any, error) {
		if _, err := s.find(r, by.who, id, by.within); err != nil {
			return nil, err
		}
		receipt, err := s.cfg.InclusionProofs.Receipt(r.Context(), id)
		return receipt, notFound(err, "id")
	})
}

// GetTaskReceipt proves to an auditor what was issued for a task within the auditor's reach.
func (s *Server) GetTaskReceipt(w http.ResponseWriter, r *http.Request, task Task, params GetTaskReceiptParams) {
	s.forAuditors(w, r, "getTaskReceipt", func(by reader) (any, error) {
		if !by.within.Covers(params.SpiffeID) {
			return nil, unknown("task")
		}
		receipt, err := s.cfg.InclusionProofs.TaskReceipt(r.Context(), params.SpiffeID, task)
		return receipt, notFound(err, "task")
	})
}

const defaultEntries = 500

// ListEntries returns entries to an auditor of all trust domains, because entries belong to all of them.
func (s *Server) ListEntries(w http.ResponseWriter, r *http.Request, params ListEntriesParams) {
	s.forAuditors(w, r, "listEntries", func(by reader) (any, error) {
		if err := s.overAll(r, by.who, s.roles.auditor); err != nil {
			return nil, err
		}
		entries, err := s.cfg.InclusionProofs.Entries(r.Context(), params.From, cmp.Or(params.Limit, defaultEntries))
		page := EntryPage{Entries: make([]LogEntry, len(entries)), Next: params.From}
		for i, e := range entries {
			page.Entries[i], page.Next = LogEntry{Index: e.Index, Body: e.Body}, e.Index+1
		}
		return page, err
	})
}

// forAuditors answers an auditor of any trust domain or path with the result of read. All trust domains share one log, and its
// hashes reveal nothing about any of them. Auditors and their trust domains take turns.
func (s *Server) forAuditors(w http.ResponseWriter, r *http.Request, operation string, read func(reader) (any, error)) {
	s.withRole(w, r, operation, []role{s.roles.auditor}, func(by reader) (any, error) {
		leave, err := await(r, s.auditing, by.who)
		if err != nil {
			return nil, err
		}
		defer leave()
		answer, err := read(by)
		switch answer.(type) {
		case nil, string, []byte:
			return answer, err
		}
		if err != nil {
			return nil, err
		}
		// Encoding a thousand entries takes longer than reading them, so it is done in turn too.
		text, err := json.Marshal(answer)
		return encoded(text), err
	})
}

// withRole answers a caller that has one of the roles anywhere with the result of read. A string is sent as text, a byte slice as
// it is, no content for nil, and any other value as JSON.
func (s *Server) withRole(w http.ResponseWriter, r *http.Request, operation string, of []role, read func(reader) (any, error)) {
	serve(s, w, r, operation, func(who caller) error {
		within, err := s.reach(r, who, of...)
		if err != nil {
			return err
		}
		if err := s.rules.check(r, who, nil); err != nil {
			return err
		}
		answer, err := read(reader{who, within})
		if err != nil {
			return err
		}
		switch answer := answer.(type) {
		case nil:
			writeNoContent(w)
		case string:
			writeBytes(w, "text/plain; charset=utf-8", "no-store", []byte(answer))
		case encoded:
			writeBytes(w, "application/json", "no-store", answer)
		case []byte:
			writeBytes(w, "application/octet-stream", "no-store", answer)
		default:
			writeJSON(w, http.StatusOK, answer)
		}
		return nil
	})
}

// encoded is an answer in JSON.
type encoded []byte

func hashesOf(path []tlog.Hash) []Hash {
	hashes := make([]Hash, len(path))
	for i, h := range path {
		hashes[i] = h.String()
	}
	return hashes
}
