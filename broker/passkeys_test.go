package broker_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
	"pgregory.net/rapid"
)

// keyed is a voter with a passkey.
type keyed struct {
	broker.Voter
	a   *testkit.Authenticator
	key passkey.Key
}

func withKeys(t *testing.T, names ...string) (all []keyed) {
	t.Helper()
	for _, name := range names {
		a, challenge := testkit.NewAuthenticator(t, testkit.Site.ID, testkit.Audience), []byte("of nobody's choosing")
		key, err := passkey.Register(a.Register(t, challenge), challenge, testkit.Site)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, keyed{voter(name, "oncall"), a, key})
	}
	return all
}

// signs returns an approval, signed over hash.
func (k keyed) signs(t *testing.T, hash [32]byte) broker.Vote {
	t.Helper()
	a, err := passkey.ParseAssertion(k.a.Assert(t, hash[:]))
	if err != nil {
		t.Fatal(err)
	}
	return broker.Vote{
		Voter: k.Voter, Verdict: broker.Approve, Covers: broker.CoverTask, Time: noon, Assertion: a.String(), Key: &k.key,
	}
}

// spoilt lists the ways to invalidate a signed vote.
var spoilt = map[string]func(v *broker.Vote, other, before broker.Vote){
	"nothing":          func(*broker.Vote, broker.Vote, broker.Vote) {},
	"no signature":     func(v *broker.Vote, _, _ broker.Vote) { v.Assertion = "" },
	"no key any more":  func(v *broker.Vote, _, _ broker.Vote) { v.Key = nil },
	"another's":        func(v *broker.Vote, other, _ broker.Vote) { v.Assertion = other.Assertion },
	"another's key":    func(v *broker.Vote, other, _ broker.Vote) { v.Key = other.Key },
	"of another time":  func(v *broker.Vote, _, before broker.Vote) { v.Assertion = before.Assertion },
	"half a signature": func(v *broker.Vote, _, _ broker.Vote) { v.Assertion = v.Assertion[:len(v.Assertion)/2] },
}

// I5 and T3: only votes that their voters have signed count.
func TestNoVoteCountsWithoutASignature(t *testing.T) {
	e := broker.At(approvalPolicy(t), testkit.Site)
	people := withKeys(t, "bob", "carol", "dan")
	kinds := make([]string, 0, len(spoilt))
	for kind := range spoilt {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	rapid.Check(t, func(rt *rapid.T) {
		c := asked(rapid.IntRange(1, 3).Draw(rt, "quorum"), broker.StatusApproved)
		c.Canonical = `{"request":"1","passkey":"required"}`
		old := *c
		old.Canonical = `{"request":"0","passkey":"required"}`
		good := 0
		for i, who := range people {
			if !rapid.Bool().Draw(rt, "votes") {
				continue
			}
			kind := rapid.SampledFrom(kinds).Draw(rt, "spoilt")
			v, other := who.signs(t, c.Hash()), people[(i+1)%len(people)]
			spoilt[kind](&v, other.signs(t, c.Hash()), who.signs(t, old.Hash()))
			c.VotesCast = append(c.VotesCast, v)
			if kind == "nothing" {
				good++
			}
		}
		want := error(nil)
		if good < c.ApprovalQuorum {
			want = broker.ErrNotApproved
		}
		if err := broker.Redeemable(e, c, noon); !errors.Is(err, want) {
			rt.Errorf("%d of %d have signed: got %v, want %v", good, c.ApprovalQuorum, err, want)
		}
		if err := broker.Redeemable(approvalPolicy(t), c, noon); !errors.Is(err, broker.ErrNotApproved) {
			rt.Errorf("where passkeys are for no site: got %v", err)
		}
	})
}

// A reused approval needs its original signature, and covers only requests for the same thing.
func TestWhatIsRememberedWasSigned(t *testing.T) {
	e := broker.At(approvalPolicy(t), testkit.Site)
	carol := withKeys(t, "carol")[0]
	const text = `{"request":"1","scope":"a.b","ttl":60,"expires":1000,"passkey":"required"}`
	for name, tc := range map[string]struct {
		then   string // what Carol was shown
		change func(before *broker.ApprovalRequest, v *broker.Vote)
		want   error
	}{
		"the same ask":         {text, nil, nil},
		"another ask":          {`{"request":"1","scope":"a.c","ttl":60,"expires":1000,"passkey":"required"}`, nil, broker.ErrNotApproved},
		"for longer":           {`{"request":"1","scope":"a.b","ttl":59,"expires":1000,"passkey":"required"}`, nil, broker.ErrNotApproved},
		"too long ago":         {`{"request":"1","scope":"a.b","ttl":60,"expires":-28800,"passkey":"required"}`, nil, broker.ErrNotApproved},
		"for that one only":    {text, func(_ *broker.ApprovalRequest, v *broker.Vote) { v.Covers = broker.CoverRequest }, broker.ErrNotApproved},
		"without a signature":  {text, func(_ *broker.ApprovalRequest, v *broker.Vote) { v.Assertion = "" }, broker.ErrNotApproved},
		"what was remembered":  {text, func(before *broker.ApprovalRequest, _ *broker.Vote) { before.Remembered = "0" }, broker.ErrNotApproved},
		"another than is said": {text, func(before *broker.ApprovalRequest, _ *broker.Vote) { before.ID = "2" }, broker.ErrNotApproved},
	} {
		before, now := asked(1, broker.StatusRedeemed), asked(1, broker.StatusApproved)
		before.Canonical, now.Canonical = tc.then, `{"request":"9","scope":"a.b","ttl":60,"expires":1060,"passkey":"required"}`
		v := carol.signs(t, before.Hash())
		if tc.change != nil {
			tc.change(before, &v)
		}
		before.VotesCast = []broker.Vote{v}
		now.VotesCast, now.Remembered = []broker.Vote{v}, "id"
		if err := broker.Redeemable(e, broker.RememberedOf(now, before), noon.Add(time.Second)); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	alone := asked(1, broker.StatusApproved)
	alone.Canonical, alone.Remembered = text, "id"
	alone.VotesCast = []broker.Vote{carol.signs(t, alone.Hash())}
	if err := broker.Redeemable(e, alone, noon); !errors.Is(err, broker.ErrNotApproved) {
		t.Errorf("of nothing that is there: got %v", err)
	}
}
