package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

const pollScopes = `scopes:
  - name: git.delete
    title: Delete a repository
    authority: delete
    resource: git:all
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 2, expires: 10m}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.comment
    title: Comment on issues
    authority: write
    resource: git:all
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1, expires: 10m, remember: task}
    credential: {kind: jwt, audience: https://git.test}
  - name: notes.write
    title: Write notes
    authority: write
    resource: vault:notes
    ttl: {default: 1m, max: 5m}
    approval: {group: oncall, quorum: 1, expires: 10m}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [update]}]}
`

// polled is a sandbox of Alice's, with people who may decide on its requests, or who try to. Each run has a separate sandbox
// and people, so earlier runs do not matter.
type polled struct {
	stacks   []*testkit.Stack // replicas
	ledger   *ledger.Ledger
	conn     *pgx.Conn
	ahead    *atomic.Int64 // of the brokers' and the provider's clock
	run      int
	sandbox  attest.Identity
	requests []asked
	left     map[string]bool // who has left the group

	mu     sync.Mutex
	handed map[string]int // credentials by request
}

type asked struct{ id, scope string }

// deed is one action. Fields that its kind does not need are ignored.
type deed struct {
	Kind    string // of deeds
	Who     string
	Request int // counted back from the last request
	Replica int
	Scope   string
	Task    bool   // the approval covers the task
	Fate    string // of the mint
}

// at is how far the broker's clock is ahead when a turn happens. The database has another clock, and it refuses old
// requests.
var at = map[string]time.Duration{"": 0, " late": 12 * time.Minute}

// turn is a group of actions at the same time.
type turn struct {
	Deeds []deed
	At    string
}

// oneOf prefers the first values, as rapid does.
func oneOf[T any](t *rapid.T, what string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, what)
}

func drawDeed(kinds ...string) *rapid.Generator[deed] {
	return rapid.Custom(func(t *rapid.T) deed {
		d := deed{Kind: oneOf(t, "kind", kinds...), Replica: oneOf(t, "replica", 0, 1)}
		switch d.Kind {
		case "ask", "ask long ago":
			d.Scope = oneOf(t, "scope", "git.comment", "notes.write", "git.comment", "git.delete")
			return d
		case "approve", "deny":
			d.Who = oneOf(t, "who", "bob", "carol", "alice", "eve")
			d.Task = d.Kind == "approve" && oneOf(t, "task", true, false)
		case "leave or return":
			d.Who = oneOf(t, "who", "bob", "carol")
		case "redeem":
			d.Fate = oneOf(t, "fate", "", "undelivered", "lost", "refused", "")
		}
		d.Request = oneOf(t, "request", 0, 0, 1, 0, 1, 2)
		return d
	})
}

var drawTurn = rapid.Custom(func(t *rapid.T) turn {
	alone := func(kinds ...string) turn { return turn{Deeds: []deed{drawDeed(kinds...).Draw(t, "deed")}} }
	switch oneOf(t, "what", "agree", "redeem", "ask", "at once", "agree", "ask", "redeem", "vote", "other", "late") {
	case "agree":
		d := drawDeed("approve").Draw(t, "deed")
		other := d
		d.Who, other.Who = "bob", "carol"
		return turn{Deeds: []deed{d, other}}
	case "redeem":
		return alone("redeem")
	case "vote":
		return alone("approve", "deny")
	case "ask":
		return alone("ask again", "ask", "ask again", "ask long ago")
	case "other":
		return alone("compensate", "leave or return", "withdraw")
	case "late":
		late := alone("approve", "redeem")
		late.At = " late"
		return late
	}
	return turn{Deeds: rapid.SliceOfN(drawDeed("redeem", "redeem", "redeem", "redeem", "approve", "deny", "withdraw"), 2, 5).Draw(t, "at once")}
})

