// Package replay decides recorded requests again, by a draft of the catalogue, and counts what would have been different.
//
// Like package scopes it must never read a clock, a file, the network or a context.
package replay

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Recorded is a decision made earlier, and the request it was about.
type Recorded struct {
	ID       string // identifies it among the samples
	SPIFFEID string
	Bound    bool           // the caller used mTLS with an X.509-SVID
	Proved   bool           // the caller sent a DPoP proof
	Expires  time.Time      // of the SVID; zero if unknown, which bounds nothing
	User     *scopes.User   // the person the caller acted for, with their groups at that time; nil for none
	Scope    string         // Scope and the next three fields are as requested
	Params   map[string]any // never modified
	TTL      time.Duration
	scopes.RequestContext
	Time    time.Time
	Outcome scopes.Outcome
	Reason  string
	Given   time.Duration // the TTL that was given; 0 if it is not to be compared
}

// Shift says how a draft's answer differs from the recorded one.
type Shift string

// The shifts. Every decision counts as exactly one of them.
const (
	Unchanged     Shift = "unchanged"
	NewlyAllowed  Shift = "newly_allowed"   // was denied
	NewlyDenied   Shift = "newly_denied"    // was allowed or pending
	NewlyGated    Shift = "newly_gated"     // was allowed, and would need approval
	NewlyUngated  Shift = "newly_ungated"   // was pending approval, and would be allowed
	NewlyAskable  Shift = "newly_askable"   // was denied, and would need approval
	NowLonger     Shift = "now_longer"      // same outcome, for a longer time
	NowShorter    Shift = "now_shorter"     // same outcome, for a shorter time
	Undecidable   Shift = "undecidable"     // no longer valid: the draft rejects its parameters
	NotByPolicies Shift = "not_by_policies" // denied by a limit, a quarantine or the end of a task, and would be again
)

const (
	// maxMemo is the maximum number of requests that a Replayer remembers.
	maxMemo = 1 << 17
	// boundless is the remaining life of an SVID whose expiry is unknown. No credential lives that long.
	boundless = 48 * time.Hour
)

// Replayer decides recorded requests again, by a draft. Like Catalogue.Assess, it assumes that their keys are suitable. It
// is not safe for concurrent use: give each goroutine its own and Merge them.
//
// Replayer decides identical requests once. That is sound because a decision uses only two things about the time: the
// remaining life of the SVID, and only where the credential ends with it, and that of a person's ID token. Where a
// decision uses them, they are part of what makes requests identical. The task is part of it where a policy reads the
// task.
type Replayer struct {
	draft   *scopes.Catalogue
	facts   map[string]facts
	memo    map[string]answer
	key     key
	total   int64
	counts  map[Shift]int64
	scopes  groups
	pairs   groups
	subject struct {
		text string
		id   spiffeid.ID
		err  error
	}
}

// facts is what matters about a scope of the draft for the key of a request.
type facts struct {
	credential scopes.Credential
	readsTask  bool
}

// answer is the part of a decision that is compared.
type answer struct {
	outcome scopes.Outcome // or scopes.Invalid
	ttl     time.Duration
}

// New returns a Replayer that decides by draft.
func New(draft *scopes.Catalogue) *Replayer {
	return &Replayer{
		draft: draft, facts: map[string]facts{}, memo: map[string]answer{}, counts: map[Shift]int64{},
		scopes: newGroups(), pairs: newGroups(),
	}
}

// Add decides one recorded request again and counts how the answer differs.
func (r *Replayer) Add(rec Recorded) {
	shift := r.shift(rec)
	r.total++
	r.counts[shift]++
	if shift == Unchanged || shift == NotByPolicies {
		return
	}
	r.scopes.add(groupKey{scope: rec.Scope}, shift, rec.ID)
	r.pairs.add(groupKey{spiffeID: rec.SPIFFEID, scope: rec.Scope}, shift, rec.ID)
}

// Merge adds the counts of other. Both must use the same draft.
func (r *Replayer) Merge(other *Replayer) {
	r.total += other.total
	for shift, n := range maps.All(other.counts) {
		r.counts[shift] += n
	}
	r.scopes.merge(other.scopes)
	r.pairs.merge(other.pairs)
}

func (r *Replayer) shift(rec Recorded) Shift {
	switch rec.Reason {
	case scopes.ReasonLimited, scopes.ReasonQuarantined, scopes.ReasonTaskEnded:
		return NotByPolicies
	}
	got, was := r.decide(rec), rec.Outcome
	known := was == scopes.Allow || was == scopes.Deny || was == scopes.Pending
	switch {
	case got.outcome == scopes.Invalid || !known:
		return Undecidable
	case got.outcome == was:
		switch {
		case was == scopes.Deny || rec.Given == 0 || rec.Given == got.ttl:
			return Unchanged
		case got.ttl > rec.Given:
			return NowLonger
		default:
			return NowShorter
		}
	case got.outcome == scopes.Deny:
		return NewlyDenied
	case was == scopes.Deny && got.outcome == scopes.Allow:
		return NewlyAllowed
	case was == scopes.Deny:
		return NewlyAskable
	case got.outcome == scopes.Pending:
		return NewlyGated
	default:
		return NewlyUngated
	}
}

