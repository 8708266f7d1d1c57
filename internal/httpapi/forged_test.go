package httpapi_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger/snapshot"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/jackc/pgx/v5"
)

// lawless removes from a schema everything that limits what its owner can write, and makes it treat every request as approved.
const lawless = `
	ALTER TABLE votes DISABLE TRIGGER USER;
	ALTER TABLE passkeys DISABLE TRIGGER USER;
	ALTER TABLE issuances DISABLE TRIGGER USER;
	ALTER TABLE votes DROP CONSTRAINT votes_assertion;
	ALTER TABLE passkeys DROP CONSTRAINT passkeys_digest, DROP CONSTRAINT passkeys_once;
	CREATE OR REPLACE FUNCTION approved_by(asked uuid) RETURNS text LANGUAGE sql VOLATILE AS $$ SELECT 'approved' $$;
	CREATE OR REPLACE FUNCTION redeemable(asked uuid, subject text, code text) RETURNS boolean LANGUAGE sql VOLATILE AS $$ SELECT true $$;`

// forger owns the database of a stack, and wants a credential that Carol does not approve.
type forger struct {
	s       *testkit.Stack
	conn    *pgx.Conn
	carol   *testkit.Authenticator
	genuine string // an assertion that Carol signed for another request
	request string
	hash    [32]byte
}

func (f *forger) exec(t *testing.T, sql string, args pgx.NamedArgs) {
	t.Helper()
	if _, err := f.conn.Exec(t.Context(), sql, args); err != nil {
		t.Fatal(err)
	}
}

// asks sends another request.
func (f *forger) asks(t *testing.T) {
	t.Helper()
	f.request = waiting(t, f.s.Client(t, agent), askFor("git.issues.write"))
	shown, err := f.s.Broker.ApprovalRequest(t.Context(), f.s.Somebody(t, "carol"), f.request)
	if err != nil {
		t.Fatal(err)
	}
	f.hash = shown.Hash()
}

// writes inserts Carol's vote into the tables.
func (f *forger) writes(t *testing.T, credential []byte, assertion string) {
	t.Helper()
	var named, signed *string
	if assertion != "" {
		text := base64.RawURLEncoding.EncodeToString(credential)
		named, signed = &text, &assertion
	}
	f.exec(t, `
		INSERT INTO votes (request, voter, verdict, covers, time, note, entry_index, credential, assertion)
		SELECT @request::uuid, @voter, 'approve', 'request', now(), '', h.size, @credential, @assertion FROM ledger_head AS h`, pgx.NamedArgs{
		"request": f.request, "voter": f.s.Issuer() + "#carol", "credential": named, "assertion": signed,
	})
	f.exec(t, `UPDATE issuances SET status = 'approved', votes = 1, status_time = now() WHERE id = @request::uuid`, pgx.NamedArgs{"request": f.request})
}

func keptOf(t *testing.T, answer []byte) string {
	t.Helper()
	a, err := passkey.ParseAssertion(answer)
	if err != nil {
		t.Fatal(err)
	}
	return a.String()
}

// publicKey returns the COSE key of an authenticator, in base64url.
func publicKey(t *testing.T, a *testkit.Authenticator) string {
	t.Helper()
	challenge := []byte("a challenge of nobody's choosing")
	key, err := passkey.Register(a.Register(t, challenge), challenge, testkit.Site)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(key.PublicKey)
}

