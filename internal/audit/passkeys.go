package audit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"

	"github.com/brevet-dev/brevet/internal/passkey"
)

// held is a passkey as the entries describe it.
type held struct {
	id, person, site string
	key              passkey.Key
	since            int64
	removed          bool
	row              []string
}

var inBase64 = base64.RawURLEncoding.Strict()

// register adds a passkey.
func (s *state) register(b *body, index int64) {
	credential, err := inBase64.DecodeString(b.Credential)
	public, errToo := inBase64.DecodeString(b.PublicKey)
	digest := sha256.Sum256(public)
	switch {
	case err != nil || errToo != nil || b.Digest != hex.EncodeToString(digest[:]):
		s.impossible(index, "the passkey that it registers is not valid")
		return
	case s.keys[b.ID] != nil || s.owns[b.Credential] != nil || s.once[b.Digest]:
		s.impossible(index, "it registers a passkey that was registered before")
		return
	}
	h := &held{
		id: b.ID, person: b.actor(), site: b.Site, since: index,
		key: passkey.Key{Credential: credential, PublicKey: public, Algorithm: b.Algorithm, SignCount: uint32(b.SignCount)},
		row: []string{
			b.ID, b.actor(), b.Credential, b.PublicKey, b.Digest, strconv.FormatInt(b.Algorithm, 10), strconv.FormatInt(b.SignCount, 10),
			b.Name, b.Time, strconv.FormatInt(index, 10), Null, Null,
		},
	}
	s.keys[b.ID], s.owns[b.Credential], s.once[b.Digest] = h, h, true
	s.passkeys.set(index, h.row...)
}

// unregister marks a passkey as removed.
func (s *state) unregister(b *body, index int64) {
	h := s.keys[b.Passkey]
	if h == nil || h.removed || h.person != b.actor() {
		s.impossible(index, "it removes a passkey that its person does not have")
		return
	}
	h.removed = true
	h.row[len(h.row)-2], h.row[len(h.row)-1] = b.Time, strconv.FormatInt(index, 10)
	s.passkeys.set(h.since, h.row...)
}

// signs checks that a vote is signed if the request showed voters that a passkey is required. The passkey must belong to
// the voter and have signed exactly the text that voters were shown. A denial is never signed. signs checks the relying
// party's id, but not the page's origin, which only the configuration of that time could tell.
func (s *state) signs(a *asked, v vote) {
	if !a.passkey || v.verdict == "deny" {
		if v.assertion != "" {
			s.impossible(v.index, "it has a signature that its request does not require")
		}
		return
	}
	if !s.holds(v) {
		s.impossible(v.index, "it is not signed by a passkey that its voter has")
		return
	}
	h := s.owns[v.credential]
	assertion, err := passkey.ParseAssertion([]byte(v.assertion))
	if err == nil {
		var challenge []byte
		if challenge, err = hex.DecodeString(a.hash); err == nil {
			err = passkey.Verify(h.key, assertion, challenge, passkey.RelyingParty{ID: h.site, Origins: []string{assertion.Origin()}})
		}
	}
	if err != nil {
		s.impossible(v.index, "its passkey signature does not verify")
	}
}

// holds reports whether a voter had the passkey that a vote names when the vote was cast, and still has it.
func (s *state) holds(v vote) bool {
	h := s.owns[v.credential]
	return h != nil && h.person == v.voter && h.since < v.index && !h.removed
}
