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

// A call is one operation on one thing. What it does has a name, and what came of it another one.
type call struct {
	does string
	who  string // the voter, or what an ask differs in
	got  string
	on   int // the replica
	nth  int // of the orders about a token
	from int64
	to   int64
}

// unknown is what came of a call whose answer is an error that does not say that nothing happened.
const unknown = "unknown"

func (c call) String() string {
	return fmt.Sprintf("%8.3f–%8.3f replica %d: %s %s: %s", seconds(c.from), seconds(c.to), c.on, c.does, c.who, c.got)
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

// step tells whether c may happen in a state, and what that becomes. States are compared by ==.
type step func(state any, c call) (bool, any)

func model(initial any, next step) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) { return next(state, input.(call)) },
	}
}

// held tells whether calls are what the model allows.
func held(m porcupine.Model, calls []call) porcupine.CheckResult {
	last := int64(0)
	for _, c := range calls {
		last = max(last, c.to)
	}
	var ops []porcupine.Operation
	for _, c := range calls {
		to := c.to
		if c.got == unknown {
			to = last + 1 // at any time later, which may be never: it is the last one then, and models let it be
		}
		ops = append(ops, porcupine.Operation{Input: c, Call: c.from, Return: to})
	}
	return porcupine.CheckOperationsTimeout(m, ops, 30*time.Second)
}

// holds fails the test unless they are.
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

// A token is active from its issue on. From when its end was ordered until that is confirmed, replicas may differ in what they
// say; then it is inactive on each of them (I6), for good (I13). What was ordered before its issue is not about it.
//
// None takes its own word back: one that has said inactive has read of an end that is committed, whether anybody was told so or
// not. One that was restarted since has forgotten only which tokens it took for active, and reads that end again.
type tokenState struct {
	issued, ending, ended bool
	begun                 uint64 // a bit for each order
	dead                  uint8  // a bit for each replica that has said inactive
}

// longestLease is more than replicas may differ for once one of them has read of an end, whether anybody confirms it or not.
const longestLease = time.Second

// phases are the calls of a token as its model knows them: an end has a beginning and, between it and the answer, an effect on
// every replica. When the first is told inactive, an end was recorded, and for good: who lifts a quarantine carries it out before,
// whether anybody was told of it or not. What is unknown may have begun, and one of that is as much as any number of it: more
// would only be more orders to look through.
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
		case c.does == "lift": // which brings nothing back
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

// never is the number of an order that nobody confirms.
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

// A task of a sandbox takes asks until it has ended, and while there is no quarantine. It takes none after that.
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

// quorum is of the requests here.
const quorum = 2

// A request waits until as many people as it takes said yes, or one said no, and is redeemed once at most (I4, I5). It never goes
// back (I13), whatever is unknown: each such call has done what it does where it stands, or it stands at the end, where nobody
// sees that it did nothing.
type requestState struct {
	status string
	yes    string // of whom, in order
	no     string
	again  bool // what it was redeemed by may have come to nothing, and then it may be redeemed again
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

// voted is what a vote makes of it, and what the voter is told.
func (s requestState) voted(c call) (requestState, string) {
	switch {
	case c.does == "deny" && s.status == "redeemed":
		s.again = false // what was issued has ended all the same, and nothing else will be
		return s, "decided"
	case c.does == "approve" && has(s.yes, c.who), c.does == "deny" && has(s.no, c.who):
		return s, s.status // it counts already
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

// redeemed is what trying to redeem it makes of it.
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

// An idempotency key is good for one issue, of one thing (H103). What has failed may have left it free for another.
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

// A one-shot token is active for the first who asks.
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
