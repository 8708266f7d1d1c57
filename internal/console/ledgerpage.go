package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/go-chi/chi/v5"
	"golang.org/x/mod/sumdb/tlog"
)

// latestEntries is how many entries the page lists.
const latestEntries = 20

// Log is the part of the ledger that auditors verify. Its errors are audit.ErrNotYet if no checkpoint covers the entries
// yet, broker.ErrNotFound and broker.ErrLedgerUnavailable.
type Log interface {
	// Checkpoint returns the latest signed checkpoint with cosignatures of at least this many witnesses.
	Checkpoint(ctx context.Context, witnesses int) (string, error)
	ProveGrowth(ctx context.Context, from, to int64) (of int64, proof tlog.TreeProof, err error)
	Entries(ctx context.Context, from int64, limit int) ([]audit.LogEntry, error)
	Status(ctx context.Context) (broker.LedgerStatus, error)
}

func (c *Console) ledgerRoutes(mux chi.Router) {
	mux.Get("/ledger", c.visit(c.ledger))
	mux.Get("/ledger/growth", c.growth)
}

// ledgerView is the state of the log and its signed checkpoint.
type ledgerView struct {
	Status     broker.LedgerStatus
	Note       string // empty if there is no checkpoint yet
	Checkpoint audit.Checkpoint
	Keys       []string
	Entries    []entryView
	Hidden     bool // whether the reader may not see the entries
}

// Lag returns the number of entries that no checkpoint covers yet.
func (v ledgerView) Lag() int64 { return max(0, v.Status.Entries-v.Checkpoint.N) }

// Root returns the root hash of the checkpoint.
func (v ledgerView) Root() string { return v.Checkpoint.Hash.String() }

// Signed returns what the browser verifies itself: the checkpoint and the public keys of the log.
func (v ledgerView) Signed() any {
	return struct {
		Note string   `json:"note"`
		Keys []string `json:"keys"` // empty if they are unavailable
	}{v.Note, v.Keys}
}

// entryView is one entry without its content.
type entryView struct {
	Index int64
	Kind  string
	Time  time.Time
	Leaf  string
}

// ledger shows the log. The browser checks that the log continues what it saw on earlier visits.
func (c *Console) ledger(r *http.Request, who *visitor) (view, error) {
	if !who.Audits() {
		return view{}, errNotAllowed
	}
	status, err := c.cfg.Ledger.Status(r.Context())
	if err != nil {
		return view{}, err
	}
	v := ledgerView{Status: status}
	if v.Note, v.Checkpoint, err = c.checkpoint(r.Context()); err != nil && status.Checkpoint.Size > 0 {
		return view{}, err
	}
	if v.Keys, err = c.cfg.LogKeys.Keys(r.Context()); err != nil {
		c.cfg.Log.WarnContext(r.Context(), "log keys unavailable", "error", err) // the page says so
	}
	if v.Hidden = c.overAll(who.Auditor.TrustDomains) != nil; !v.Hidden {
		if v.Entries, err = c.latest(r.Context(), status.Entries); err != nil {
			return view{}, err
		}
	}
	return pageLedger.view("Ledger", v), nil
}

// checkpoint returns the latest signed checkpoint, with any number of witnesses.
func (c *Console) checkpoint(ctx context.Context) (signed string, of audit.Checkpoint, err error) {
	if signed, err = c.cfg.Ledger.Checkpoint(ctx, 0); err != nil {
		return "", of, err
	}
	text, _, _ := strings.Cut(signed, "\n\n")
	of, err = audit.ParseCheckpoint(text + "\n")
	return signed, of, err
}

// latest returns the last entries, newest first.
func (c *Console) latest(ctx context.Context, size int64) ([]entryView, error) {
	entries, err := c.cfg.Ledger.Entries(ctx, max(0, size-latestEntries), latestEntries)
	if err != nil {
		return nil, err
	}
	var all []entryView
	for _, e := range slices.Backward(entries) {
		var body struct {
			Kind string    `json:"kind"`
			Time time.Time `json:"time"`
		}
		if err := json.Unmarshal([]byte(e.Body), &body); err != nil {
			body.Kind = "unreadable"
		}
		all = append(all, entryView{e.Index, body.Kind, body.Time, tlog.RecordHash([]byte(e.Body)).String()})
	}
	return all, nil
}

// growth returns the proof that the log of one size is a prefix of the log of another size (RFC 6962, 2.1.2).
func (c *Console) growth(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	if err == nil && !who.Audits() {
		err = errNotAllowed
	}
	from, noFrom := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
	to, noTo := strconv.ParseInt(r.URL.Query().Get("to"), 10, 64)
	if err == nil && (noFrom != nil || noTo != nil || from < 1 || to < from) {
		err = errForm
	}
	var proof tlog.TreeProof
	if err == nil {
		_, proof, err = c.cfg.Ledger.ProveGrowth(r.Context(), from, to)
	}
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	hashes := make([]string, 0, len(proof))
	for _, h := range proof {
		hashes = append(hashes, h.String())
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(hashes) // the client may have disconnected
}
