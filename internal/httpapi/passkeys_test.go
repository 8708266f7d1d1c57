package httpapi_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// signed returns a stack with scopes that require passkeys.
func signed(t *testing.T) *testkit.Stack { return signedAt(t, nil) }

// signedAt is signed with a clock.
func signedAt(t *testing.T, now func() time.Time) *testkit.Stack {
	t.Helper()
	o := withPeople
	o.Now = now
	o.Catalogue = []scopes.File{
		{Name: "scopes.yaml", Data: []byte(strings.NewReplacer(
			"approval: {group: oncall, quorum: 1}", "approval: {group: oncall, quorum: 1, passkey: required, break_glass: leads}",
			"approval: {group: oncall, quorum: 2}", "approval: {group: oncall, quorum: 2, passkey: required}",
			"remember: task}", "remember: task, passkey: required}").Replace(approvable))},
		withPeople.Catalogue[1],
	}
	o.People = append(append([]devstack.DevPerson{}, o.People...), devstack.DevPerson{Username: "lea", Groups: []string{"leads"}},
		devstack.DevPerson{Username: "leo", Groups: []string{"leads"}})
	o.Rules = append(append([]people.Rule{}, o.Rules...), people.Rule{Role: people.RoleApprover, Group: "leads", Within: []string{"spiffe://acme.test"}})
	return testkit.NewStack(t, o)
}

// signing casts a vote that a passkey signs, as the console does.
func signing(t *testing.T, s *testkit.Stack, username, id string, a *testkit.Authenticator, change func(*broker.VoteCast)) (*broker.ApprovalRequest, error) {
	t.Helper()
	who := s.Somebody(t, username)
	shown, err := s.Broker.ApprovalRequest(t.Context(), who, id)
	if err != nil {
		t.Fatal(err)
	}
	hash := shown.Hash()
	b := broker.VoteCast{Request: id, Hash: hash, Verdict: approval.Approve, Covers: approval.CoverRequest, Assertion: a.Assert(t, hash[:])}
	if change != nil {
		change(&b)
	}
	return s.Broker.Vote(t.Context(), who, b)
}

func redeemed(t *testing.T, s *testkit.Stack, id, scope string) (openapi.ProblemCode, bool) {
	t.Helper()
	got, err := s.Client(t, agent).Redeem(t.Context(), id, askFor(scope))
	return code(err), err == nil && got.Token != nil
}

func TestPasskeySignedApprovalIsIssued(t *testing.T) {
	t.Parallel()
	s := signed(t)
	makers := map[string]func(t testing.TB, rpID, origin string) *testkit.Authenticator{
		"carol": testkit.NewAuthenticator, "bob": testkit.NewEd25519Authenticator,
	}
	for username, maker := range makers {
		a := s.PasskeyOf(t, username, maker(t, testkit.Site.ID, testkit.Site.Origins[0]))
		id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
		if _, err := vote(t, s.Person(t, username), id, openapi.VerdictApprove); code(err) != openapi.CodePasskeyRequired {
			t.Fatalf("%s without it: got %v, want passkey_required", username, err)
		}
		if _, done := redeemed(t, s, id, "git.issues.write"); done {
			t.Fatal("issued before anybody has approved it")
		}
		c, err := signing(t, s, username, id, a, nil)
		if err != nil || c.Status != broker.StatusApproved || !c.NeedsPasskey() {
			t.Fatalf("%s: got %+v, %v, want it approved", username, c, err)
		}
		if problem, done := redeemed(t, s, id, "git.issues.write"); !done {
			t.Fatalf("%s: got %s, want a credential", username, problem)
		}
	}
	// A denial needs no passkey, and neither does a scope that does not require one.
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	if _, err := vote(t, s.Person(t, "bob"), id, openapi.VerdictDeny); err != nil {
		t.Errorf("a no: %v", err)
	}
	id = waiting(t, s.Client(t, agent), askFor("vault.notes.write"))
	if _, err := vote(t, s.Person(t, "carol"), id, openapi.VerdictApprove); err != nil {
		t.Errorf("without the rule: %v", err)
	}
	s.DB.Check(t)
}

