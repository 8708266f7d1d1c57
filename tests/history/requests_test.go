package history_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// turn is one person's call on a request during one fault.
type turn struct {
	does, who string
	on        int
	during    int
}

// requests lets people vote on a request while its sandbox tries to redeem it, at both replicas.
func (w *world) requests(t *testing.T, random *rand.Rand, name string) func(*testing.T) {
	s := &requestStory{world: w, sandbox: w.clients(t, "spiffe://acme.test/h/"+name), people: map[string][2]*client.Client{}}
	for _, who := range []string{"alice", "bob", "carol", "mallory"} {
		s.people[who] = w.people(t, who)
	}
	draw := func(does, who string) {
		s.turns = append(s.turns, turn{does, who, random.IntN(2), random.IntN(faultsEach)})
	}
	for _, who := range []string{"alice", "bob", "carol", "alice", "bob"} {
		does := "approve"
		if random.IntN(8) == 0 {
			does = "deny"
		}
		draw(does, who)
	}
	draw("stranger", "mallory")
	if random.IntN(4) == 0 {
		draw("withdraw", "")
	}
	for range 6 {
		draw("redeem", "")
	}
	return s.run
}

type requestStory struct {
	*world
	sandbox [2]*client.Client
	people  map[string][2]*client.Client
	turns   []turn
	history history
}

func (s *requestStory) run(t *testing.T) {
	ask := client.Ask{Scope: "git.issues.write", Task: "a"}
	id := s.request(ask)
	if id == "" {
		<-s.over // after the faults, nothing can prevent a redemption
		id = s.request(ask)
	}
	if id == "" {
		t.Error("no replica has taken a request for people")
		return
	}
	var acting sync.WaitGroup
	for _, turn := range s.turns {
		acting.Go(func() {
			s.wait(turn.during)
			for n := range tries {
				if s.take(turn, (turn.on+n)%2, id, ask) != unknown {
					return
				}
			}
		})
	}
	acting.Go(func() { s.busy(func(n int) { s.take(turn{does: "look"}, n/16%2, id, ask) }) })
	acting.Wait()
	for n, does := range []string{"look", "redeem", "redeem", "look"} {
		s.take(turn{does: does}, n%2, id, ask)
	}
	holds(t, "request "+id, request, s.history.all())
}

// request creates the request and returns its id, or "" if no replica accepted it.
func (s *requestStory) request(ask client.Ask) (id string) {
	for n := 0; id == "" && n < tries; n++ {
		s.make("request", "", n%2, func(ctx context.Context) string {
			answer, err := s.sandbox[n%2].Request(ctx, ask)
			if err == nil && answer.Pending != nil {
				id = answer.Pending.ID
			}
			return answered(err, "pending", nil)
		})
	}
	return id
}

func (s *requestStory) take(turn turn, on int, id string, ask client.Ask) string {
	var shown openapi.ApprovalCase
	if turn.who != "" {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var err error
		if shown, err = s.people[turn.who][on].Approval(ctx, id); err != nil {
			return unknown
		}
	}
	c := s.make(turn.does, turn.who, on, func(ctx context.Context) string { return s.call(ctx, turn, on, shown, ask, id) })
	if c.got != "" && (c.does != "look" || c.got != unknown) {
		s.history.add(c)
	}
	return c.got
}

func (s *requestStory) call(ctx context.Context, turn turn, on int, shown openapi.ApprovalCase, ask client.Ask, id string) string {
	refused := map[openapi.ProblemCode]string{
		openapi.CodeDecided: "decided", openapi.CodeNotEligible: "refused", openapi.CodeNotApproved: "refused", openapi.CodeDenied: "refused",
	}
	switch turn.does {
	case "approve", "stranger", "deny":
		verdict := openapi.VerdictApprove
		if turn.does == "deny" {
			verdict = openapi.VerdictDeny
		}
		after, err := s.people[turn.who][on].Vote(ctx, shown, verdict, "")
		return answered(err, string(after.Status), refused)
	case "redeem":
		answer, err := s.sandbox[on].Redeem(ctx, id, ask)
		if answer.Pending != nil {
			return "pending"
		}
		return answered(err, "token", refused)
	case "withdraw":
		return answered(s.sandbox[on].Withdraw(ctx, id), "withdrawn", refused)
	default:
		state, err := s.sandbox[on].State(ctx, id)
		return answered(err, string(state.Status), nil)
	}
}