// I4 and I5: whatever people, the sandbox and Vault do, in any order and on two replicas, an approval yields at most one
// credential. The approval has votes from a quorum of distinct eligible people, and no credential outlives a denial.
func TestApprovalIssuesAtMostOnce(t *testing.T) {
	t.Parallel()
	world := newPolled(t)
	const often = 10 // runs between two checks of the whole record, each of which takes longer than a run
	var recent [][]turn
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		p, began := world.again(t, runs), world.size(t)
		turns := append([]turn{{Deeds: []deed{drawDeed("ask").Draw(rt, "first")}}}, rapid.SliceOfN(drawTurn, 6, 14).Draw(rt, "turns")...)
		for _, now := range turns {
			p.take(t, rt, now)
		}
		p.judge(t, rt, began)
		if recent = append(recent, turns); len(recent) == often {
			if !t.Run("record", func(t *testing.T) { p.stacks[0].DB.Check(t) }) {
				t.Fatalf("after %+v", recent)
			}
			recent = nil
		}
	})
	world.stacks[0].DB.Check(t)
}

func newPolled(t *testing.T) *polled {
	t.Helper()
	p := &polled{ahead: &atomic.Int64{}}
	s := testkit.NewStack(t, testkit.Options{
		Catalogue: []scopes.File{
			{Name: "scopes.yaml", Data: []byte(pollScopes)},
			{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource) when { context.approved };`)},
		},
		People: []devstack.DevPerson{{Username: "nobody"}},
		Rules:  []people.Rule{{Role: people.RoleApprover, Group: "oncall"}, {Role: people.RoleApprover, Group: "staff"}},
		Owners: []string{"spiffe://acme.test/users/{owner}/**"},
		Minter: func(m broker.Minter) broker.Minter { return fated{m} },
		Now:    func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) },
	})
	p.stacks, p.ledger, p.conn = []*testkit.Stack{s, s.Replica(t)}, s.DB.Ledger(t), testkit.Connect(t, s.DB.AdminURL)
	return p
}

func (p *polled) again(t *testing.T, run int) *polled {
	t.Helper()
	next := &polled{stacks: p.stacks, ledger: p.ledger, conn: p.conn, ahead: p.ahead, run: run, left: map[string]bool{}, handed: map[string]int{}}
	p.ahead.Store(0)
	s := p.stacks[0]
	var err error
	if next.sandbox, err = s.Config.Attestor.JWT(s.JWT(t, "spiffe://acme.test/users/"+next.name("alice")+"/bot")); err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"alice", "bob", "carol", "eve"} {
		next.tell(who, map[bool]string{true: "staff", false: "oncall"}[who == "eve"])
	}
	return next
}

func (p *polled) name(who string) string { return fmt.Sprintf("%s-%d", who, p.run) }

func (p *polled) tell(who string, groups ...string) {
	p.stacks[0].Know(devstack.DevPerson{Username: p.name(who), Name: who, Groups: groups})
}

func (p *polled) person(t *testing.T, who string) people.Person {
	t.Helper()
	s := p.stacks[0]
	person, err := s.Config.People.Identify(t.Context(), s.IDToken(t, p.name(who)))
	if err != nil {
		t.Fatal(err)
	}
	return person
}

// take performs all actions of a turn at once, and logs the results.
func (p *polled) take(t *testing.T, rt *rapid.T, now turn) {
	t.Helper()
	folk := make([]people.Person, len(now.Deeds)) // they log in before
	for i, d := range now.Deeds {
		if d.Who != "" {
			folk[i] = p.person(t, d.Who)
		}
	}
	p.ahead.Add(int64(at[now.At]))
	defer p.ahead.Add(-int64(at[now.At]))
	errs := make([]error, len(now.Deeds))
	var all sync.WaitGroup
	for i, d := range now.Deeds {
		all.Go(func() { errs[i] = p.do(t, d, folk[i]) })
	}
	all.Wait()
	for i, d := range now.Deeds {
		rt.Logf("%d of %d%s: %+v: %v", i+1, len(errs), now.At, d, errs[i])
		if errs[i] != nil && !slices.ContainsFunc(refusals, func(known error) bool { return errors.Is(errs[i], known) }) {
			rt.Errorf("got %v, want it done or refused", errs[i])
		}
	}
}

// refusals are the errors that an action may get if it is not possible.
var refusals = []error{
	broker.ErrNotFound, broker.ErrNotEligible, broker.ErrOwnRequest, broker.ErrDecided, broker.ErrNotApproved, broker.ErrNotRemembered,
	broker.ErrVaultUnavailable, broker.ErrRevoked, errBroke,
}

func (p *polled) do(t *testing.T, d deed, who people.Person) error {
	b, ctx := p.stacks[d.Replica].Broker, t.Context()
	var on asked
	if n := len(p.requests); n > 0 {
		on = p.requests[max(0, n-1-d.Request)]
	}
	switch d.Kind {
	case "ask":
		return p.ask(ctx, b, d.Scope)
	case "ask again":
		return p.ask(ctx, b, on.scope)
	case "ask long ago":
		const ago = int64(11 * time.Minute)
		p.ahead.Add(-ago)
		defer p.ahead.Add(ago)
		return p.ask(ctx, b, d.Scope)
	case "approve", "deny":
		return vote(ctx, b, who, broker.VoteCast{
			Request: on.id, Verdict: approval.Verdict(d.Kind),
			Covers: map[bool]approval.Cover{true: approval.CoverTask, false: approval.CoverRequest}[d.Task],
		})
	case "leave or return":
		p.left[d.Who] = !p.left[d.Who]
		p.tell(d.Who, map[bool]string{true: "staff", false: "oncall"}[p.left[d.Who]])
		p.ahead.Add(int64(time.Second)) // otherwise it would not be newer
		_, _, err := b.Waiting(ctx, p.person(t, d.Who), 10)
		return err
	case "withdraw":
		return b.Withdraw(ctx, p.sandbox, on.id)
	case "compensate":
		return p.compensate(ctx, on)
	}
	return b.RedeemApproval(context.WithValue(ctx, fate{}, d.fateOf(on)), p.sandbox, broker.Redemption{Request: on.id}, p.deliver(d.Fate))
}

func (p *polled) ask(ctx context.Context, b *broker.Broker, scope string) error {
	return b.Issue(ctx, p.sandbox, broker.Request{Scope: scope, RequestContext: scopes.RequestContext{Task: "t"}, Reason: "because"}, func(res broker.Result) error {
		request := res.Record.ID
		if res.Record.Approves != "" {
			request = res.Record.Approves
		}
		p.requests = append(p.requests, asked{request, scope})
		return p.deliver("")(res)
	})
}

// vote votes on a request as it is shown.
func vote(ctx context.Context, b *broker.Broker, who people.Person, cast broker.VoteCast) error {
	c, err := b.ApprovalRequest(ctx, who, cast.Request)
	if err != nil {
		return err
	}
	cast.Hash = c.Hash()
	_, err = b.Vote(ctx, who, cast)
	return err
}

func (p *polled) deliver(fate string) broker.Deliver {
	return func(res broker.Result) error {
		if res.Credential == nil {
			return nil
		}
		if fate == "undelivered" && res.Credential.Minted != nil {
			return errBroke
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.handed[res.Record.Approves]++
		return nil
	}
}

// errBroke is the error with which the delivery of a credential fails.
var errBroke = errors.New("the connection broke")

// compensate records that a lost credential was ended, as the sweeper does later.
func (p *polled) compensate(ctx context.Context, on asked) error {
	request, err := p.ledger.Get(ctx, on.id, broker.Reach{All: true})
	if err != nil || request.RedeemedBy == "" {
		return err
	}
	lost, err := p.ledger.Get(ctx, request.RedeemedBy, broker.Reach{All: true})
	if err != nil || lost.Status != broker.StatusUnknown {
		return err
	}
	return p.ledger.RecordOutcome(ctx, broker.Outcome{ID: lost.ID, Time: time.Now(), Status: broker.StatusCompensated, Detail: "gone"})
}

// fated is a minter with the result that the context names: its fate.
type (
	fated struct{ broker.Minter }
	fate  struct{}
)

// fateOf returns the result of the mint. A JWT is never lost: without an answer there is no JWT.
func (d deed) fateOf(on asked) string {
	if d.Fate == "lost" && on.scope != "notes.write" {
		return "refused"
	}
	return d.Fate
}

func (m fated) Mint(ctx context.Context, order *broker.Order) (broker.Credential, error) {
	switch ctx.Value(fate{}) {
	case "refused":
		return broker.Credential{}, broker.ErrVaultUnavailable
	case "lost":
		return broker.Credential{}, &broker.LostMintError{Err: broker.ErrVaultUnavailable}
	}
	return m.Minter.Mint(ctx, order)
}
