package scopes

import (
	"maps"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Recorded is a decision made earlier, and the request it was about.
type Recorded struct {
	ID       string // identifies it among the samples
	SPIFFEID string
	Bound    bool           // the caller used mTLS with an X.509-SVID
	Proved   bool           // the caller sent a DPoP proof
	Expires  time.Time      // of the SVID; zero if unknown, which bounds nothing
	User     *User          // the person the caller acted for, with their groups at that time; nil for none
	Scope    string         // Scope and the next three fields are as requested
	Params   map[string]any // never modified
	TTL      time.Duration
	Task     string
	Time     time.Time
	Outcome  Outcome
	Reason   string
	Given    time.Duration // the TTL that was given; 0 if it is not to be compared
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

// maxMemo is the maximum number of requests that a Replayer remembers.
const maxMemo = 1 << 17

// Replayer decides recorded requests again, by a draft. Like Assess, it assumes that their keys are suitable. It is not
// safe for concurrent use: give each goroutine its own and Merge them.
//
// Replayer decides identical requests once. That is sound because a decision uses only two things about the time: the
// remaining life of the SVID, and only where the credential ends with it, and that of a person's ID token. Where a
// decision uses them, they are part of what makes requests identical. The task is part of it where a policy reads the
// task.
type Replayer struct {
	draft   *Catalogue
	views   map[string]*view
	memo    map[string]answer
	key     keyBuffer
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

// view is the draft restricted to one scope.
type view struct {
	*Catalogue
	def      *definition
	readTask bool // whether a policy about the scope reads the task
}

// answer is the part of a decision that is compared.
type answer struct {
	outcome Outcome // or Invalid
	ttl     time.Duration
}

// NewReplayer returns a Replayer that decides by draft.
func NewReplayer(draft *Catalogue) *Replayer {
	return &Replayer{
		draft: draft, views: map[string]*view{}, memo: map[string]answer{}, counts: map[Shift]int64{},
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
	case ReasonLimited, ReasonQuarantined, ReasonTaskEnded:
		return NotByPolicies
	}
	got := r.decide(rec)
	known := rec.Outcome == Allow || rec.Outcome == Deny || rec.Outcome == Pending
	switch {
	case got.outcome == Invalid || !known:
		return Undecidable
	case got.outcome != rec.Outcome:
		return turned(rec.Outcome, got.outcome)
	case rec.Outcome == Deny || rec.Given == 0 || rec.Given == got.ttl:
		return Unchanged
	case got.ttl > rec.Given:
		return NowLonger
	default:
		return NowShorter
	}
}

func turned(was, is Outcome) Shift {
	switch {
	case is == Deny:
		return NewlyDenied
	case was == Deny && is == Allow:
		return NewlyAllowed
	case was == Deny:
		return NewlyAskable
	case is == Pending:
		return NewlyGated
	default:
		return NewlyUngated
	}
}

// decide answers a recorded request, from memory where that is sound.
func (r *Replayer) decide(rec Recorded) answer {
	who, ok := r.who(rec)
	if !ok {
		return answer{outcome: Invalid}
	}
	v := r.view(rec.Scope)
	key, whole := r.key.of(rec, v, who)
	if known, ok := r.memo[string(key)]; ok && whole {
		return known
	}
	got := v.decideAgain(rec, who)
	if whole {
		if len(r.memo) >= maxMemo {
			clear(r.memo)
		}
		r.memo[string(key)] = got
	}
	return got
}

func (v *view) decideAgain(rec Recorded, who Subject) answer {
	judge := v.judge
	switch rec.Reason {
	case ReasonApproved:
		judge = v.judgeApproved
	case ReasonBreakGlass:
		judge = v.judgeBreakGlass
	}
	ask := Ask{Scope: rec.Scope, Params: rec.Params, TTL: rec.TTL, Task: rec.Task}
	d, err := v.Catalogue.decide(who, ask, v.takenForSent(rec.Scope), rec.Time, judge)
	if err != nil {
		return answer{outcome: Invalid}
	}
	return answer{outcome: d.Outcome, ttl: d.TTL}
}

// who parses the SPIFFE ID. It keeps the last one, because consecutive decisions often have the same ID.
func (r *Replayer) who(rec Recorded) (Subject, bool) {
	if s := &r.subject; s.text != rec.SPIFFEID {
		s.text = rec.SPIFFEID
		s.id, s.err = spiffeid.FromString(rec.SPIFFEID)
	}
	expires := rec.Expires
	switch {
	case expires.IsZero() && rec.Reason == ReasonSVIDExpiring:
		expires = rec.Time
	case expires.IsZero():
		expires = rec.Time.Add(exampleSVID)
	}
	return Subject{ID: r.subject.id, Bound: rec.Bound, Proved: rec.Proved, Expires: expires, User: rec.User}, r.subject.text != "" && r.subject.err == nil
}

func (r *Replayer) view(scope string) *view {
	if v, ok := r.views[scope]; ok {
		return v
	}
	def, ok := r.draft.scopes[scope]
	if !ok {
		return &view{Catalogue: r.draft} // not cached: the number of unknown names is unbounded
	}
	v := &view{Catalogue: r.draft, def: def}
	for _, p := range r.draft.policies {
		v.readTask = v.readTask || p.admits(def) && p.readsTask()
	}
	r.views[scope] = v
	return v
}
