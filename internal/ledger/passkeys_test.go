package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// keyOf returns a passkey that a person could register.
func keyOf(t *testing.T, who approval.Voter) (broker.Passkey, *testkit.Authenticator) {
	t.Helper()
	a, challenge := testkit.NewAuthenticator(t, testkit.Site.ID, testkit.Audience), []byte("of nobody's choosing")
	key, err := passkey.Register(a.Register(t, challenge), challenge, testkit.Site)
	if err != nil {
		t.Fatal(err)
	}
	return broker.Passkey{
		ID: uuid.Must(uuid.NewV7()).String(), Person: who.ID, Name: "Schlüssel", Time: moment(), Site: testkit.Site.ID, Key: key,
	}, a
}

func adds(t *testing.T, l *ledger.Ledger, who approval.Voter) (broker.Passkey, *testkit.Authenticator) {
	t.Helper()
	if _, err := l.UpsertPerson(t.Context(), who, moment()); err != nil {
		t.Fatal(err)
	}
	p, a := keyOf(t, who)
	if err := l.AddPasskey(t.Context(), p, who); err != nil {
		t.Fatal(err)
	}
	return p, a
}

// keyOfAnother returns a passkey with a public key that another person already has, under a different credential.
func keyOfAnother(t *testing.T, who approval.Voter, another broker.Passkey) broker.Passkey {
	t.Helper()
	p, _ := keyOf(t, who)
	p.Key.PublicKey = another.Key.PublicKey
	return p
}

