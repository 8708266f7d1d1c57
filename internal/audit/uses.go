package audit

import (
	"strconv"
	"time"

	"github.com/google/uuid"
)

// mostCalls is the largest number of uses of one credential that can be reported.
const mostCalls = 1_000_000_000

// use is the report of a credential's holder. It is small, because there may be millions.
type use struct {
	index, began, calls int64
	last, time          int64 // microseconds
}

// report records a holder's report of uses. It does not check that the report came in time.
func (s *state) report(b *body, index int64) {
	key, _ := id(b.ID)
	r := s.records[key]
	u, possible := useOf(b, r, index)
	_, again := s.uses[key]
	switch {
	case r == nil || !r.issued:
		s.impossible(index, "it reports uses of "+show(b.ID)+", which was not issued")
	case r.holder.Value() != b.actor():
		s.impossible(index, "it reports uses of "+show(b.ID)+", which has another holder")
	case again:
		s.impossible(index, "it reports uses of "+show(b.ID)+" again")
	case !possible:
		s.impossible(index, "it reports impossible uses")
	default:
		r.last = index
		s.uses[key] = u
	}
}

// useOf reads a report about a record.
func useOf(b *body, r *record, index int64) (u use, ok bool) {
	at, err := time.Parse(time.RFC3339Nano, b.Time)
	if r == nil || err != nil || b.Calls < 0 || b.Calls > mostCalls || (b.LastUsedAt == nil) != (b.Calls == 0) {
		return u, false
	}
	u = use{index: index, began: r.index, calls: b.Calls, time: at.UnixMicro()}
	if b.LastUsedAt == nil {
		return u, true
	}
	began, err := time.Parse(time.RFC3339Nano, r.time)
	last, errToo := time.Parse(time.RFC3339Nano, *b.LastUsedAt)
	u.last = last.UnixMicro()
	return u, err == nil && errToo == nil && !last.Before(began) && (!last.After(at) || last.Equal(began))
}

// row returns the row of uses for the report.
func (u use) row(issuance uuid.UUID) []string {
	last := Null
	if u.calls > 0 {
		last = instant(time.UnixMicro(u.last))
	}
	return []string{
		issuance.String(), strconv.FormatInt(u.began, 10), strconv.FormatInt(u.calls, 10), last, instant(time.UnixMicro(u.time)),
		strconv.FormatInt(u.index, 10),
	}
}

// useRow compares a row of uses with the expected one, which it removes.
func (s *state) useRow(row Row) {
	expected := project(Uses)
	if key, ok := id(row.Values[0]); ok {
		if u, said := s.uses[key]; said {
			expected.set(u.index, u.row(key)...)
			delete(s.uses, key)
		}
	}
	expected.compare(row, &s.projections)
}

// usesLeft reports the expected rows that are missing.
func (s *state) usesLeft() {
	missing := project(Uses)
	for key, u := range s.uses {
		missing.set(u.index, u.row(key)...)
	}
	missing.rest(&s.projections)
}
