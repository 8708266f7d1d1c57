package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// approvalPolicy lets the groups oncall and leads approve below spiffe://acme.example, and derives owners from SPIFFE IDs.
func approvalPolicy(t testing.TB) broker.ApprovalPolicy {
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
	return broker.ApprovalPolicy{Rules: rules, Owners: owners}
}

func voter(name string, groups ...string) broker.Voter {
	return broker.Voter{ID: "https://idp.example#" + name, Name: name, Handle: name, Groups: groups}
}

func asked(quorum int, status broker.Status) *broker.ApprovalRequest {
	return &broker.ApprovalRequest{View: broker.View{
		ID: "id", Subject: broker.Subject{ID: spiffeid.RequireFromString("spiffe://acme.example/users/alice/bot")},
		Decision: "pending", Status: status, ApprovalGroup: "oncall", ApprovalQuorum: quorum, BreakGlass: "leads", Expires: noon.Add(time.Minute),
	}}
}

// broken returns a request with break-glass votes by these people, who are now in these groups.
func broken(status broker.Status, by map[string][]string) *broker.ApprovalRequest {
	c := asked(3, status)
	for name, groups := range by {
		c.VotesCast = append(c.VotesCast, broker.Vote{Voter: voter(name, groups...), Verdict: broker.BreakGlass, Note: "nobody answers", Time: noon})
	}
	return c
}

