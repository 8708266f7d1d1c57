package history_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A call is one operation on one object. does names the operation and got names its outcome.
type call struct {
	does string
	who  string // the voter, or what distinguishes one request from another
	got  string
	on   int // the replica
	nth  int // the number of the order to end a token
	from int64
	to   int64
}

// unknown is the outcome of a call that failed with an error that does not rule out an effect.
const unknown = "unknown"

func (c call) String() string {
	return fmt.Sprintf("%8.3f–%8.3f replica %d: %s %s: %s", seconds(c.from), seconds(c.to), c.on, c.does, c.who, c.got)
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

// step reports whether c may happen in a state, and returns the state after it. States are compared by ==.
type step func(state any, c call) (bool, any)

func model(initial any, next step) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) { return next(state, input.(call)) },
	}
}

// held returns whether the model allows the calls.
func held(m porcupine.Model, calls []call) porcupine.CheckResult {
	last := int64(0)
	for _, c := range calls {
		last = max(last, c.to)
	}
	var ops []porcupine.Operation
	for _, c := range calls {
		to := c.to
		if c.got == unknown {
			to = last + 1 // it may take effect at any later time, or never: then it comes last, and models ignore it
		}
		ops = append(ops, porcupine.Operation{Input: c, Call: c.from, Return: to})
	}
	return porcupine.CheckOperationsTimeout(m, ops, 30*time.Second)
}

// holds fails the test unless the model allows the calls.
func holds(t *testing.T, what string, m porcupine.Model, calls []call) {
	t.Helper()
	got := held(m, calls)
	if *tell {
		t.Logf("%s is %s:\n%s", what, got, written(calls))
	}
	if got != porcupine.Ok {
		t.Errorf("%s: the history is %s:\n%s", what, got, written(calls))
	}
}

func written(calls []call) string {
	sorted := slices.SortedFunc(slices.Values(calls), func(a, b call) int { return int(a.from - b.from) })
	var lines []string
	for _, c := range sorted {
		lines = append(lines, c.String())
	}
	return strings.Join(lines, "\n")
}

// A token is active from its issue on. From the order to end it until the confirmation, replicas may differ in their answers;
// after that it is inactive on each of them (I6), for good (I13). An order from before the issue does not affect the token.
//
// No replica goes back from inactive to active: one that has answered inactive has read a committed end, whether or not anyone
// got a confirmation. A replica restarted since has lost only its cache of active tokens, and reads that end again.
type tokenState struct {
	issued, ending, ended bool
	begun                 uint64 // a bit for each order
	dead                  uint8  // a bit for each replica that has said inactive
}

// longestLease is longer than replicas may differ after one of them has read of an end, whether or not the end is confirmed.
const longestLease = time.Second

