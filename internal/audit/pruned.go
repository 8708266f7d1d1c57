package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// PrunedRange is a range of old entries that the database's owner has dropped, and that a ledger.pruned entry describes.
// Entries that others depend on remain, and so do the hashes of all entries.
type PrunedRange struct {
	// Index is the index of that entry, Time the time when it was made, By the database login that pruned.
	Index int64  `json:"index"`
	Time  string `json:"time"`
	By    string `json:"by"`
	// Before is the date that all entries from First up to Beyond were older than.
	Before string `json:"before"`
	First  int64  `json:"first"`
	Beyond int64  `json:"beyond"`
	// Dropped is the number of entries in the range that are not there.
	Dropped int64 `json:"dropped"`
}

// prunes holds the claims of ledger.pruned entries about dropped ones. Together they cover all entries before beyond: each
// claim begins where the previous one ended.
type prunes struct {
	claims []claim
	beyond int64
	// left is the number of entries that remain before beyond, and sum is a hash over their indexes.
	left  int64
	sum   hash.Hash
	found findings
}

// claim is a ledger.pruned entry, read ahead of its place.
type claim struct {
	PrunedRange
	body []byte
	told bool // the entry was also found at its place
	left int64
	sum  string
}

// add takes the next claim. It reports and ignores an impossible claim, so that the entries it names count as missing.
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
		s.found.at(Impossible, item.Index, "it claims that entries %d to %d were dropped, which is impossible: the ranges before end before entry %d",
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

// take checks an entry that is there.
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
	if b != nil && (b.Kind == "call.refused" || b.Kind == "credentials.revoke" || b.Kind == "calls.recorded") {
		s.found.at(PrunedDiffers, e.Index, "it should have been dropped with the entries around it, but exists")
	}
}

// end checks that exactly the entries remain that the last claim names.
func (s *prunes) end() {
	for _, c := range s.claims {
		if !c.told {
			s.found.at(PrunedDiffers, c.First, "entry %d, which records that this entry and those after it were dropped, is missing", c.Index)
		}
	}
	if len(s.claims) == 0 {
		return
	}
	last := s.claims[len(s.claims)-1]
	if s.left != last.left || hex.EncodeToString(s.sum.Sum(nil)) != last.sum {
		s.found.add(Finding{
			Code: PrunedDiffers, Index: 0, Through: s.beyond - 1,
			What: fmt.Sprintf("%d of these entries remain; they are not the %d that entry %d names", s.left, last.left, last.Index),
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