// A person can have ten passkeys, however many are registered at once. A removed one makes room.
func TestPasskeysPerPersonAreLimited(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l, other := db.Ledger(t), db.Ledger(t)
	first, _ := adds(t, l, bobVotes)
	var all errgroup.Group
	taken := make(chan bool, 20)
	for n := range cap(taken) {
		p, _ := keyOf(t, bobVotes)
		all.Go(func() error {
			err := []*ledger.Ledger{l, other}[n%2].AddPasskey(t.Context(), p, bobVotes)
			taken <- err == nil
			if errors.Is(err, broker.ErrConcurrentChange) {
				return nil
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	close(taken)
	n := 1
	for ok := range taken {
		if ok {
			n++
		}
	}
	has, err := l.Passkeys(t.Context(), bobVotes.ID)
	if err != nil || n != broker.MaxPasskeys || len(has) != n || has[0].ID != first.ID {
		t.Fatalf("%d were taken, and there are %d: %v", n, len(has), err)
	}
	adds(t, l, carolVotes)
	if err := l.RemovePasskey(t.Context(), first.ID, carolVotes, start); !errors.Is(err, broker.ErrConcurrentChange) {
		t.Errorf("Carol removes Bob's: got %v, want ErrConcurrentChange", err)
	}
	if err := l.RemovePasskey(t.Context(), first.ID, bobVotes, start); err != nil {
		t.Fatal(err)
	}
	again := first
	again.ID = uuid.Must(uuid.NewV7()).String()
	if err := l.AddPasskey(t.Context(), again, bobVotes); !errors.Is(err, broker.ErrConcurrentChange) {
		t.Errorf("registering what was removed: got %v, want ErrConcurrentChange", err)
	}
	renamed := keyOfAnother(t, bobVotes, has[1])
	if err := l.AddPasskey(t.Context(), renamed, bobVotes); !errors.Is(err, broker.ErrConcurrentChange) {
		t.Errorf("registering one's public key by another name: got %v, want ErrConcurrentChange", err)
	}
	renamed = keyOfAnother(t, carolVotes, has[1])
	if err := l.AddPasskey(t.Context(), renamed, carolVotes); !errors.Is(err, broker.ErrConcurrentChange) {
		t.Errorf("registering somebody's public key as one's own: got %v, want ErrConcurrentChange", err)
	}
	adds(t, l, bobVotes)
	db.Check(t)
}

// The schema refuses a passkey, or a signature, that no entry has.
func TestForgedPasskeysAreRefused(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	p, a := adds(t, l, bobVotes)
	request := pending(func(rec *broker.Record) {
		rec.Canonical = `{"what":"people see","passkey":"required"}`
		rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
	})
	begin(t, l, request)
	conn := testkit.Connect(t, db.BrokerURL)
	const copied = `INSERT INTO passkeys (id, person, credential, public_key, digest, algorithm, sign_count, name, time, entry_index) `
	for name, sql := range map[string]string{
		"of no entry":              copied + `SELECT gen_random_uuid(), person, 'AAAA', 'AAAA', encode(sha256(decode('AAAA', 'base64')), 'hex'), algorithm, sign_count, name, time, entry_index FROM passkeys WHERE id <> $1`,
		"of another person":        copied + `SELECT gen_random_uuid(), person || 'x', 'AAAA', 'AAAA', encode(sha256(decode('AAAA', 'base64')), 'hex'), algorithm, sign_count, name, time, entry_index FROM passkeys WHERE id <> $1`,
		"of the same public key":   copied + `SELECT gen_random_uuid(), person, 'AAAA', public_key, digest, algorithm, sign_count, name, time, entry_index FROM passkeys WHERE id <> $1`,
		"with another digest":      copied + `SELECT gen_random_uuid(), person, 'AAAA', 'AAAA', digest, algorithm, sign_count, name, time, entry_index FROM passkeys WHERE id <> $1`,
		"removed by no entry":      `UPDATE passkeys SET removed_at = now(), removed_index = 99 WHERE id <> $1`,
		"removed before it was":    `UPDATE passkeys SET removed_at = now(), removed_index = entry_index WHERE id <> $1`,
		"removed at no time":       `UPDATE passkeys SET removed_index = 99 WHERE id <> $1`,
		"a vote that is no entry":  `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'approve', 'request', now(), '', entry_index, 'AAAA', '{"id":"AAAA"}' FROM issuances WHERE id = $1`,
		"a vote by another key":    `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'approve', 'request', now(), '', entry_index, 'AAAA', '{"id":"AAAB"}' FROM issuances WHERE id = $1`,
		"a vote by no key":         `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'approve', 'request', now(), '', entry_index, 'AAAA', '{}' FROM issuances WHERE id = $1`,
		"a key that signs nothing": `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'approve', 'request', now(), '', entry_index, 'AAAA', NULL FROM issuances WHERE id = $1`,
		"a no that is signed":      `INSERT INTO votes SELECT id, 'https://idp.test#bob', 'deny', 'request', now(), '', entry_index, 'AAAA', '{"id":"AAAA"}' FROM issuances WHERE id = $1`,
	} {
		if got := refusedBy(t, conn, sql, request.ID); got != violation && (name != "of another person" || got != noParent) && (name != "of the same public key" || got != notUnique) {
			t.Errorf("%s: got %q, want %q", name, got, violation)
		}
	}
	hash := (&broker.ApprovalRequest{View: broker.View{Canonical: request.Canonical}}).Hash()
	assertion, err := passkey.ParseAssertion(a.Assert(t, hash[:]))
	if err != nil {
		t.Fatal(err)
	}
	vote := func(who approval.Voter, becomes broker.Status, signed string, key *passkey.Key) error {
		return l.Apply(t.Context(), broker.Transition{
			Request: request.ID, Was: broker.StatusPending, Becomes: becomes, Time: time.Now(), Actor: who.ID, Hash: hash,
			Vote: &approval.Vote{Voter: who, Verdict: approval.Approve, Covers: approval.CoverRequest, Time: time.Now(), Assertion: signed, Key: key},
		})
	}
	if err := vote(bobVotes, broker.StatusPending, "", nil); err == nil {
		t.Error("a yes is recorded that nobody has signed")
	}
	if err := vote(bobVotes, broker.StatusPending, assertion.String(), &p.Key); err != nil {
		t.Fatal(err)
	}
	cast, err := l.Votes(t.Context(), request.ID)
	if err != nil || len(cast) != 1 || cast[0].Key == nil || cast[0].Assertion != assertion.String() || passkey.Verify(*cast[0].Key, assertion, hash[:], testkit.Site) != nil {
		t.Fatalf("got %+v, %v, want a vote that is signed", cast, err)
	}
	db.Check(t)
}

// The commit that redeems a request does not count votes whose passkey was removed.
func TestVotesOfARemovedPasskeyDoNotCount(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	for _, removed := range []bool{false, true} {
		request := pending(func(rec *broker.Record) {
			rec.ID = uuid.Must(uuid.NewV7()).String()
			rec.Canonical = `{"what":"people see","passkey":"required"}`
			rec.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
		})
		begin(t, l, request)
		hash := (&broker.ApprovalRequest{View: broker.View{Canonical: request.Canonical}}).Hash()
		var p broker.Passkey
		for i, who := range []approval.Voter{bobVotes, carolVotes} {
			var a *testkit.Authenticator
			p, a = adds(t, l, who)
			assertion, err := passkey.ParseAssertion(a.Assert(t, hash[:]))
			if err != nil {
				t.Fatal(err)
			}
			err = l.Apply(t.Context(), broker.Transition{
				Request: request.ID, Was: broker.StatusPending, Votes: i, Becomes: []broker.Status{broker.StatusPending, broker.StatusApproved}[i],
				Time: time.Now(), Actor: who.ID, Hash: hash, Vote: &approval.Vote{
					Voter: who, Verdict: approval.Approve, Covers: approval.CoverRequest, Assertion: assertion.String(), Key: &p.Key,
				},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if removed {
			if err := l.RemovePasskey(t.Context(), p.ID, carolVotes, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.Begin(t.Context(), redeems(request)); errors.Is(err, broker.ErrNotApproved) != removed || err != nil && !removed {
			t.Errorf("removed %v: got %v", removed, err)
		}
	}
	db.Check(t)
}