func TestSignatureOfAnotherVoteIsRefused(t *testing.T) {
	t.Parallel()
	s := signed(t)
	carol, bob := s.Passkey(t, "carol"), s.Passkey(t, "bob")
	other := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	var onOther []byte
	if _, err := signing(t, s, "carol", other, carol, func(b *broker.VoteCast) { onOther = b.Assertion }); err != nil {
		t.Fatal(err)
	}
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	lying := func(tell func(a *testkit.Authenticator)) *testkit.Authenticator {
		a := *carol
		tell(&a)
		return &a
	}
	for name, try := range map[string]struct {
		a      *testkit.Authenticator
		change func(*broker.VoteCast)
		want   error
	}{
		"another page":           {lying(func(a *testkit.Authenticator) { a.Origin = "https://brevet.test.evil" }), nil, passkey.ErrOrigin},
		"another site":           {lying(func(a *testkit.Authenticator) { a.RPID = "test" }), nil, passkey.ErrRelyingParty},
		"nobody verified":        {lying(func(a *testkit.Authenticator) { a.Flags = testkit.UserPresent }), nil, passkey.ErrUnverified},
		"a registration":         {lying(func(a *testkit.Authenticator) { a.Get = a.Create }), nil, passkey.ErrCeremony},
		"another person's key":   {bob, nil, passkey.ErrOtherKey},
		"a key of nobody's":      {testkit.NewAuthenticator(t, carol.RPID, carol.Origin), nil, passkey.ErrOtherKey},
		"what was signed before": {carol, func(b *broker.VoteCast) { b.Assertion = onOther }, passkey.ErrChallenge},
		"nothing":                {carol, func(b *broker.VoteCast) { b.Assertion = nil }, passkey.ErrMalformed},
		"to break the glass": {carol, func(b *broker.VoteCast) {
			b.Verdict, b.Note, b.Assertion = approval.BreakGlass, "nobody answers", nil
		}, broker.ErrNotEligible},
	} {
		c, err := signing(t, s, "carol", id, try.a, try.change)
		if !errors.Is(err, try.want) || c != nil && c.Voted || !errors.Is(try.want, broker.ErrNotEligible) && !errors.Is(err, broker.ErrPasskey) {
			t.Errorf("%s: got %v, want %v", name, err, try.want)
		}
	}
	if _, done := redeemed(t, s, id, "git.issues.write"); done {
		t.Error("issued without a signature")
	}
	s.DB.Check(t)
}

// A break-glass vote needs a passkey too.
func TestBreakGlassNeedsAPasskey(t *testing.T) {
	t.Parallel()
	s := signed(t)
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	breaking := func(b *broker.VoteCast) { b.Verdict, b.Note = approval.BreakGlass, "nobody answers" }
	for _, username := range []string{"lea", "leo"} {
		if _, err := signing(t, s, username, id, testkit.NewAuthenticator(t, testkit.Site.ID, testkit.Audience), breaking); !errors.Is(err, broker.ErrPasskey) {
			t.Errorf("%s, with a key of nobody's: got %v, want ErrPasskey", username, err)
		}
		if _, err := signing(t, s, username, id, s.Passkey(t, username), breaking); err != nil {
			t.Fatal(err)
		}
	}
	if problem, done := redeemed(t, s, id, "git.issues.write"); !done {
		t.Errorf("got %s, want a credential", problem)
	}
	s.DB.Check(t)
}

func TestRemovedKeyVoidsItsVotes(t *testing.T) {
	t.Parallel()
	s := signed(t)
	a := s.Passkey(t, "carol")
	id := waiting(t, s.Client(t, agent), askFor("git.issues.write"))
	if _, err := signing(t, s, "carol", id, a, nil); err != nil {
		t.Fatal(err)
	}
	carol := s.Somebody(t, "carol")
	has, err := s.Broker.Passkeys(t.Context(), carol)
	if err != nil || len(has) != 1 || has[0].Name != "key of carol" {
		t.Fatalf("got %+v, %v, want the one of Carol", has, err)
	}
	for _, id := range []string{has[0].ID, "", "x"} { // the first is not Bob's, and the others do not exist
		if err := s.Broker.RemovePasskey(t.Context(), s.Somebody(t, "bob"), id); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("Bob removes %q: got %v", id, err)
		}
	}
	if err := s.Broker.RemovePasskey(t.Context(), carol, has[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Broker.RemovePasskey(t.Context(), carol, has[0].ID); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("removing it twice: got %v", err)
	}
	if problem, done := redeemed(t, s, id, "git.issues.write"); problem != openapi.CodeNotApproved || done {
		t.Errorf("got %q, %v, want not_approved", problem, done)
	}
	// Another key does not restore the old vote, and a removed key cannot be registered again.
	newer := s.Passkey(t, "carol")
	challenge := []byte("a challenge of nobody's choosing")
	if _, err := s.Broker.AddPasskey(t.Context(), carol, broker.Registration{
		Challenge: challenge, Response: a.Register(t, challenge), Assertion: newer.Assert(t, challenge), Name: "again",
	}); !errors.Is(err, broker.ErrNotRegistered) {
		t.Errorf("registering it again: got %v", err)
	}
	if problem, done := redeemed(t, s, id, "git.issues.write"); problem != openapi.CodeNotApproved || done {
		t.Errorf("with a newer key: got %q, %v, want not_approved", problem, done)
	}
	s.DB.Check(t)
}

