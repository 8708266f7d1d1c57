package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// PrunedRange is entries that the owner of the database has dropped because they were old, and an entry that says so. What
// others rest on is left of them, and the hashes of all.
type PrunedRange struct {
	// Index is that of the entry that tells, Time when it was made, By the database's login that did it.
	Index int64  `json:"index"`
	Time  string `json:"time"`
	By    string `json:"by"`
	// Before is the date that all entries from First on, up to Beyond, were older than.
	Before string `json:"before"`
	First  int64  `json:"first"`
	Beyond int64  `json:"beyond"`
	// Dropped is how many of them are not there.
	Dropped int64 `json:"dropped"`
}

// prunes are what entries say of those that were dropped. They cover what is before beyond, without a gap: those after the
// first go on where the one before ended.
type prunes struct {
	claims []claim
	beyond int64
	// left is how many entries are there before beyond, and sum is over their indexes.
	left  int64
	sum   hash.Hash
	found findings
}

// claim is an entry that was announced before its place came.
type claim struct {
	PrunedRange
	body []byte
	told bool // its place came, and it was there
	left int64
	sum  string
}

func newPrunes() *prunes { return &prunes{sum: sha256.New()} }

// add takes the next claim. One that cannot be is none, so that what it names is missing.
func (s *prunes) add(item Pruned) {
	var said struct {
		Time   string `json:"time"`
		By     string `json:"actor"`
		Before string `json:"before"`
		First  int64  `json:"first"`
		Beyond int64  `json:"beyond"`
		Left   struct {
			Count  int64  `json:"count"`
			SHA256 string `json:"sha256"`
		} `json:"left"`
	}
	err := json.Unmarshal(item.Body, &said, jsontext.AllowDuplicateNames(true))
	if err != nil || said.First != s.beyond || said.Beyond <= said.First || said.Beyond%tileWidth != 0 || said.Beyond > item.Index {
		s.found.at(Impossible, item.Index, "it tells of dropped entries %d to %d, which cannot be: those up to %d were",
			said.First, said.Beyond-1, s.beyond)
		return
	}
	s.beyond = said.Beyond
	s.claims = append(s.claims, claim{
		PrunedRange: PrunedRange{
			Index: item.Index, Time: said.Time, By: said.By, Before: said.Before, First: said.First, Beyond: said.Beyond,
		},
		body: bytes.Clone(item.Body), left: said.Left.Count, sum: said.Left.SHA256,
	})
}

// drop counts an entry that is not there.
func (s *prunes) drop(index int64) {
	for i := range s.claims {
		if index < s.claims[i].Beyond {
			s.claims[i].Dropped++
			return
		}
	}
}

// take looks at an entry that is there.
func (s *prunes) take(e Entry, b *body) {
	for i := range s.claims {
		if c := &s.claims[i]; c.Index == e.Index && bytes.Equal(c.body, e.Body) {
			c.told = true
		}
	}
	if e.Index >= s.beyond {
		return
	}
	s.left++
	_ = binary.Write(s.sum, binary.BigEndian, e.Index) // a hash takes everything
	if b != nil && (b.Kind == "call.refused" || b.Kind == "credentials.revoke") {
		s.found.at(PrunedDiffers, e.Index, "it was to be dropped with those around it, and is there")
	}
}

// end tells whether just those entries are left that the last claim names.
func (s *prunes) end() {
	for _, c := range s.claims {
		if !c.told {
			s.found.at(PrunedDiffers, c.First, "no entry %d says that it and those after it were dropped", c.Index)
		}
	}
	if len(s.claims) == 0 {
		return
	}
	last := s.claims[len(s.claims)-1]
	if s.left != last.left || hex.EncodeToString(s.sum.Sum(nil)) != last.sum {
		s.found.add(Finding{
			Code: PrunedDiffers, Index: 0, Through: s.beyond - 1,
			What: fmt.Sprintf("of these, %d entries are left; they are not the %d of which entry %d says that they are", s.left, last.left, last.Index),
		})
	}
}

func (s *prunes) report() []PrunedRange {
	ranges := []PrunedRange{}
	for _, c := range s.claims {
		ranges = append(ranges, c.PrunedRange)
	}
	return ranges
}

func (s *prunes) dropped() (n int64) {
	for _, c := range s.claims {
		n += c.Dropped
	}
	return n
}

// lasts tells of requests that were to be dropped with the entries around them: all of such a one lies there, and nothing
// that is left has to do with it.
func (s *state) lasts() {
	idle := map[*record]*record{}
	for _, r := range s.records {
		if r.last < s.pruned && r.asked == nil && !r.held {
			idle[r] = r
		}
	}
	for _, r := range sortedBy(idle, func(r *record) int64 { return r.index }) {
		s.steps.at(PrunedDiffers, r.index, "it was to be dropped with those around it, and is there")
	}
}
