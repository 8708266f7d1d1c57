package approval_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/people"
	"pgregory.net/rapid"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// approvalPolicy lets the groups oncall and leads approve below spiffe://acme.example, and derives owners from SPIFFE IDs.
func approvalPolicy(t testing.TB) approval.Policy {
	t.Helper()
	rules, err := people.NewRules([]people.Rule{
		{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.example"}},
		{Role: people.RoleApprover, Group: "leads", Within: []string{"spiffe://acme.example"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	owners, err := people.NewOwners([]string{"spiffe://acme.example/users/{owner}/**"})
	if err != nil {
		t.Fatal(err)
	}
	return approval.Policy{Rules: rules, Owners: owners}
}

func voter(name string, groups ...string) approval.Voter {
	return approval.Voter{ID: "https://idp.example#" + name, Name: name, Handle: name, Groups: groups}
}

func asked(quorum int, status approval.Status) *approval.Request {
	return &approval.Request{
		ID: "id", SPIFFEID: "spiffe://acme.example/users/alice/bot", Status: status, Group: "oncall", Quorum: quorum, BreakGlass: "leads",
		Expires: noon.Add(time.Minute),
	}
}

// broken returns a request with break-glass votes by these people, who are now in these groups.
func broken(status approval.Status, by map[string][]string) *approval.Request {
	c := asked(3, status)
	for name, groups := range by {
		c.Votes = append(c.Votes, approval.Vote{Voter: voter(name, groups...), Verdict: approval.BreakGlass, Note: "nobody answers", Time: noon})
	}
	return c
}

func TestNextUnderBreakGlass(t *testing.T) {
	breaks := func(v approval.Voter) approval.Vote {
		return approval.Vote{Voter: v, Verdict: approval.BreakGlass, Note: "nobody answers", Time: noon}
	}
	leads, both := []string{"leads"}, []string{"oncall", "leads"}
	one := map[string][]string{"dave": leads}
	noNote, nobody, twoAsked := breaks(voter("dave", leads...)), asked(3, approval.Pending), asked(3, approval.Pending)
	noNote.Note, nobody.BreakGlass = "\t ", ""
	for _, name := range []string{"bob", "carol"} {
		twoAsked.Votes = append(twoAsked.Votes, approval.Vote{Voter: voter(name, "oncall"), Verdict: approval.Approve, Time: noon})
	}
	both2 := broken(approval.Pending, nil)
	both2.Votes = []approval.Vote{{Voter: voter("dave", both...), Verdict: approval.Approve, Time: noon}, breaks(voter("erin", leads...))}
	for _, tc := range []struct {
		name    string
		c       *approval.Request
		v       approval.Vote
		want    approval.Status
		wantErr error
	}{
		{"the first", asked(3, approval.Pending), breaks(voter("dave", leads...)), approval.Pending, nil},
		{"the second", broken(approval.Pending, one), breaks(voter("erin", leads...)), approval.Approved, nil},
		{"the first again", broken(approval.Pending, one), breaks(voter("dave", leads...)), approval.Pending, nil},
		{"the first has left the group", broken(approval.Pending, map[string][]string{"dave": {"oncall"}}), breaks(voter("erin", leads...)), approval.Pending, nil},
		{"two who were asked, and one", twoAsked, breaks(voter("dave", leads...)), approval.Pending, nil},
		{"an ordinary yes first", both2, breaks(voter("dave", both...)), approval.Pending, nil},
		{"an ordinary yes afterwards", broken(approval.Pending, map[string][]string{"dave": both}), approval.Vote{
			Voter: voter("dave", both...), Verdict: approval.Approve, Time: noon,
		}, approval.Pending, nil},
		{"a no by who stands in", asked(3, approval.Pending), approval.Vote{Voter: voter("dave", leads...), Verdict: approval.Deny, Time: noon}, approval.Rejected, nil},
		{"a no afterwards", broken(approval.Approved, one), approval.Vote{Voter: voter("bob", "oncall"), Verdict: approval.Deny, Time: noon}, approval.Rejected, nil},
		{"an ordinary yes by who stands in", asked(3, approval.Pending), approval.Vote{
			Voter: voter("dave", leads...), Verdict: approval.Approve, Time: noon,
		}, "", approval.ErrNotEligible},
		{"of the group that was asked", asked(3, approval.Pending), breaks(voter("bob", "oncall")), "", approval.ErrNotEligible},
		{"where nobody may", nobody, breaks(voter("dave", leads...)), "", approval.ErrNotEligible},
		{"of a nameless group where nobody may", nobody, breaks(voter("dave", "", "oncall")), "", approval.ErrNotEligible},
		{"the owner", broken(approval.Pending, one), breaks(voter("alice", leads...)), "", approval.ErrOwnRequest},
		{"without a note", asked(3, approval.Pending), noNote, "", approval.ErrNoNote},
		{"too late", asked(3, approval.Withdrawn), breaks(voter("dave", leads...)), "", approval.ErrDecided},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := approvalPolicy(t).Next(tc.c, tc.v)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// I5: a vote counts only while the request is open, and only of a person who may decide and does not own the sandbox.
func TestNext(t *testing.T) {
	bob := voter("bob", "oncall")
	yes, no := approval.Approve, approval.Deny
	decided := approval.ErrDecided
	for _, tc := range []struct {
		name    string
		c       *approval.Request
		v       approval.Vote
		want    approval.Status
		wantErr error
	}{
		{"one of one", asked(1, approval.Pending), approval.Vote{Voter: bob, Verdict: yes, Time: noon}, approval.Approved, nil},
		{"one of two", asked(2, approval.Pending), approval.Vote{Voter: bob, Verdict: yes, Time: noon}, approval.Pending, nil},
		{"no", asked(2, approval.Pending), approval.Vote{Voter: bob, Verdict: no, Time: noon}, approval.Rejected, nil},
		{"no to what is approved", asked(1, approval.Approved), approval.Vote{Voter: bob, Verdict: no, Time: noon}, approval.Rejected, nil},
		{"yes to what is approved", asked(1, approval.Approved), approval.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"at the end of the wait", asked(1, approval.Pending), approval.Vote{Voter: bob, Verdict: yes, Time: noon.Add(time.Minute)}, "", decided},
		{"no to what is redeemed", asked(1, approval.Redeemed), approval.Vote{Voter: bob, Verdict: no, Time: noon}, approval.Redeemed, nil},
		{"yes to what is redeemed", asked(1, approval.Redeemed), approval.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"withdrawn", asked(1, approval.Withdrawn), approval.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"of no group", asked(1, approval.Pending), approval.Vote{Voter: voter("eve"), Verdict: yes, Time: noon}, "", approval.ErrNotFound},
		{"owner", asked(1, approval.Pending), approval.Vote{Voter: voter("Alice", "oncall"), Verdict: yes, Time: noon}, "", approval.ErrOwnRequest},
		{"without a handle", asked(1, approval.Pending), approval.Vote{
			Voter: approval.Voter{ID: "x", Groups: []string{"oncall"}}, Verdict: yes, Time: noon,
		}, "", approval.ErrOwnRequest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := approvalPolicy(t).Next(tc.c, tc.v)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// I5: whoever votes in whatever order, an approved request has votes of enough distinct people who are entitled to vote, and a
// rejected request is never approved later.
func TestQuorumNeedsDistinctEligibleApprovers(t *testing.T) {
	e := approvalPolicy(t)
	rapid.Check(t, func(t *rapid.T) {
		c := asked(rapid.IntRange(1, 4).Draw(t, "quorum"), approval.Pending)
		over := false
		for i := range rapid.IntRange(1, 20).Draw(t, "votes") {
			v := approval.Vote{
				Voter:   voter(rapid.SampledFrom([]string{"alice", "bob", "carol", "dave"}).Draw(t, "who"), "oncall", "leads"),
				Verdict: rapid.SampledFrom([]approval.Verdict{approval.Approve, approval.Approve, approval.BreakGlass, approval.Deny}).Draw(t, "verdict"),
				Note:    "nobody answers",
				Time:    noon.Add(time.Duration(i) * 10 * time.Second),
			}
			if rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
				for j := range c.Votes {
					c.Votes[j].Voter.Groups = slices.DeleteFunc(c.Votes[j].Voter.Groups, func(string) bool { return c.Votes[j].Voter.ID == v.Voter.ID })
				}
				v.Voter.Groups = nil
			}
			next, err := e.Next(c, v)
			if err != nil {
				continue
			}
			if over && next != c.Status {
				t.Fatalf("what was %s becomes %s", c.Status, next)
			}
			if !slices.ContainsFunc(c.Votes, func(old approval.Vote) bool {
				return old.Voter.ID == v.Voter.ID && (old.Verdict == approval.Deny) == (v.Verdict == approval.Deny)
			}) {
				c.Votes = append(c.Votes, v)
			}
			was := c.Status
			c.Status, over = next, next == approval.Rejected
			if next == approval.Approved && was != next &&
				distinct(c, approval.Approve) < c.Quorum && distinct(c, approval.BreakGlass) < 2 {
				t.Fatalf("approved by %d of %d: %s", distinct(c, approval.Approve), c.Quorum, fmt.Sprint(c.Votes))
			}
		}
	})
}

// I5: two votes of one person count once, even if the database should have both.
func TestPersonCountsOnce(t *testing.T) {
	for _, says := range []approval.Verdict{approval.Approve, approval.BreakGlass} {
		c := asked(2, approval.Approved)
		for i := range 2 {
			c.Votes = append(c.Votes, approval.Vote{Voter: voter("bob", "oncall", "leads"), Verdict: says, Note: "urgent", Time: noon.Add(time.Duration(i) * time.Second)})
		}
		if err := approvalPolicy(t).Redeemable(c, noon); !errors.Is(err, approval.ErrNotApproved) {
			t.Errorf("%s twice by one person: got %v, want ErrNotApproved", says, err)
		}
		c.Votes[1].Voter = voter("carol", "oncall", "leads")
		if err := approvalPolicy(t).Redeemable(c, noon); err != nil {
			t.Errorf("%s by two people: got %v", says, err)
		}
	}
}

func distinct(c *approval.Request, says approval.Verdict) int {
	who := map[string]bool{}
	for _, v := range c.Votes {
		if v.Verdict == says && slices.Contains(v.Voter.Groups, "oncall") && v.Voter.Name != "alice" {
			who[v.Voter.ID] = true
		}
	}
	return len(who)
}