func TestReusedApprovalNeedsNoNewSignature(t *testing.T) {
	t.Parallel()
	s := signed(t)
	a, scope := s.Passkey(t, "carol"), "git.comments.write"
	id := waiting(t, s.Client(t, agent), askFor(scope))
	if _, err := signing(t, s, "carol", id, a, func(b *broker.VoteCast) { b.Covers = approval.CoverTask }); err != nil {
		t.Fatal(err)
	}
	if _, done := redeemed(t, s, id, scope); !done {
		t.Fatal("not issued")
	}
	got, err := s.Client(t, agent).Request(t.Context(), askFor(scope))
	if err != nil || got.Token == nil {
		t.Fatalf("asking again: got %+v, %v, want a credential", got, err)
	}
	s.DB.Check(t)
	carol := s.Somebody(t, "carol")
	has, err := s.Broker.Passkeys(t.Context(), carol)
	if err != nil || s.Broker.RemovePasskey(t.Context(), carol, has[0].ID) != nil {
		t.Fatal(err)
	}
	if got, err := s.Client(t, agent).Request(t.Context(), askFor(scope)); err != nil || got.Pending == nil {
		t.Errorf("asking again without the key: got %+v, %v, want it to wait", got, err)
	}
	s.DB.Check(t)
}

func TestPasskeysOfAPerson(t *testing.T) {
	t.Parallel()
	s := signed(t)
	bob, challenge := s.Somebody(t, "bob"), []byte("a challenge of nobody's choosing")
	var first *testkit.Authenticator // vouches for the others
	adding := func(a *testkit.Authenticator, name string) error {
		r := broker.Registration{Challenge: challenge, Response: a.Register(t, challenge), Name: name}
		if first != nil {
			r.Assertion = first.Assert(t, challenge)
		}
		_, err := s.Broker.AddPasskey(t.Context(), bob, r)
		if err == nil && first == nil {
			first = a
		}
		return err
	}
	fresh := func() *testkit.Authenticator {
		return testkit.NewAuthenticator(t, testkit.Site.ID, testkit.Audience)
	}
	for _, name := range []string{"", " \t", "two\nlines", "\u202eelohw", "\x00", strings.Repeat("ä", 65), "\xff"} {
		if err := adding(fresh(), name); !errors.Is(err, broker.ErrPasskeyName) {
			t.Errorf("%q: got %v, want ErrPasskeyName", name, err)
		}
	}
	if _, err := s.Broker.AddPasskey(t.Context(), bob, broker.Registration{
		Challenge: []byte("another challenge"), Response: fresh().Register(t, challenge), Name: "x",
	}); !errors.Is(err, broker.ErrNotRegistered) || !errors.Is(err, passkey.ErrChallenge) {
		t.Errorf("another challenge: got %v", err)
	}
	for n := range broker.MaxPasskeys {
		if err := adding(fresh(), fmt.Sprintf("Schlüssel %d", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := adding(fresh(), "one more"); !errors.Is(err, broker.ErrTooManyPasskeys) {
		t.Errorf("the eleventh: got %v, want ErrTooManyPasskeys", err)
	}
	s.DB.Check(t)
}

// A session alone is not enough to add a passkey. That also needs one of the person's passkeys, or a recent login.
func TestASessionAloneAddsNoPasskey(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // how far the clock is ahead, in seconds
	s := signedAt(t, func() time.Time { return time.Now().Add(time.Duration(ahead.Load()) * time.Second) })
	// known makes the provider say another age of Bob's login in new tokens. It issues them as long as its own session lives.
	known := func(age time.Duration) people.Person {
		s.Know(devstack.DevPerson{Username: "bob", Groups: []string{"oncall"}, LoginAge: age})
		return s.Somebody(t, "bob")
	}
	bob, challenge := s.Somebody(t, "bob"), []byte("a challenge of nobody's choosing")
	fresh := func() *testkit.Authenticator {
		return testkit.NewAuthenticator(t, testkit.Site.ID, testkit.Audience)
	}
	adding := func(assertion []byte) error {
		_, err := s.Broker.AddPasskey(t.Context(), bob, broker.Registration{
			Challenge: challenge, Response: fresh().Register(t, challenge), Assertion: assertion, Name: "stolen",
		})
		return err
	}
	ahead.Store(301)
	if err := adding(nil); !errors.Is(err, broker.ErrOldLogin) {
		t.Errorf("the first, by an old login: got %v, want ErrOldLogin", err)
	}
	ahead.Store(0)
	for name, age := range map[string]time.Duration{"an old login": 301 * time.Second, "a login of unknown time": -1} {
		bob = known(age)
		if err := adding(nil); !errors.Is(err, broker.ErrOldLogin) {
			t.Errorf("the first, by a fresh token of %s: got %v, want ErrOldLogin", name, err)
		}
	}
	bob = known(4 * time.Minute)
	a := s.Passkey(t, "bob")
	for name, assertion := range map[string][]byte{
		"nothing": nil, "no assertion": []byte("{}"), "a key of the thief's": fresh().Assert(t, challenge),
		"another challenge": a.Assert(t, []byte("of a vote")), "a key by the name of Bob's": named(fresh(), a.ID).Assert(t, challenge),
	} {
		if err := adding(assertion); !errors.Is(err, broker.ErrNotVouched) {
			t.Errorf("%s: got %v, want ErrNotVouched", name, err)
		}
	}
	ahead.Store(3600)
	if err := adding(a.Assert(t, challenge)); err != nil {
		t.Errorf("by a passkey that Bob has: %v", err)
	}
	s.DB.Check(t)
}

func named(a *testkit.Authenticator, id []byte) *testkit.Authenticator {
	a.ID = id
	return a
}
