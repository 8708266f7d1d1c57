package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// changeCatalogue applies a step of a catalogue, and reports why the step is impossible if it is.
func (s *state) changeCatalogue(b *body, index int64) {
	if b.Number != s.version+1 || b.Base != s.catalogue {
		s.impossible(index, "it does not follow the catalogue in force")
	}
	if b.Proposal != "" {
		asked, ok := s.changes.get(b.Proposal)
		if !ok || asked[1] != "proposed" || asked[2] != b.Digest || asked[4] != strconv.FormatInt(b.Number, 10) || asked[7] != b.Proposer {
			s.impossible(index, "it decides on a catalogue that was not proposed")
		}
		if s.decided[b.Proposal] {
			s.impossible(index, "it decides on a proposal that is already decided")
		}
		s.decided[b.Proposal] = true
	}
	who := b.actor()
	if b.Kind == "catalogue.applied" && b.Proposal != "" && who == b.Proposer {
		s.impossible(index, "its actor applies their own proposal")
	}
	number := strconv.FormatInt(b.Number, 10)
	s.changes.set(index, b.ID, strings.TrimPrefix(b.Kind, "catalogue."), b.Digest, orNull(b.Base), number,
		orNull(b.Proposal), orNull(b.Proposer), who, b.Reason, b.Time, strconv.FormatInt(index, 10))
	if _, known := s.catalogues[b.Digest]; !known {
		s.catalogues[b.Digest] = index
	}
	if b.Kind == "catalogue.applied" {
		s.catalogue, s.version = b.Digest, b.Number
		s.head.set(index, "true", number, b.Digest, b.ID)
	}
}

// files checks the files of a catalogue against its digest. Files that no entry names do no harm: they were kept for a
// step that was refused.
func (s *state) files(row Row) {
	index, known := s.catalogues[row.Values[0]]
	if !known {
		index = -1
	}
	delete(s.catalogues, row.Values[0])
	var names, contents []string
	err := json.Unmarshal([]byte(row.Values[1]), &names)
	if err == nil {
		err = json.Unmarshal([]byte(row.Values[2]), &contents)
	}
	if err == nil && catalogueDigest(names, contents) == row.Values[0] {
		return
	}
	s.projections.add(Finding{
		Code: ProjectionDiffers, Index: index, Where: Catalogues.Name + ".contents",
		What: "the files of catalogue " + show(row.Values[0]) + " do not match its digest",
	})
}

// catalogueDigest returns the SHA-256 of a text with one line for each file: the file's SHA-256 and its name.
func catalogueDigest(names, contents []string) string {
	if len(names) != len(contents) {
		return ""
	}
	lines := make([]string, len(names))
	for i, name := range names {
		content, err := hex.DecodeString(contents[i])
		if err != nil {
			return ""
		}
		lines[i] = fmt.Sprintf("%s\x00%x  %s\n", name, sha256.Sum256(content), name)
	}
	slices.Sort(lines)
	for i, line := range lines {
		_, lines[i], _ = strings.Cut(line, "\x00")
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
}

// filesLeft reports the catalogues whose files are missing.
func (s *state) filesLeft() {
	for digest, index := range s.catalogues {
		s.projections.add(Finding{
			Code: ProjectionMissing, Index: index, Where: Catalogues.Name, What: "the files of catalogue " + show(digest) + " are missing",
		})
	}
}
