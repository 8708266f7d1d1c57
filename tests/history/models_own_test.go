package history_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// revived takes a call that began after an end was confirmed, and fails the test unless the model rejects the history in which
// that call reports an active token. If there is no such call, there is nothing to try.
func revived(t *testing.T, calls []call) {
	t.Helper()
	issue := calls[slices.IndexFunc(calls, func(c call) bool { return c.does == "issue" })]
	for i, c := range calls {
		over := slices.ContainsFunc(calls, func(e call) bool { return e.got == "done" && e.does != "lift" && e.from > issue.to && e.to < c.from })
		if c.got != "inactive" || !over {
			continue
		}
		spoiled := slices.Clone(calls)
		spoiled[i].got = "active"
		if held(token, phases(spoiled)) != porcupine.Illegal {
			t.Errorf("the model takes a token that came alive again:\n%s", written(spoiled))
		}
		return
	}
}

// parsed parses calls, one after the other: "does by who at replica: got". The replica is a or b; without one it is a. Calls in
// brackets are concurrent. Any other call comes long after the one before, unless it is marked "soon".
func parsed(text string) []call {
	var calls []call
	now, within := int64(0), false
	for part := range strings.SplitSeq(text, ", ") {
		opens, closes := strings.HasPrefix(part, "["), strings.HasSuffix(part, "]")
		part, soon := strings.CutPrefix(part, "soon ")
		switch {
		case soon:
			now += int64(longestLease) / 100
		case opens || !within:
			now += 10 * int64(longestLease)
		}
		within = (within || opens) && !closes
		what, got, _ := strings.Cut(strings.Trim(part, "[]"), ": ")
		what, on, _ := strings.Cut(what, " at ")
		does, who, _ := strings.Cut(what, " by ")
		calls = append(calls, call{does: does, who: who, got: got, on: strings.Index("ab", on), from: now, to: now + 1})
	}
	return calls
}

