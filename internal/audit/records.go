package audit

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/google/uuid"
)

// maxApart bounds the number of rows kept that are not next to their entries.
const maxApart = 10 * MaxFindings

// These are the positions of the columns of a record that can change.
const (
	status = iota
	statusDetail
	statusTime
	actor
	idempotencyKey
	accessor
	lease
	credentialName
	secretDigest
	votes
	redemptions
	redeemedBy
	remembered
)

// record holds the state of one request while Verify reads entries. It is small, because there may be millions.
type record struct {
	index          int64
	last           int64  // the index of the last outcome
	kind           string // of the credential
	leased, static bool
	oneShot        bool
	held           bool // it redeems an approval, or its token was exchanged for another
	issued         bool // it was issued at some time
	holder         unique.Handle[string]
	// status, time and key are the values that differ between records with no outcome yet. now holds all values that can
	// change, once they have; row holds the same values as the table has them. nil means the initial values.
	status, time, key string
	now, row          *[13]string
	// apart is true if the record's row was not next to its entry.
	apart bool
	// asked is set for a request that waits, or waited, for people.
	asked *asked
}

// begin adds a record. If its row is next to its entry, begin compares the values that can never change at once.
func (s *state) begin(p *parsed) *record {
	b := p.body
	r := &record{
		index: p.entry.Index, last: p.entry.Index, held: b.Approves != nil, status: unique.Make(b.Status).Value(), time: b.Time, key: pointed(b.Request.IdempotencyKey),
		issued: b.Status == "issued", holder: unique.Make(b.Subject.SPIFFEID),
	}
	if b.Intent != nil {
		r.kind, r.leased, r.static = unique.Make(b.Intent.Kind).Value(), b.Intent.Grant.Leased, b.Intent.Grant.Static
		r.oneShot = b.Intent.OneShot
	}
	if p.row == nil {
		r.apart = true
		if len(s.unmatched.want) < maxApart {
			s.unmatched.set(p.entry.Index, b.issuance(p.entry.Index)...)
		} else {
			s.projections.more++
		}
		return r
	}
	s.projections.add(p.differs...)
	r.table(p.row)
	return r
}

// table keeps the table's values of the columns that can change.
func (r *record) table(row []string) {
	if slices.Equal(row[len(lasting):], r.begun()) {
		return
	}
	r.row = new([13]string)
	for i, text := range row[len(lasting):] {
		r.row[i] = strings.Clone(text) // the rest of the row may go
	}
}

func (r *record) begun() []string {
	b := body{Status: r.status, Time: r.time}
	begun := b.begun()
	begun[idempotencyKey] = r.key
	return begun
}

// change returns a copy of the current values, which the caller may change.
func (r *record) change() *[13]string {
	next := new([13]string)
	if r.now == nil {
		copy(next[:], r.begun())
	} else {
		*next = *r.now
	}
	r.now = next
	return next
}

// compact drops values that equal the table's, so that most changed records share one copy. It also updates the status.
func (r *record) compact() {
	if r.row != nil && r.now != nil && *r.row == *r.now {
		r.now = r.row
	}
	if r.now != nil {
		r.status = unique.Make(r.now[status]).Value()
	}
}

// values returns the current values of all columns that can change.
func (r *record) values() []string {
	if r.now == nil {
		return r.begun()
	}
	return r.now[:]
}

func (r *record) number(place int) int64 {
	n, _ := strconv.ParseInt(r.values()[place], 10, 64)
	return n
}

// moves lists the states that may follow each state. A leased credential ends only through revoking, or expires. An
// unleased one does neither through an entry. Only a JWT fails after it was issued, only a one-shot credential is used,
// and a static one stays issued.
var moves = map[string][]string{
	"pending":  {"pending", "approved", "rejected", "withdrawn"},
	"approved": {"redeemed", "rejected", "withdrawn"},
	"redeemed": {"redeemed"},
	"intent":   {"issued", "failed", "unknown", "compensated", "revoking"},
	"unknown":  {"compensated"},
	"issued":   {"failed", "revoking", "revoked", "released", "expired", "used"},
	"revoking": {"revoked", "released"},
}

func (r *record) mayMove(to string) bool {
	if !slices.Contains(moves[r.status], to) {
		return false
	}
	switch {
	case r.status != "issued":
		return true
	case to == "failed":
		return r.kind == "jwt"
	case to == "used":
		return r.oneShot
	case to == "revoking", to == "expired":
		return r.leased
	}
	return !r.leased && !r.static
}

// move changes a record according to its outcome.
func (r *record) move(b *body) {
	now := r.change()
	now[status], now[statusDetail], now[statusTime] = b.Status, cmp.Or(b.Detail, Null), b.Time
	r.issued = b.Status != "failed" && (r.issued || b.Status == "issued")
	if who := b.actor(); who != Null {
		now[actor] = who
	}
	for i, text := range [...]string{b.Minted.Accessor, b.Minted.Lease, b.Minted.Name, b.Minted.Digest} {
		if now[accessor+i] == Null {
			now[accessor+i] = cmp.Or(text, Null)
		}
	}
	if b.Status == "failed" || b.Status == "unknown" || b.Status == "compensated" {
		now[idempotencyKey] = Null
	}
	r.compact()
}

// id returns the key of a record.
func id(text string) (uuid.UUID, bool) {
	parsed, err := uuid.Parse(text)
	return parsed, err == nil && parsed.String() == text
}
