package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

// asked is a request that people were asked to approve.
type asked struct {
	id, spiffeID, context, scope, resource, catalogue, digest string

	onBehalfOf string // Null if the request is on nobody's behalf

	group, breakGlass string // the group that approves, and the one that may break the glass; empty for none

	params      []byte
	ttl, quorum int64
	hash        string // the hash that votes name
	passkey     bool   // an approval must be signed with a passkey
}

// vote is one vote that counts for a request.
type vote struct {
	voter, verdict, covers, note string
	// credential is the id of the passkey that signed the assertion. Both are empty if the vote is not signed.
	credential, assertion string
	index                 int64 // of the entry
}

func askedOf(b *body) *asked {
	a := &asked{
		id: b.ID, spiffeID: b.Subject.SPIFFEID, context: b.context(), scope: b.Request.Scope, resource: b.Decision.Resource,
		catalogue: b.Decision.Catalogue, digest: b.Request.Digest, params: b.Request.Params, ttl: b.Decision.TTL,
		onBehalfOf: b.onBehalfOf(),
	}
	if b.Decision.Params != nil {
		a.params = b.Decision.Params
	}
	text := ""
	if r := b.Decision.Approval; r != nil {
		a.group, a.quorum = r.Group, r.Quorum
		if r.BreakGlass != nil {
			a.breakGlass = *r.BreakGlass
		}
		if r.Canonical != nil {
			text = *r.Canonical
		}
	}
	hash := sha256.Sum256([]byte(text))
	a.hash = hex.EncodeToString(hash[:])
	var s struct {
		Passkey string `json:"passkey"`
	}
	a.passkey = json.Unmarshal([]byte(text), &s) == nil && s.Passkey == "required"
	return a
}

// covers reports whether a matches a later request, for at least the same lifetime.
func (a *asked) covers(now *asked) bool {
	return a.spiffeID == now.spiffeID && a.context == now.context && a.scope == now.scope && a.resource == now.resource &&
		a.catalogue == now.catalogue && a.onBehalfOf == now.onBehalfOf && bytes.Equal(a.params, now.params) && now.ttl <= a.ttl
}

// waiting returns the record of a request that people were asked about, or nil.
func (s *state) waiting(request string) *record {
	key, _ := id(request)
	if r := s.records[key]; r != nil && r.asked != nil {
		return r
	}
	return nil
}

// step applies a vote or a withdrawal to a request that waits for people.
func (s *state) step(b *body, index int64) {
	r := s.waiting(b.ID)
	switch {
	case r == nil:
		s.impossible(index, "it decides on request "+show(b.ID)+", which waits for no approval")
		return
	case r.status != b.Was || r.number(votes) != b.Votes || !r.mayMove(b.Status):
		s.impossible(index, "its request was in another state")
		return
	case r.status != "redeemed" && s.outdated(r):
		s.impossible(index, "its request was void: the catalogue had changed")
	case b.Kind == "approval.vote" && r.asked.hash != b.Hash:
		s.impossible(index, "it is a vote on another text than that of its request")
	case b.Kind == "approval.vote" && r.asked.onBehalfOf != Null && r.asked.onBehalfOf == b.actor():
		s.impossible(index, "it is a vote by the person on whose behalf the request was made")
	case b.Verdict == "break_glass" && (b.Covers != "request" || strings.TrimSpace(b.Note) == ""):
		s.impossible(index, "it is a break-glass vote that covers the task, or has no note")
	}
	now := r.change()
	now[status], now[statusTime], now[actor] = b.Status, b.Time, Null
	switch {
	case b.Kind == "approval.remembered":
		s.remember(b, r, index)
	case b.Status == "rejected", b.Status == "withdrawn":
		now[actor] = b.actor()
		fallthrough
	default:
		if b.Kind == "approval.vote" {
			v := vote{b.actor(), b.Verdict, b.Covers, b.Note, b.Credential, b.Assertion, index}
			s.signs(r.asked, v)
			s.cast(r, b, v, index)
		}
	}
	code := s.approvedBy(r.asked)
	if b.Status == "approved" && (code == "" || b.Kind == "approval.remembered" && code != "approved") {
		s.impossible(index, "it approves a request without enough votes")
	}
	r.compact()
}