// Each model must accept the valid histories and reject the invalid ones: a checker that accepts everything checks nothing.
func TestModels(t *testing.T) {
	for _, tc := range []struct {
		name     string
		model    porcupine.Model
		parse    func(string) []call
		ok, lies []string
	}{
		{"token", token, func(text string) []call { return phases(parsed(text)) }, []string{
			"issue: issued, ask: active, end task: done, ask: inactive, ask: inactive",
			"issue: issued, [release: done, ask: inactive, ask: active], ask: inactive",
			"issue: issued, revoke: unknown, ask: active, ask: active",
			"issue: issued, revoke: unknown, ask: active, ask: inactive, ask: inactive",
			"quarantine: done, issue: issued, ask: active",
			"[quarantine: done, issue: issued], ask: active",
			"[quarantine: done, issue: issued], ask: inactive",
			"issue: issued, revoke: unknown, ask: inactive, soon ask at b: active, soon ask at b: inactive, soon ask: inactive",
			"issue: issued, revoke: unknown, [ask: inactive, ask: active], soon ask at b: active",
			"issue: issued, quarantine: unknown, ask: active, lift: done, ask: active",
		}, []string{
			"issue: issued, ask: active, end task: done, ask: active",
			"issue: issued, ask: inactive",
			"issue: issued, ask: inactive, release: done",
			"issue: issued, revoke: unknown, ask: inactive, ask: active",
			"issue: issued, [release: done, ask: inactive], ask: active",
			"issue: issued, quarantine: done, ask: inactive, lift: done, ask: active",
			"issue: issued, quarantine: unknown, ask: inactive, lift: done, ask: active",
			"issue: issued, quarantine: unknown, ask: inactive, lift: unknown, soon ask: active",
			"[quarantine: done, issue: issued], ask: inactive, ask: active",
			"issue: issued, revoke: unknown, ask: inactive, soon ask: active",
			"issue: issued, revoke: unknown, ask: inactive, soon ask at b: active, soon ask at b: inactive, soon ask at b: active",
			"issue: issued, [revoke: unknown, ask: inactive, ask: active], soon ask: active, soon ask: inactive, soon ask: active",
			"issue: issued, quarantine: unknown, ask: inactive, ask: active, lift: done",
			"issue: issued, quarantine: unknown, ask: inactive, lift: done, ask: active, ask: inactive, ask: active",
		}},
		{"task", gate, parsed, []string{
			"issue: issued, quarantine: done, issue: denied, lift: done, issue: issued, end task: done, issue: denied",
			"[end task: done, issue: issued], issue: denied",
			"quarantine: unknown, issue: issued, issue: denied, issue: denied",
		}, []string{
			"issue: denied",
			"end task: done, issue: issued",
			"quarantine: done, issue: issued",
			"quarantine: unknown, issue: denied, issue: issued",
			"quarantine: done, lift: done, issue: denied",
		}},
		{"request", request, parsed, []string{
			"redeem: pending, approve by a: pending, approve by a: pending, approve by b: approved, approve by c: decided, redeem: token, redeem: refused, look: redeemed",
			"approve by a: pending, [approve by b: unknown, redeem: token], redeem: refused",
			"approve by a: pending, approve by b: approved, redeem: unknown, look: redeemed, redeem: token, redeem: refused",
			"stranger by m: refused, approve by a: pending, deny by b: rejected, approve by c: decided, redeem: refused",
			"approve by a: pending, withdraw: withdrawn, approve by b: decided, redeem: refused",
			"approve by a: pending, approve by b: approved, [redeem: token, withdraw: decided, deny by c: decided], look: redeemed",
			"approve by a: pending, approve by b: approved, redeem: unknown, approve by c: decided, look: redeemed, redeem: token",
			"approve by a: pending, approve by b: approved, redeem: unknown, look: approved, redeem: unknown, look: redeemed, redeem: refused, redeem: token",
			"approve by a: pending, approve by b: approved, redeem: unknown, deny by c: unknown, redeem: token, deny by c: decided",
			"approve by a: pending, approve by b: approved, redeem: unknown, approve by a: approved, withdraw: unknown, look: withdrawn, redeem: refused",
		}, []string{
			"redeem: token",
			"approve by a: pending, redeem: token",
			"approve by a: pending, approve by a: approved",
			"approve by a: pending, stranger by m: approved",
			"approve by a: pending, approve by b: pending",
			"approve by a: pending, approve by b: approved, redeem: token, redeem: token",
			"approve by a: pending, approve by b: approved, [redeem: token, redeem: token]",
			"approve by a: pending, approve by b: approved, redeem: unknown, redeem: token, redeem: token",
			"approve by a: pending, approve by b: approved, deny by c: rejected, redeem: token",
			"deny by a: rejected, approve by b: pending",
			"approve by a: pending, approve by b: approved, look: pending",
			"withdraw: withdrawn, look: pending",
			"approve by a: pending, approve by b: approved, redeem: unknown, deny by c: rejected, look: redeemed",
			"approve by a: pending, approve by b: approved, redeem: unknown, withdraw: withdrawn, look: redeemed",
			"approve by a: pending, approve by b: approved, redeem: unknown, withdraw: withdrawn, redeem: token",
			"approve by a: pending, approve by b: approved, redeem: unknown, look: redeemed, look: approved, look: redeemed",
			"approve by a: pending, approve by b: approved, redeem: unknown, look: redeemed, deny by c: rejected",
			"approve by a: pending, approve by b: approved, redeem: unknown, approve by a: redeemed, look: approved",
			"approve by a: pending, approve by b: approved, redeem: unknown, redeem: refused, look: approved",
			"approve by a: pending, approve by b: approved, redeem: unknown, withdraw: decided, withdraw: withdrawn",
			"approve by a: pending, approve by b: approved, redeem: unknown, deny by c: decided, redeem: token",
		}},
		{"key", key, parsed, []string{
			"issue by x: issued, issue by x: conflict, issue by y: mismatch",
			"[issue by x: issued, issue by y: mismatch, issue by x: conflict]",
			"issue by x: unknown, issue by x: conflict, issue by x: conflict",
			"issue by x: unknown, issue by x: issued, issue by x: conflict",
			"issue by x: unknown, issue by x: conflict, issue by y: mismatch, issue by y: issued, issue by x: mismatch",
		}, []string{
			"issue by x: issued, issue by x: issued",
			"[issue by x: issued, issue by x: issued]",
			"issue by x: unknown, issue by x: issued, issue by x: issued",
			"issue by x: conflict, issue by x: issued",
			"issue by x: mismatch",
			"issue by x: issued, issue by y: conflict",
		}},
		{"one-shot token", shot, parsed, []string{
			"use: active, use: inactive", "[use: inactive, use: active]", "use: unknown, use: inactive", "use: unknown, use: active, use: inactive",
		}, []string{
			"use: active, use: active", "[use: active, use: active]", "use: inactive", "use: inactive, use: active", "use: unknown, use: active, use: active",
		}},
	} {
		for _, text := range tc.ok {
			if got := held(tc.model, tc.parse(text)); got != porcupine.Ok {
				t.Errorf("%s: %s is %s, want it taken", tc.name, text, got)
			}
		}
		for _, text := range tc.lies {
			if got := held(tc.model, tc.parse(text)); got != porcupine.Illegal {
				t.Errorf("%s: %s is %s, want it refused", tc.name, text, got)
			}
		}
	}
}