// forgeries are what the owner of a database could write. None is an approval.
var forgeries = []struct {
	name string
	does func(t *testing.T, f *forger)
	want openapi.ProblemCode
}{
	{"nobody has signed", func(t *testing.T, f *forger) { f.writes(t, nil, "") }, openapi.CodeNotApproved},
	{"nobody has signed what is no JSON", func(t *testing.T, f *forger) { f.writes(t, f.carol.ID, "yes") }, openapi.CodeNotApproved},
	{"Carol has signed something else", func(t *testing.T, f *forger) { f.writes(t, f.carol.ID, f.genuine) }, openapi.CodeNotApproved},
	{"Bob has signed for Carol", func(t *testing.T, f *forger) {
		bob := f.s.Passkey(t, "bob")
		f.writes(t, bob.ID, keptOf(t, bob.Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"a key with the name of Carol's", func(t *testing.T, f *forger) {
		f.writes(t, f.carol.ID, keptOf(t, f.like(t).Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"a key in the place of Carol's", func(t *testing.T, f *forger) {
		like := f.like(t)
		f.exec(t, `UPDATE passkeys SET public_key = @key, digest = encode(sha256('x'), 'hex') WHERE person LIKE '%#carol'`, pgx.NamedArgs{"key": publicKey(t, like)})
		f.writes(t, f.carol.ID, keptOf(t, like.Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"a key beside Carol's, of the same entry", func(t *testing.T, f *forger) {
		another := testkit.NewAuthenticator(t, f.carol.RPID, f.carol.Origin)
		f.exec(t, `
			INSERT INTO passkeys (id, person, credential, public_key, digest, algorithm, sign_count, name, time, entry_index)
			SELECT gen_random_uuid(), person, @credential, @key, digest, algorithm, sign_count, name, time, entry_index
			FROM passkeys WHERE person LIKE '%#carol'`, pgx.NamedArgs{
			"key": publicKey(t, another), "credential": base64.RawURLEncoding.EncodeToString(another.ID),
		})
		f.writes(t, another.ID, keptOf(t, another.Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"Bob's key, said to be Carol's", func(t *testing.T, f *forger) {
		bob := f.s.Passkey(t, "bob")
		f.exec(t, `UPDATE passkeys SET person = @carol WHERE credential = @credential`, pgx.NamedArgs{
			"carol": f.s.Issuer() + "#carol", "credential": base64.RawURLEncoding.EncodeToString(bob.ID),
		})
		f.writes(t, bob.ID, keptOf(t, bob.Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"a key that came after the vote", func(t *testing.T, f *forger) {
		newer := f.s.Passkey(t, "carol")
		f.writes(t, newer.ID, keptOf(t, newer.Assert(t, f.hash[:])))
		f.exec(t, `UPDATE votes SET entry_index = 0 WHERE request = @request::uuid`, pgx.NamedArgs{"request": f.request})
	}, openapi.CodeNotApproved},
	{"nothing had to be signed", func(t *testing.T, f *forger) {
		f.exec(t, `UPDATE issuances SET canonical = replace(canonical, ',"passkey":"required"', '') WHERE id = @request::uuid`, pgx.NamedArgs{"request": f.request})
		f.writes(t, nil, "")
	}, openapi.CodeStale},
	{"a key that Carol has removed, revived", func(t *testing.T, f *forger) {
		lost := f.s.Passkey(t, "carol")
		f.exec(t, `ALTER TABLE passkeys ENABLE TRIGGER USER`, nil)
		person := f.s.Somebody(t, "carol")
		has, err := f.s.Broker.Passkeys(t.Context(), person)
		if err != nil || len(has) != 2 {
			t.Fatalf("got %+v, %v, want two passkeys", has, err)
		}
		if err := f.s.Broker.RemovePasskey(t.Context(), person, has[1].ID); err != nil {
			t.Fatal(err)
		}
		f.exec(t, `ALTER TABLE passkeys DISABLE TRIGGER USER`, nil)
		f.exec(t, `UPDATE passkeys SET removed_at = NULL, removed_index = NULL`, nil)
		f.writes(t, lost.ID, keptOf(t, lost.Assert(t, f.hash[:])))
	}, openapi.CodeNotApproved},
	{"a no taken out from beside Carol's yes", func(t *testing.T, f *forger) {
		if _, err := signing(t, f.s, "carol", f.request, f.carol, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := vote(t, f.s.Person(t, "bob"), f.request, openapi.VerdictDeny); err != nil {
			t.Fatal(err)
		}
		f.exec(t, `DELETE FROM votes WHERE request = @request::uuid AND verdict = 'deny'`, pgx.NamedArgs{"request": f.request})
		f.exec(t, `UPDATE issuances SET status = 'approved', votes = 1 WHERE id = @request::uuid`, pgx.NamedArgs{"request": f.request})
	}, openapi.CodeNotApproved},
	{"remembered of another request", func(t *testing.T, f *forger) {
		f.exec(t, `UPDATE issuances SET remembered = (SELECT request FROM votes WHERE assertion = @genuine) WHERE id = @request::uuid`,
			pgx.NamedArgs{"request": f.request, "genuine": f.genuine})
		f.writes(t, f.carol.ID, f.genuine)
	}, openapi.CodeNotApproved},
}

// like returns another key with the credential id of Carol's.
func (f *forger) like(t *testing.T) *testkit.Authenticator {
	t.Helper()
	other := testkit.NewAuthenticator(t, f.carol.RPID, f.carol.Origin)
	other.ID = f.carol.ID
	return other
}

// T3: the owner of the database can write anything into it, but gets no credential that nobody signed for.
func TestAForgedApprovalMintsNothing(t *testing.T) {
	t.Parallel()
	for _, forgery := range forgeries {
		t.Run(forgery.name, func(t *testing.T) {
			s := signed(t)
			f := &forger{s: s, conn: testkit.Connect(t, s.DB.AdminURL), carol: s.Passkey(t, "carol")}
			f.asks(t)
			if _, err := signing(t, s, "carol", f.request, f.carol, func(b *broker.VoteCast) { f.genuine = keptOf(t, b.Assertion) }); err != nil {
				t.Fatal(err)
			}
			f.exec(t, lawless, nil)
			f.asks(t)
			forgery.does(t, f)
			if problem, done := redeemed(t, s, f.request, "git.issues.write"); done || problem != forgery.want {
				t.Errorf("got %q, %v, want %q", problem, done, forgery.want)
			}
			if found := findings(t, s); len(found) == 0 {
				t.Error("an auditor finds nothing")
			}
			// A real signature of Carol is accepted, however it came into the tables. So the forgeries fail for lack of one.
			f.asks(t)
			f.writes(t, f.carol.ID, keptOf(t, f.carol.Assert(t, f.hash[:])))
			if _, done := redeemed(t, s, f.request, "git.issues.write"); !done && !strings.Contains(forgery.name, "in the place") {
				t.Error("what was signed is not issued: the forgery is refused for another reason")
			}
		})
	}
}

// Appending entries for the forged approval does not help either, although the schema accepts them.
func TestAForgedEntryMintsNothing(t *testing.T) {
	t.Parallel()
	s := signed(t)
	f := &forger{s: s, carol: s.Passkey(t, "carol")}
	f.asks(t)
	if _, err := signing(t, s, "carol", f.request, f.carol, func(b *broker.VoteCast) { f.genuine = keptOf(t, b.Assertion) }); err != nil {
		t.Fatal(err)
	}
	s.DB.Check(t)
	f.asks(t)
	voter := approval.Voter{ID: s.Issuer() + "#carol", Name: "Carol"}
	err := s.DB.Ledger(t).Apply(t.Context(), broker.Transition{
		Request: f.request, Was: broker.StatusPending, Becomes: broker.StatusApproved, Time: time.Now(), Actor: voter.ID, Hash: f.hash,
		Vote: &approval.Vote{
			Voter: voter, Verdict: approval.Approve, Covers: approval.CoverRequest, Assertion: f.genuine, Key: &passkey.Key{Credential: f.carol.ID},
		},
	})
	if err != nil {
		t.Fatalf("the schema does not let it pass: %v", err)
	}
	if problem, done := redeemed(t, s, f.request, "git.issues.write"); done || problem != openapi.CodeNotApproved {
		t.Errorf("got %q, %v, want not_approved", problem, done)
	}
	found := findings(t, s)
	if len(found) != 1 || found[0].Code != audit.Impossible || !strings.Contains(found[0].What, "does not verify") {
		t.Errorf("an auditor finds %+v", found)
	}
}

func findings(t *testing.T, s *testkit.Stack) []audit.Finding {
	t.Helper()
	whole, err := snapshot.Open(t.Context(), s.DB.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close(t.Context())
	report, err := audit.Verify(t.Context(), whole.Items(t.Context()), audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return report.Findings
}
