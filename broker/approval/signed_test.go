package approval_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
	"pgregory.net/rapid"
)

// at returns the policy for passkeys of a site.
func at(t *testing.T, site passkey.RelyingParty) approval.Policy {
	t.Helper()
	e := approvalPolicy(t)
	e.Site = site
	return e
}

// reusing returns a request that reuses the approval of another.
func reusing(c, before *approval.Request) *approval.Request {
	with := *c
	with.Reused = before
	return &with
}

// keyed is a voter with a passkey.
type keyed struct {
	approval.Voter
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
func (k keyed) signs(t *testing.T, hash [32]byte) approval.Vote {
	t.Helper()
	a, err := passkey.ParseAssertion(k.a.Assert(t, hash[:]))
	if err != nil {
		t.Fatal(err)
	}
	return approval.Vote{
		Voter: k.Voter, Verdict: approval.Approve, Covers: approval.CoverTask, Time: noon, Assertion: a.String(), Key: &k.key,
	}
}

// spoilt lists the ways to invalidate a signed vote.
var spoilt = map[string]func(v *approval.Vote, other, before approval.Vote){
	"nothing":          func(*approval.Vote, approval.Vote, approval.Vote) {},
	"no signature":     func(v *approval.Vote, _, _ approval.Vote) { v.Assertion = "" },
	"no key any more":  func(v *approval.Vote, _, _ approval.Vote) { v.Key = nil },
	"another's":        func(v *approval.Vote, other, _ approval.Vote) { v.Assertion = other.Assertion },
	"another's key":    func(v *approval.Vote, other, _ approval.Vote) { v.Key = other.Key },
	"of another time":  func(v *approval.Vote, _, before approval.Vote) { v.Assertion = before.Assertion },
	"half a signature": func(v *approval.Vote, _, _ approval.Vote) { v.Assertion = v.Assertion[:len(v.Assertion)/2] },
}

// I5 and T3: only votes that their voters have signed count.
func TestNoVoteCountsWithoutASignature(t *testing.T) {
	e := at(t, testkit.Site)
	people := withKeys(t, "bob", "carol", "dan")
	kinds := make([]string, 0, len(spoilt))
	for kind := range spoilt {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	rapid.Check(t, func(rt *rapid.T) {
		c := asked(rapid.IntRange(1, 3).Draw(rt, "quorum"), approval.Approved)
		c.Canonical = `{"request":"1","passkey":"required"}`
		old := *c
		old.Canonical = `{"request":"0","passkey":"required"}`
		good := 0
		for i, who := range people {
			if !rapid.Bool().Draw(rt, "votes") {
				continue
			}
			kind := rapid.SampledFrom(kinds).Draw(rt, "spoilt")
			v, other := who.signs(t, c.Canonical.Hash()), people[(i+1)%len(people)]
			spoilt[kind](&v, other.signs(t, c.Canonical.Hash()), who.signs(t, old.Canonical.Hash()))
			c.Votes = append(c.Votes, v)
			if kind == "nothing" {
				good++
			}
		}
		want := error(nil)
		if good < c.Quorum {
			want = approval.ErrNotApproved
		}
		if err := e.Redeemable(c, noon); !errors.Is(err, want) {
			rt.Errorf("%d of %d have signed: got %v, want %v", good, c.Quorum, err, want)
		}
		if err := approvalPolicy(t).Redeemable(c, noon); !errors.Is(err, approval.ErrNotApproved) {
			rt.Errorf("where passkeys are for no site: got %v", err)
		}
	})
}

// A reused approval needs its original signature, and covers only requests for the same thing.
func TestReusedApprovalNeedsItsSignature(t *testing.T) {
	e := at(t, testkit.Site)
	carol := withKeys(t, "carol")[0]
	const text = `{"request":"1","scope":"a.b","ttl":60,"expires":1000,"passkey":"required"}`
	for name, tc := range map[string]struct {
		then   string // what Carol was shown
		change func(before *approval.Request, v *approval.Vote)
		want   error
	}{
		"the same ask":         {text, nil, nil},
		"another ask":          {`{"request":"1","scope":"a.c","ttl":60,"expires":1000,"passkey":"required"}`, nil, approval.ErrNotApproved},
		"for longer":           {`{"request":"1","scope":"a.b","ttl":59,"expires":1000,"passkey":"required"}`, nil, approval.ErrNotApproved},
		"too long ago":         {`{"request":"1","scope":"a.b","ttl":60,"expires":-28800,"passkey":"required"}`, nil, approval.ErrNotApproved},
		"for that one only":    {text, func(_ *approval.Request, v *approval.Vote) { v.Covers = approval.CoverRequest }, approval.ErrNotApproved},
		"without a signature":  {text, func(_ *approval.Request, v *approval.Vote) { v.Assertion = "" }, approval.ErrNotApproved},
		"what was remembered":  {text, func(before *approval.Request, _ *approval.Vote) { before.Reuses = "0" }, approval.ErrNotApproved},
		"another than is said": {text, func(before *approval.Request, _ *approval.Vote) { before.ID = "2" }, approval.ErrNotApproved},
	} {
		before, now := asked(1, approval.Redeemed), asked(1, approval.Approved)
		before.Canonical, now.Canonical = approval.Canonical(tc.then), `{"request":"9","scope":"a.b","ttl":60,"expires":1060,"passkey":"required"}`
		v := carol.signs(t, before.Canonical.Hash())
		if tc.change != nil {
			tc.change(before, &v)
		}
		before.Votes = []approval.Vote{v}
		now.Votes, now.Reuses = []approval.Vote{v}, "id"
		if err := e.Redeemable(reusing(now, before), noon.Add(time.Second)); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	alone := asked(1, approval.Approved)
	alone.Canonical, alone.Reuses = text, "id"
	alone.Votes = []approval.Vote{carol.signs(t, alone.Canonical.Hash())}
	if err := e.Redeemable(alone, noon); !errors.Is(err, approval.ErrNotApproved) {
		t.Errorf("of nothing that is there: got %v", err)
	}
}