// decide answers a recorded request, from memory where that is sound.
func (r *Replayer) decide(rec Recorded) answer {
	// Consecutive decisions often have the same ID, so parse it once.
	if s := &r.subject; s.text != rec.SPIFFEID {
		s.text = rec.SPIFFEID
		s.id, s.err = spiffeid.FromString(rec.SPIFFEID)
	}
	if r.subject.text == "" || r.subject.err != nil {
		return answer{outcome: scopes.Invalid}
	}
	who := scopes.Subject{ID: r.subject.id, Bound: rec.Bound, Proved: rec.Proved, Expires: rec.Expires, User: rec.User}
	switch {
	case who.Expires.IsZero() && rec.Reason == scopes.ReasonSVIDExpiring:
		who.Expires = rec.Time
	case who.Expires.IsZero():
		who.Expires = rec.Time.Add(boundless)
	}
	key, whole := r.key.of(rec, r.factsOf(rec.Scope), who)
	if known, ok := r.memo[string(key)]; ok && whole {
		return known
	}
	got := answer{outcome: scopes.Invalid}
	ask := scopes.Ask{Scope: rec.Scope, Params: rec.Params, TTL: rec.TTL, RequestContext: rec.RequestContext}
	if d, err := r.draft.Redecide(who, ask, rec.Time, rec.Reason); err == nil {
		got = answer{outcome: d.Outcome, ttl: d.TTL}
	}
	if whole {
		if len(r.memo) >= maxMemo {
			clear(r.memo)
		}
		r.memo[string(key)] = got
	}
	return got
}

func (r *Replayer) factsOf(scope string) facts {
	if f, ok := r.facts[scope]; ok {
		return f
	}
	s, ok := r.draft.Scope(scope)
	if !ok {
		return facts{} // not cached: the number of unknown names is unbounded
	}
	f := facts{credential: s.Credential, readsTask: r.draft.ReadsTask(scope)}
	r.facts[scope] = f
	return f
}

// key builds the text that identical recorded requests share. Its buffers are reused for each request.
type key struct {
	data  []byte
	names []string
}

// of returns the key, which is valid until the next call, and whether it is complete. It is incomplete if a value has a
// type that no JSON decoder produces. Every part has a fixed length or states its length, so different requests never
// share a key.
func (k *key) of(rec Recorded, f facts, who scopes.Subject) ([]byte, bool) {
	k.data = k.data[:0]
	k.flag(rec.Bound)
	k.flag(rec.Proved)
	k.flag(rec.Reason == scopes.ReasonApproved)
	k.flag(rec.Reason == scopes.ReasonBreakGlass)
	k.text(rec.SPIFFEID)
	k.text(rec.Scope)
	k.number(int64(rec.TTL))
	if f.credential.EndsWithSVID(who) {
		k.number(int64(who.Expires.Sub(rec.Time).Truncate(time.Second)))
	}
	k.flag(rec.User != nil)
	if rec.User != nil {
		k.text(rec.User.ID)
		k.number(int64(len(rec.User.Groups)))
		for _, group := range rec.User.Groups {
			k.text(group)
		}
		k.flag(rec.User.Until.IsZero())
		if !rec.User.Until.IsZero() {
			k.number(int64(rec.User.Until.Sub(rec.Time).Truncate(time.Second)))
		}
	}
	// A malformed task makes the request invalid, whether or not a policy reads it.
	k.flag(scopes.ValidTask(rec.Task))
	said := rec.RequestContext
	if !f.readsTask {
		said.Task = ""
	}
	for _, field := range said.Fields() {
		k.text(field.Value)
	}
	k.names = slices.AppendSeq(k.names[:0], maps.Keys(rec.Params))
	slices.Sort(k.names)
	for _, name := range k.names {
		k.text(name)
		switch v := rec.Params[name].(type) {
		case string:
			k.data = append(k.data, 's')
			k.text(v)
		case bool:
			k.data = append(k.data, 'b')
			k.flag(v)
		case json.Number:
			k.data = append(k.data, 'j')
			k.text(string(v))
		case float64:
			k.data = append(k.data, 'f')
			k.data = binary.BigEndian.AppendUint64(k.data, math.Float64bits(v))
		case int64:
			k.data = append(k.data, 'i')
			k.number(v)
		case int:
			k.data = append(k.data, 'i')
			k.number(int64(v))
		default:
			return nil, false
		}
	}
	return k.data, true
}

func (k *key) flag(v bool) { k.data = strconv.AppendBool(k.data, v) }

func (k *key) number(n int64) { k.data = binary.AppendVarint(k.data, n) }

func (k *key) text(s string) {
	k.data = binary.AppendUvarint(k.data, uint64(len(s)))
	k.data = append(k.data, s...)
}