// phases translates the calls about a token for its model: an end becomes a beginning and, between that and the answer, an effect
// on every replica. The first answer "inactive" shows that an end is recorded, for good: lifting a quarantine first carries out
// its ends, whether or not anyone got a confirmation. An unknown order may have begun. One of these is equivalent to any number
// of them; more would only enlarge the search.
func phases(calls []call) []call {
	var out []call
	var known, lost *call
	n := 0
	for _, c := range calls {
		begun, done := c, c
		begun.does, done.does, begun.nth, done.nth = "begin", "end", n, n
		switch {
		case c.does == "issue", c.does == "ask":
			out = append(out, c)
		case c.does == "lift": // restores no token
		case c.got != unknown:
			out = append(out, begun, done)
			n++
		case lost == nil || c.from < lost.from:
			begun.nth = never
			lost = &begun
		}
		if c.got == "inactive" && (known == nil || c.to < known.from) {
			known = &call{does: "known", got: "inactive", on: c.on, from: c.to, to: c.to + int64(longestLease)}
		}
	}
	for _, c := range []*call{known, lost} {
		if c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// never is the number of an order that is never confirmed.
const never = 63

var token = model(tokenState{}, func(state any, c call) (bool, any) {
	s := state.(tokenState)
	switch {
	case c.does == "issue":
		s.issued = true
	case c.does == "begin":
		s.ending, s.begun = s.issued, s.begun|1<<c.nth
	case c.does == "end":
		s.ended = s.ending
		return s.begun&(1<<c.nth) != 0, s
	case c.does == "known":
		s.ended = true
	case c.got == "active":
		return s.issued && !s.ended && s.dead>>c.on&1 == 0, s
	case c.got == "inactive":
		s.dead |= 1 << c.on
		return s.ending, s
	}
	return true, s
})

// A task of a sandbox accepts requests until it has ended, except during a quarantine. It accepts none after that.
type gateState struct{ ended, quarantined bool }

var gate = model(gateState{}, func(state any, c call) (bool, any) {
	s := state.(gateState)
	switch c.does {
	case "end task":
		s.ended = true
	case "quarantine":
		s.quarantined = true
	case "lift":
		s.quarantined = false
	case "issue":
		switch c.got {
		case "issued":
			return !s.ended && !s.quarantined, s
		case "denied":
			return s.ended || s.quarantined, s
		}
	}
	return true, s
})

// quorum is the number of approvals that the requests here need.
const quorum = 2

// A request waits until enough people have approved it or one has denied it, and is redeemed at most once (I4, I5). It never goes
// back (I13). A call with an unknown outcome takes effect where the checker places it. If it had no effect, the checker places it
// last, where no answer can show that.
type requestState struct {
	status string
	yes    string // who approved, in order
	no     string
	again  bool // the redemption may have failed, and then the request may be redeemed again
}

func with(set, who string) string {
	names := map[string]bool{who: true}
	for name := range strings.FieldsSeq(set) {
		names[name] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), " ")
}

func has(set, who string) bool { return slices.Contains(strings.Fields(set), who) }

var request = model(requestState{status: "pending"}, func(state any, c call) (bool, any) {
	s := state.(requestState)
	want := "decided"
	switch c.does {
	case "approve", "deny":
		s, want = s.voted(c)
	case "stranger":
		want = "refused"
	case "withdraw":
		if s.open() || s.status == "withdrawn" {
			s.status, want = "withdrawn", "withdrawn"
		}
	case "look":
		want = s.status
	case "redeem":
		return s.redeemed(c.got)
	}
	return c.got == unknown || c.got == want, s
})

func (s requestState) open() bool { return s.status == "pending" || s.status == "approved" }

// voted returns the state after a vote, and the answer that the voter gets.
func (s requestState) voted(c call) (requestState, string) {
	switch {
	case c.does == "deny" && s.status == "redeemed":
		s.again = false // an issued credential has ended, and no other will be issued
		return s, "decided"
	case c.does == "approve" && has(s.yes, c.who), c.does == "deny" && has(s.no, c.who):
		return s, s.status // the vote counts already
	case c.does == "deny" && s.open():
		s.status, s.no = "rejected", with(s.no, c.who)
		return s, s.status
	case c.does == "approve" && s.status == "pending":
		if s.yes = with(s.yes, c.who); len(strings.Fields(s.yes)) >= quorum {
			s.status = "approved"
		}
		return s, s.status
	}
	return s, "decided"
}

// redeemed reports whether a redemption may have this outcome, and returns the state after it.
func (s requestState) redeemed(got string) (bool, any) {
	is := s
	switch got {
	case "token":
		s.status, s.again = "redeemed", false
		return is.status == "approved" || is.status == "redeemed" && is.again, s
	case "pending":
		return is.status == "pending", s
	case "refused":
		return !is.open(), s
	}
	if is.status == "approved" {
		s.status, s.again = "redeemed", true
	}
	return true, s
}

// An idempotency key is good for one issue, of one thing (H103). A failed request may have left it free for another.
type keyState struct{ tried, issued string }

var key = model(keyState{}, func(state any, c call) (bool, any) {
	s := state.(keyState)
	others := strings.Join(slices.DeleteFunc(strings.Fields(s.tried+" "+s.issued), func(what string) bool { return what == c.who }), " ")
	switch c.got {
	case "issued":
		ok := s.issued == ""
		s.issued = c.who
		return ok, s
	case "conflict":
		return s.issued == c.who || s.issued == "" && has(s.tried, c.who), s
	case "mismatch":
		return s.issued != c.who && others != "", s
	}
	s.tried = with(s.tried, c.who)
	return true, s
})

// A one-shot token is active for the first introspection only.
var shot = model(false, func(state any, c call) (bool, any) {
	used := state.(bool)
	switch c.got {
	case "active":
		return !used, true
	case "inactive":
		return used, used
	}
	return true, true
})