// cast counts a vote on a record.
func (s *state) cast(r *record, b *body, v vote, index int64) {
	r.now[votes] = strconv.FormatInt(r.number(votes)+1, 10)
	s.ballots[b.ID] = append(s.ballots[b.ID], v)
	s.votes.set(index, b.ID, v.voter, v.verdict, v.covers, b.Time, v.note, strconv.FormatInt(index, 10),
		cmp.Or(v.credential, Null), cmp.Or(v.assertion, Null))
}

// remember lets the approvals for a task on an earlier request count for another request.
func (s *state) remember(b *body, r *record, index int64) {
	of := s.waiting(b.Of)
	if of == nil || s.outdated(of) || !of.asked.covers(r.asked) || of.asked.group != r.asked.group || of.asked.quorum != r.asked.quorum {
		s.impossible(index, "it reuses an approval of a different request")
		return
	}
	r.now[remembered] = b.Of
	for _, v := range s.ballots[b.Of] {
		if v.verdict == "approve" && v.covers == "task" {
			s.cast(r, b, v, index)
		}
	}
}

// redeem uses the approval that an entry names.
func (s *state) redeem(b *body, index int64) {
	if b.Approves == nil {
		return
	}
	r := s.waiting(b.Approves.Request)
	switch {
	case r == nil || !r.mayMove("redeemed") || r.asked.hash != b.Approves.Hash || r.asked.digest != b.Request.Digest ||
		!r.asked.covers(askedOf(b)):
		s.impossible(index, "it redeems a request that is not approved")
		return
	case s.outdated(r):
		s.impossible(index, "it redeems a request that was void: the catalogue had changed")
	case s.delivered(r.values()[redeemedBy]):
		s.impossible(index, "it redeems a request whose credential was already delivered")
	case s.approvedBy(r.asked) != b.Decision.Code || s.rejected(r):
		s.impossible(index, "it redeems a request without enough votes")
	}
	now := r.change()
	now[status], now[statusTime], now[redeemedBy] = "redeemed", b.Time, b.ID
	now[redemptions] = strconv.FormatInt(r.number(redemptions)+1, 10)
	r.compact()
}

// outdated reports whether a catalogue was applied after a request was made. A request that was not redeemed by then is void.
func (s *state) outdated(r *record) bool { return s.version > 0 && r.index < s.inForceSince }

// rejected reports whether somebody has denied a request, or the earlier request whose approval it reuses.
func (s *state) rejected(r *record) bool {
	no := func(v vote) bool { return v.verdict == "deny" }
	return slices.ContainsFunc(s.ballots[r.asked.id], no) || slices.ContainsFunc(s.ballots[r.values()[remembered]], no)
}

// delivered reports whether an issuance may have reached a caller.
func (s *state) delivered(issuance string) bool {
	key, ok := id(issuance)
	if !ok || key == uuid.Nil || s.records[key] == nil {
		return false
	}
	r := s.records[key]
	switch r.status {
	case "failed", "compensated":
		return false
	case "revoked":
		return !r.leased || r.values()[statusDetail] != "undelivered"
	}
	return true
}

// approvedBy returns the decision code that the votes on a request allow: approvals by its group, or by two members of the
// break-glass group. It returns "" while there are not enough of either.
func (s *state) approvedBy(a *asked) string {
	yes, broken := map[string]bool{}, map[string]bool{}
	for _, v := range s.ballots[a.id] {
		switch groups := s.groups[v.voter]; {
		case a.passkey && !s.holds(v):
		case v.verdict == "approve" && slices.Contains(groups, a.group):
			yes[v.voter] = true
		case v.verdict == "break_glass" && a.breakGlass != "" && slices.Contains(groups, a.breakGlass):
			broken[v.voter] = true
		}
	}
	switch {
	case int64(len(yes)) >= a.quorum:
		return "approved"
	case len(broken) >= 2:
		return "break_glass"
	}
	return ""
}

// meet records a person's details unless the provider has given newer ones.
func (s *state) meet(b *body, index int64) {
	said, err := time.Parse(time.RFC3339Nano, b.SaidAt)
	if err != nil {
		s.impossible(index, "it has no valid time")
		return
	}
	if before, known := s.met[b.Person.ID]; known && !said.After(before) {
		return
	}
	s.met[b.Person.ID], s.groups[b.Person.ID] = said, b.Person.Groups
	s.people.set(index, b.Person.ID, b.Person.Name, b.Person.Handle, Array(b.Person.Groups), b.SaidAt, b.ID,
		strconv.FormatInt(index, 10))
}

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
