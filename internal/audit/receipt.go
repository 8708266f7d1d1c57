package audit

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// ErrNotYet means that an entry is in the log but no checkpoint covers it yet. One does within a second or two.
var ErrNotYet = errors.New("no checkpoint covers it yet")

// ErrTooLarge means that a task has more entries than a receipt can hold.
var ErrTooLarge = errors.New("it has more entries than a receipt can hold")

// ErrReceipt means that a receipt does not prove what it claims.
var ErrReceipt = errors.New("the receipt is not valid")

// Receipt proves that entries of one issuance, or of one task, are in a log. To verify it, the reader needs only the log's
// public key. It does not prove that there are no other entries: that takes the whole log.
type Receipt struct {
	Version int `json:"version"` // 1
	// Issuance is the id of an issuance. Approves is the id of the request that people approved for it, if there is one.
	Issuance string `json:"issuance,omitempty"`
	Approves string `json:"approves,omitempty"`
	// SPIFFEID and Task name a task in place of an issuance.
	SPIFFEID string `json:"spiffe_id,omitempty"`
	Task     string `json:"task,omitempty"`
	// Checkpoint is a signed checkpoint that covers all the entries.
	Checkpoint string         `json:"checkpoint"`
	Entries    []ReceiptEntry `json:"entries"`
}

// LogEntry is one entry, byte for byte.
type LogEntry struct {
	Index int64  `json:"index"`
	Body  string `json:"body"`
}

// ReceiptEntry is one entry, byte for byte, with the proof that it is in the tree of the checkpoint (RFC 6962, 2.1.1).
type ReceiptEntry struct {
	Index int64            `json:"index"`
	Body  string           `json:"body"`
	Proof tlog.RecordProof `json:"proof"`
}

// Verify returns the checkpoint if one of the log's keys proves everything that the receipt claims, whatever the log's name
// was at that time. Otherwise it returns ErrReceipt or an error as of [OpenCheckpoint].
func (r Receipt) Verify(keys note.Verifiers) (Checkpoint, error) {
	if keys == nil {
		return Checkpoint{}, ErrUnsigned
	}
	c, err := Config{Keys: keys}.Open(r.Checkpoint)
	if err != nil {
		return Checkpoint{}, err
	}
	if r.Version != 1 || len(r.Entries) == 0 {
		return Checkpoint{}, fmt.Errorf("%w: it has no entries, or an unknown version", ErrReceipt)
	}
	before, known := int64(-1), map[string]bool{r.Issuance: r.Issuance != "", r.Approves: r.Approves != ""}
	for _, e := range r.Entries {
		switch {
		case !r.concerns(e, known):
			return Checkpoint{}, fmt.Errorf("%w: entry %d does not belong to it", ErrReceipt, e.Index)
		case e.Index <= before:
			return Checkpoint{}, fmt.Errorf("%w: entry %d is out of order", ErrReceipt, e.Index)
		case e.Index >= c.N || tlog.CheckRecord(e.Proof, c.N, c.Hash, e.Index, tlog.RecordHash([]byte(e.Body))) != nil:
			return Checkpoint{}, fmt.Errorf("%w: entry %d is not in the log in this form", ErrReceipt, e.Index)
		}
		before = e.Index
	}
	return c, nil
}

// concerns reports whether an entry belongs to the receipt's issuance or task: it has a known id, it begins a request of
// the task, or it ends the task. It adds the id of such an entry to known.
func (r Receipt) concerns(e ReceiptEntry, known map[string]bool) bool {
	var body struct {
		ID      string `json:"id"`
		Subject struct {
			SPIFFEID string `json:"spiffe_id"`
		} `json:"subject"`
		Request struct {
			Task string `json:"task"`
		} `json:"request"`
		Target struct {
			SPIFFEID string `json:"spiffe_id"`
			Task     string `json:"task"`
		} `json:"target"`
	}
	if json.Unmarshal([]byte(e.Body), &body) != nil || body.ID == "" {
		return false
	}
	if r.Task != "" && (body.Subject.SPIFFEID == r.SPIFFEID && body.Request.Task == r.Task ||
		body.Target.SPIFFEID == r.SPIFFEID && body.Target.Task == r.Task) {
		known[body.ID] = true
	}
	return known[body.ID]
}
