package tamper_test

import (
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

var voters = []approval.Voter{
	{ID: "https://idp.test#bob", Name: "Bob", Handle: "bob", Groups: []string{"oncall"}},
	{ID: "https://idp.test#carol", Name: "Carol", Handle: "carol", Groups: []string{"oncall", "leads"}},
	{ID: "https://idp.test#dave", Name: "Dave", Handle: "dave", Groups: []string{"leads"}},
}

// approval is a story of people who vote on a request.
func (w *world) approval(n int) {
	w.t.Helper()
	asked := w.record(n, pending)
	w.begin(asked)
	switch n / kinds % 5 {
	case 0: // both approve, for the task, so that no further approval is needed
		w.vote(asked, voters[0], broker.Transition{Was: broker.StatusPending, Becomes: broker.StatusPending})
		w.vote(asked, voters[1], broker.Transition{Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusApproved})
		w.begin(w.redeeming(n, asked, scopes.ReasonApproved))
		again := w.record(n, pending)
		w.begin(again)
		w.cast(broker.Transition{
			Request: again.ID, Was: broker.StatusPending, Becomes: broker.StatusApproved, Remembered: asked.ID, Actor: again.Subject.ID.String(),
		})
	case 1: // one approves, and then one denies
		w.vote(asked, voters[0], broker.Transition{Was: broker.StatusPending, Becomes: broker.StatusPending})
		w.vote(asked, voters[1], broker.Transition{Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusRejected})
	case 2: // two of another group break glass
		w.vote(asked, voters[1], broker.Transition{Was: broker.StatusPending, Becomes: broker.StatusPending, Vote: &approval.Vote{Verdict: approval.BreakGlass}})
		w.vote(asked, voters[2], broker.Transition{
			Was: broker.StatusPending, Votes: 1, Becomes: broker.StatusApproved, Vote: &approval.Vote{Verdict: approval.BreakGlass},
		})
		w.begin(w.redeeming(n, asked, scopes.ReasonBreakGlass))
	case 3:
		w.cast(broker.Transition{
			Request: asked.ID, Was: broker.StatusPending, Becomes: broker.StatusWithdrawn, Actor: asked.Subject.ID.String(),
		})
		w.removed(voters[2])
	case 4:
		w.signing(n)
	}
}

// signing is a request that two people approve with their passkeys.
func (w *world) signing(n int) {
	w.t.Helper()
	asked := w.record(n, func(rec *broker.Record) {
		pending(rec)
		rec.Canonical = fmt.Sprintf(`{"what":"people see","n":%d,"break_glass":"leads","passkey":"required"}`, n)
	})
	w.begin(asked)
	hash := (&broker.ApprovalRequest{View: broker.View{Canonical: asked.Canonical}}).Hash()
	for i, who := range voters[:2] {
		p, a := w.registered(who)
		assertion, err := passkey.ParseAssertion(a.Assert(w.t, hash[:]))
		w.must(err)
		w.vote(asked, who, broker.Transition{
			Was: broker.StatusPending, Votes: i, Becomes: []broker.Status{broker.StatusPending, broker.StatusApproved}[i],
			Vote: &approval.Vote{Verdict: approval.Approve, Assertion: assertion.String(), Key: &p.Key},
		})
	}
	w.begin(w.redeeming(n, asked, scopes.ReasonApproved))
}

// registered returns a person's passkey, and registers it first if the person has none.
func (w *world) registered(who approval.Voter) (broker.Passkey, *testkit.Authenticator) {
	w.t.Helper()
	if has, err := w.l.Passkeys(w.t.Context(), who.ID); err != nil || len(has) > 0 {
		w.must(err)
		return has[0], w.keys[who.ID]
	}
	who.SaidAt = w.begun
	_, err := w.l.UpsertPerson(w.t.Context(), who, w.begun)
	w.must(err)
	a, challenge := testkit.NewAuthenticator(w.t, testkit.Site.ID, testkit.Audience), []byte("of nobody's choosing")
	key, err := passkey.Register(a.Register(w.t, challenge), challenge, testkit.Site)
	w.must(err)
	p := broker.Passkey{
		ID: uuid.Must(uuid.NewV7()).String(), Person: who.ID, Name: "of " + who.Name, Time: w.begun, Site: testkit.Site.ID, Key: key,
	}
	w.must(w.l.AddPasskey(w.t.Context(), p, who))
	w.keys[who.ID] = a
	return p, a
}

// removed registers a passkey, and removes it.
func (w *world) removed(who approval.Voter) {
	w.t.Helper()
	p, _ := w.registered(who)
	w.must(w.l.RemovePasskey(w.t.Context(), p.ID, who, w.begun.Add(time.Second)))
}

// redeeming returns the record of a credential issued for the reason in code.
func (w *world) redeeming(n int, asked broker.Record, code string) broker.Record {
	return w.record(n, func(rec *broker.Record) {
		rec.Subject, rec.Request, rec.Approves, rec.Canonical = asked.Subject, asked.Request, asked.ID, asked.Canonical
		rec.Decision.Reason = code
	})
}

func (w *world) vote(asked broker.Record, who approval.Voter, step broker.Transition) {
	w.t.Helper()
	who.SaidAt = w.begun
	_, err := w.l.UpsertPerson(w.t.Context(), who, w.begun)
	w.must(err)
	step.Request, step.Actor = asked.ID, who.ID
	verdict, covers, signed := approval.Approve, approval.CoverTask, approval.Vote{}
	switch {
	case step.Vote != nil:
		verdict, covers = step.Vote.Verdict, approval.CoverRequest
		signed = *step.Vote
	case step.Becomes == broker.StatusRejected:
		verdict, covers = approval.Deny, approval.CoverRequest
	}
	step.Vote = &approval.Vote{Voter: who, Verdict: verdict, Covers: covers, Note: "well", Assertion: signed.Assertion, Key: signed.Key}
	step.Hash = (&broker.ApprovalRequest{View: broker.View{Canonical: asked.Canonical}}).Hash()
	w.cast(step)
}

func (w *world) cast(step broker.Transition) {
	w.t.Helper()
	step.Time = time.Now()
	w.must(w.l.Apply(w.t.Context(), step))
}

// catalogue applies another catalogue: the first one directly, later ones by two people.
func (w *world) catalogue(n int) {
	w.t.Helper()
	if n == 0 || n%(4*kinds) != 0 {
		w.begin(w.record(n, nil))
		return
	}
	head, err := w.l.InForce(w.t.Context())
	w.must(err)
	files := []scopes.File{
		{Name: "a.yaml", Data: fmt.Appendf(nil, "scopes:\n  - name: git.read\n    title: As of %d\n    authority: read\n    resource: git:all\n"+
			"    ttl: {default: 1m, max: 5m}\n    credential: {kind: jwt, audience: https://git.test}\n", n)},
		{Name: "b/c.cedar", Data: []byte(`@id("p") permit (principal, action, resource);`)},
	}
	loaded, err := scopes.Load(files)
	w.must(err)
	step := broker.CatalogueStep{
		ID: uuid.Must(uuid.NewV7()).String(), Time: w.begun, Becomes: broker.CatalogueApplied, Digest: loaded.Digest(), Base: head.Digest,
		Version: head.Version + 1, Reason: "because", Files: files,
	}
	if head.Version > 0 {
		step.Becomes, step.Actor = broker.CatalogueProposed, "https://idp.test#alice"
		w.must(w.l.ChangeCatalogue(w.t.Context(), step))
		step.Proposal, step.Proposer, step.Actor, step.Files = step.ID, step.Actor, "https://idp.test#bob", nil
		step.ID, step.Becomes = uuid.Must(uuid.NewV7()).String(), broker.CatalogueApplied
		if n%(8*kinds) != 0 {
			step.Becomes = broker.CatalogueRejected
		}
	}
	w.must(w.l.ChangeCatalogue(w.t.Context(), step))
	if step.Becomes == broker.CatalogueApplied {
		w.digest = loaded.Digest()
	}
}
