package audit

import (
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/google/uuid"
)

// maxApart bounds how many rows are kept that do not lie with their entries.
const maxApart = 10 * MaxFindings

// The places among what can change of a record.
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

// record is what is kept of a request while entries pass: there may be millions.
type record struct {
	index          int64
	last           int64  // the index of the last outcome
	kind           string // of the credential
	leased, static bool
	oneShot        bool
	held           bool // by another: it was asked of people, or handed on
	issued         bool // once
	holder         unique.Handle[string]
	// status, time and key are what differs between records that only began. now is all that can change once it did, and
	// row the same as the table has it; nil is as it began.
	status, time, key string
	now, row          *[13]string
	// apart tells that its row did not lie with its entry.
	apart bool
	// asked is kept of what waits, or waited, for people.
	asked *asked
}

// begin keeps a record, and holds the row that lies with its entry against it. What cannot change is compared at once.
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

// table keeps what the table says of what can change.
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

// change makes what the record is now ready to be changed.
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

// settled shares what equals the table, so that most of what was moved is kept once.
func (r *record) settled() {
	if r.row != nil && r.now != nil && *r.row == *r.now {
		r.now = r.row
	}
	if r.now != nil {
		r.status = unique.Make(r.now[status]).Value()
	}
}

// values is all that can change, as it is now.
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

// compare holds the end of a record against the table.
func (r *record) compare(found *findings) {
	if r.now == r.row {
		return
	}
	row := r.begun()
	if r.row != nil {
		row = r.row[:]
	}
	found.add(Issuances.differ(r.index, r.values(), row, len(lasting))...)
}

// moves are the states that follow from each. What is leased ends through revoking only, or expires; what is not does
// neither by an entry. Only a JWT fails after it was issued, only a one-shot one is used, and what is static stays.
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

// move changes a record as its outcome says.
func (r *record) move(b *body) {
	now := r.change()
	now[status], now[statusDetail], now[statusTime] = b.Status, orNull(b.Detail), b.Time
	r.issued = b.Status != "failed" && (r.issued || b.Status == "issued")
	if who := b.actor(); who != Null {
		now[actor] = who
	}
	for i, text := range [...]string{b.Minted.Accessor, b.Minted.Lease, b.Minted.Name, b.Minted.Digest} {
		if now[accessor+i] == Null {
			now[accessor+i] = orNull(text)
		}
	}
	if b.Status == "failed" || b.Status == "unknown" || b.Status == "compensated" {
		now[idempotencyKey] = Null
	}
	r.settled()
}

// id is the key that records are kept by.
func id(text string) (uuid.UUID, bool) {
	parsed, err := uuid.Parse(text)
	return parsed, err == nil && parsed.String() == text
}
