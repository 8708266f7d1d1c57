package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/people"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// electorate lets the group oncall decide below spiffe://acme.example, and knows whose sandboxes are whose.
func electorate(t testing.TB) broker.Electorate {
	t.Helper()
	rules, err := people.NewRules([]people.Rule{{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	owners, err := people.NewOwners([]string{"spiffe://acme.example/users/{owner}/**"})
	if err != nil {
		t.Fatal(err)
	}
	return broker.Electorate{Rules: rules, Owners: owners}
}

func voter(name string, groups ...string) broker.Voter {
	return broker.Voter{ID: "https://idp.example#" + name, Name: name, Handle: name, Groups: groups}
}

func asked(quorum int, status broker.Status) *broker.Case {
	return &broker.Case{View: broker.View{
		ID: "id", Subject: broker.Subject{ID: spiffeid.RequireFromString("spiffe://acme.example/users/alice/bot")},
		Decision: "pending", Status: status, ApprovalGroup: "oncall", ApprovalQuorum: quorum, Expires: noon.Add(time.Minute),
	}}
}

func TestNext(t *testing.T) {
	bob := voter("bob", "oncall")
	yes, no := broker.Approve, broker.Deny
	decided := broker.ErrDecided
	for _, tc := range []struct {
		name    string
		c       *broker.Case
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
			got, err := electorate(t).Next(tc.c, tc.v)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("got %q, %v, want %q, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// I5: whoever votes in whatever order, what is approved has as many distinct people who may as it takes, and nothing
// that was refused once is approved later.
func TestQuorumIsOfDistinctPeopleWhoMay(t *testing.T) {
	e := electorate(t)
	rapid.Check(t, func(t *rapid.T) {
		c := asked(rapid.IntRange(1, 4).Draw(t, "quorum"), broker.StatusPending)
		over := false
		for i := range rapid.IntRange(1, 20).Draw(t, "votes") {
			v := broker.Vote{
				Voter:   voter(rapid.SampledFrom([]string{"alice", "bob", "carol", "dave"}).Draw(t, "who"), "oncall"),
				Verdict: rapid.SampledFrom([]broker.Verdict{broker.Approve, broker.Approve, broker.Deny}).Draw(t, "verdict"),
				Time:    noon.Add(time.Duration(i) * 10 * time.Second),
			}
			if rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
				for j := range c.Cast {
					c.Cast[j].Voter.Groups = slices.DeleteFunc(c.Cast[j].Voter.Groups, func(string) bool { return c.Cast[j].Voter.ID == v.Voter.ID })
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
			if !slices.ContainsFunc(c.Cast, func(old broker.Vote) bool { return old.Voter.ID == v.Voter.ID && old.Verdict == v.Verdict }) {
				c.Cast = append(c.Cast, v)
			}
			was := c.Status
			c.Status, over = next, next == broker.StatusRejected
			if next == broker.StatusApproved && was != next && distinct(c) < c.ApprovalQuorum {
				t.Fatalf("approved by %d of %d: %s", distinct(c), c.ApprovalQuorum, fmt.Sprint(c.Cast))
			}
		}
	})
}

func distinct(c *broker.Case) int {
	who := map[string]bool{}
	for _, v := range c.Cast {
		if v.Verdict == broker.Approve && slices.Contains(v.Voter.Groups, "oncall") && v.Voter.Name != "alice" {
			who[v.Voter.ID] = true
		}
	}
	return len(who)
}