func TestNextWhenTheGlassIsBroken(t *testing.T) {
	breaks := func(v broker.Voter) broker.Vote {
		return broker.Vote{Voter: v, Verdict: broker.BreakGlass, Note: "nobody answers", Time: noon}
	}
	leads, both := []string{"leads"}, []string{"oncall", "leads"}
	one := map[string][]string{"dave": leads}
	noNote, nobody, twoAsked := breaks(voter("dave", leads...)), asked(3, broker.StatusPending), asked(3, broker.StatusPending)
	noNote.Note, nobody.BreakGlass = "\t ", ""
	for _, name := range []string{"bob", "carol"} {
		twoAsked.VotesCast = append(twoAsked.VotesCast, broker.Vote{Voter: voter(name, "oncall"), Verdict: broker.Approve, Time: noon})
	}
	both2 := broken(broker.StatusPending, nil)
	both2.VotesCast = []broker.Vote{{Voter: voter("dave", both...), Verdict: broker.Approve, Time: noon}, breaks(voter("erin", leads...))}
	for _, tc := range []struct {
		name    string
		c       *broker.ApprovalRequest
		v       broker.Vote
		want    broker.Status
		wantErr error
	}{
		{"the first", asked(3, broker.StatusPending), breaks(voter("dave", leads...)), broker.StatusPending, nil},
		{"the second", broken(broker.StatusPending, one), breaks(voter("erin", leads...)), broker.StatusApproved, nil},
		{"the first again", broken(broker.StatusPending, one), breaks(voter("dave", leads...)), broker.StatusPending, nil},
		{"the first has left the group", broken(broker.StatusPending, map[string][]string{"dave": {"oncall"}}), breaks(voter("erin", leads...)), broker.StatusPending, nil},
		{"two who were asked, and one", twoAsked, breaks(voter("dave", leads...)), broker.StatusPending, nil},
		{"an ordinary yes first", both2, breaks(voter("dave", both...)), broker.StatusPending, nil},
		{"an ordinary yes afterwards", broken(broker.StatusPending, map[string][]string{"dave": both}), broker.Vote{
			Voter: voter("dave", both...), Verdict: broker.Approve, Time: noon,
		}, broker.StatusPending, nil},
		{"a no by who stands in", asked(3, broker.StatusPending), broker.Vote{Voter: voter("dave", leads...), Verdict: broker.Deny, Time: noon}, broker.StatusRejected, nil},
		{"a no afterwards", broken(broker.StatusApproved, one), broker.Vote{Voter: voter("bob", "oncall"), Verdict: broker.Deny, Time: noon}, broker.StatusRejected, nil},
		{"an ordinary yes by who stands in", asked(3, broker.StatusPending), broker.Vote{
			Voter: voter("dave", leads...), Verdict: broker.Approve, Time: noon,
		}, "", broker.ErrNotEligible},
		{"of the group that was asked", asked(3, broker.StatusPending), breaks(voter("bob", "oncall")), "", broker.ErrNotEligible},
		{"where nobody may", nobody, breaks(voter("dave", leads...)), "", broker.ErrNotEligible},
		{"of a nameless group where nobody may", nobody, breaks(voter("dave", "", "oncall")), "", broker.ErrNotEligible},
		{"the owner", broken(broker.StatusPending, one), breaks(voter("alice", leads...)), "", broker.ErrOwnRequest},
		{"without a note", asked(3, broker.StatusPending), noNote, "", broker.ErrNoNote},
		{"too late", asked(3, broker.StatusWithdrawn), breaks(voter("dave", leads...)), "", broker.ErrDecided},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := approvalPolicy(t).Next(tc.c, tc.v)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestNext(t *testing.T) {
	bob := voter("bob", "oncall")
	yes, no := broker.Approve, broker.Deny
	decided := broker.ErrDecided
	for _, tc := range []struct {
		name    string
		c       *broker.ApprovalRequest
		v       broker.Vote
		want    broker.Status
		wantErr error
	}{
		{"one of one", asked(1, broker.StatusPending), broker.Vote{Voter: bob, Verdict: yes, Time: noon}, broker.StatusApproved, nil},
		{"one of two", asked(2, broker.StatusPending), broker.Vote{Voter: bob, Verdict: yes, Time: noon}, broker.StatusPending, nil},
		{"no", asked(2, broker.StatusPending), broker.Vote{Voter: bob, Verdict: no, Time: noon}, broker.StatusRejected, nil},
		{"no to what is approved", asked(1, broker.StatusApproved), broker.Vote{Voter: bob, Verdict: no, Time: noon}, broker.StatusRejected, nil},
		{"yes to what is approved", asked(1, broker.StatusApproved), broker.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"at the end of the wait", asked(1, broker.StatusPending), broker.Vote{Voter: bob, Verdict: yes, Time: noon.Add(time.Minute)}, "", decided},
		{"no to what is redeemed", asked(1, broker.StatusRedeemed), broker.Vote{Voter: bob, Verdict: no, Time: noon}, broker.StatusRedeemed, nil},
		{"yes to what is redeemed", asked(1, broker.StatusRedeemed), broker.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"withdrawn", asked(1, broker.StatusWithdrawn), broker.Vote{Voter: bob, Verdict: yes, Time: noon}, "", decided},
		{"of no group", asked(1, broker.StatusPending), broker.Vote{Voter: voter("eve"), Verdict: yes, Time: noon}, "", broker.ErrNotFound},
		{"owner", asked(1, broker.StatusPending), broker.Vote{Voter: voter("Alice", "oncall"), Verdict: yes, Time: noon}, "", broker.ErrOwnRequest},
		{"without a handle", asked(1, broker.StatusPending), broker.Vote{
			Voter: broker.Voter{ID: "x", Groups: []string{"oncall"}}, Verdict: yes, Time: noon,
		}, "", broker.ErrOwnRequest},
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
func TestQuorumIsOfDistinctPeopleWhoMay(t *testing.T) {
	e := approvalPolicy(t)
	rapid.Check(t, func(t *rapid.T) {
		c := asked(rapid.IntRange(1, 4).Draw(t, "quorum"), broker.StatusPending)
		over := false
		for i := range rapid.IntRange(1, 20).Draw(t, "votes") {
			v := broker.Vote{
				Voter:   voter(rapid.SampledFrom([]string{"alice", "bob", "carol", "dave"}).Draw(t, "who"), "oncall", "leads"),
				Verdict: rapid.SampledFrom([]broker.Verdict{broker.Approve, broker.Approve, broker.BreakGlass, broker.Deny}).Draw(t, "verdict"),
				Note:    "nobody answers",
				Time:    noon.Add(time.Duration(i) * 10 * time.Second),
			}
			if rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
				for j := range c.VotesCast {
					c.VotesCast[j].Voter.Groups = slices.DeleteFunc(c.VotesCast[j].Voter.Groups, func(string) bool { return c.VotesCast[j].Voter.ID == v.Voter.ID })
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
			if !slices.ContainsFunc(c.VotesCast, func(old broker.Vote) bool {
				return old.Voter.ID == v.Voter.ID && (old.Verdict == broker.Deny) == (v.Verdict == broker.Deny)
			}) {
				c.VotesCast = append(c.VotesCast, v)
			}
			was := c.Status
			c.Status, over = next, next == broker.StatusRejected
			if next == broker.StatusApproved && was != next &&
				distinct(c, broker.Approve) < c.ApprovalQuorum && distinct(c, broker.BreakGlass) < 2 {
				t.Fatalf("approved by %d of %d: %s", distinct(c, broker.Approve), c.ApprovalQuorum, fmt.Sprint(c.VotesCast))
			}
		}
	})
}

func distinct(c *broker.ApprovalRequest, says broker.Verdict) int {
	who := map[string]bool{}
	for _, v := range c.VotesCast {
		if v.Verdict == says && slices.Contains(v.Voter.Groups, "oncall") && v.Voter.Name != "alice" {
			who[v.Voter.ID] = true
		}
	}
	return len(who)
}
