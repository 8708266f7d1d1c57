package search_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/search"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

// because returns a change of the reason and the parameters.
func because(reason string, params map[string]any, further ...func(*broker.Record)) func(*broker.Record) {
	return func(rec *broker.Record) {
		rec.Request.Reason, rec.Request.Params, rec.Decision.Params = reason, params, params
		for _, change := range further {
			change(rec)
		}
	}
}

func elsewhere(rec *broker.Record) {
	as(moment(), "spiffe://other.test/agents/a", "git.read", "t1", 0)(rec)
}

// Each filter finds exactly the records that match, whatever text it holds and whatever the reader's reach is.
func TestSearchFilters(t *testing.T) {
	t.Parallel()
	start := moment()
	l := testkit.NewDB(t).Ledger(t)
	login := dynamic(scopes.KindDatabase, because("rotate the keys", map[string]any{"db": "main"})) // 0, and 1 is its issue
	begin(t, l, login)
	settle(t, l, to(login, broker.StatusIssued))
	claims := sha256.Sum256([]byte(`{"jti":"x"}`))
	digest := sha256.Sum256([]byte(login.ID))
	odd := strings.Repeat(`x'"%_&|!():*<-> \`, 100)
	begin(
		t, l,
		allowed(because("Fix the FLAKY-test in build 7", map[string]any{"repo": "acme/api", "issue": int64(7)})),      // 2
		allowed(because("flaky again", map[string]any{"repo": "acme/api", "issue": "7", "dry": true})),                // 3
		denied(because("drop table; -- 100% it's", map[string]any{"repo": `acme/"api"`, "": "empty", "a.b": odd})),    // 4
		pending(because("pay", map[string]any{"repo": "acme/web", "depth": map[string]any{"repo": "acme/api"}})),      // 5
		allowed(because("flaky elsewhere", map[string]any{"repo": "acme/api"}, elsewhere)),                            // 6
		allowed(because("", nil, func(rec *broker.Record) { rec.Decision.Resource = odd; rec.Intent.KeyID = "old" })), // 7
		allowed(because("one two", nil, func(rec *broker.Record) { // 8
			rec.Decision.Scope = &scopes.Scope{Name: "git.read", Authority: scopes.Payment}
			rec.Decision.Catalogue, rec.Request.User = "sha256:older", &scopes.User{ID: testkit.Bob.ID, Groups: []string{"dev"}}
		})),
	)
	acme := broker.Reach{TrustDomains: []string{"acme.test"}}
	agents := broker.Reach{Within: []string{"spiffe://acme.test/agents"}}
	for _, tc := range []struct {
		name  string
		query broker.Query
		want  []int64 // within acme.test
		other bool    // whether 6 matches too
	}{
		{"a word", broker.Query{Words: "flaky"}, []int64{3, 2}, true},
		{"of a compound, in another case", broker.Query{Words: "Test"}, []int64{2}, false},
		{"a compound", broker.Query{Words: "flaky-test"}, []int64{2}, false},
		{"all words", broker.Query{Words: "again flaky"}, []int64{3}, false},
		{"no prefixes", broker.Query{Words: "flak"}, nil, false},
		{"operators are words", broker.Query{Words: "flaky | again"}, []int64{3}, false},
		{"negation", broker.Query{Words: "flaky & !again"}, []int64{3}, false},
		{"prefix operator", broker.Query{Words: "fla:*"}, nil, false},
		{"wildcards", broker.Query{Words: "%"}, nil, false},
		{"quotes", broker.Query{Words: `it's "drop"`}, []int64{4}, false},
		{"no word at all", broker.Query{Words: "!!! ' -- "}, nil, false},
		{"parentheses", broker.Query{Words: "((flaky"}, []int64{3, 2}, true},
		{"NUL", broker.Query{Words: "flaky\x00"}, nil, false},
		{"a long word", broker.Query{Words: strings.Repeat("a", 5000)}, nil, false},
		{"a parameter", broker.Query{Params: map[string]string{"repo": "acme/api"}}, []int64{3, 2}, true},
		{"a number or its text", broker.Query{Params: map[string]string{"issue": "7"}}, []int64{3, 2}, false},
		{"not another number", broker.Query{Params: map[string]string{"issue": "70"}}, nil, false},
		{"a bool", broker.Query{Params: map[string]string{"dry": "true"}}, []int64{3}, false},
		{"two parameters", broker.Query{Params: map[string]string{"repo": "acme/api", "dry": "true"}}, []int64{3}, false},
		{"no such parameter", broker.Query{Params: map[string]string{"nope": "acme/api"}}, nil, false},
		{"quotes in a parameter", broker.Query{Params: map[string]string{"repo": `acme/"api"`}}, []int64{4}, false},
		{"an odd name and value", broker.Query{Params: map[string]string{"a.b": odd}}, []int64{4}, false},
		{"an empty name", broker.Query{Params: map[string]string{"": "empty"}}, []int64{4}, false},
		{"a path as a name", broker.Query{Params: map[string]string{`repo" == "acme/api" || $."x`: "y"}}, nil, false},
		{"a path as a value", broker.Query{Params: map[string]string{"repo": `" || true || "`}}, nil, false},
		{"words and parameters", broker.Query{Words: "flaky", Params: map[string]string{"issue": "7"}, Scope: "git.read"}, []int64{3, 2}, false},
		{"the digest of claims", broker.Query{Credential: claims[:]}, []int64{8, 7, 3, 2}, true},
		{"the digest of a secret", broker.Query{Credential: digest[:]}, []int64{0}, false},
		{"half a digest", broker.Query{Credential: digest[:16]}, nil, false},
		{"a name", broker.Query{Name: "v-" + login.ID}, []int64{0}, false},
		{"a name in part", broker.Query{Name: "v-"}, nil, false},
		{"a group", broker.Query{Group: "oncall"}, []int64{5}, false},
		{"a person", broker.Query{User: testkit.Bob.ID}, []int64{8}, false},
		{"another person", broker.Query{User: testkit.Bob.ID + "x"}, nil, false},
		{"a person and more", broker.Query{User: testkit.Bob.ID, Scope: "git.read", SPIFFEIDPrefix: "spiffe://acme.test/agents"}, []int64{8}, false},
		{"a code", broker.Query{DecisionCode: "no_permit"}, []int64{4}, false},
		{"the usual code", broker.Query{DecisionCode: "permitted"}, []int64{8, 7, 3, 2, 0}, true},
		{"an authority", broker.Query{Authority: "payment"}, []int64{8}, false},
		{"a resource", broker.Query{Resource: odd}, []int64{7}, false},
		{"a resource in part", broker.Query{Resource: odd[:20]}, nil, false},
		{"a catalogue", broker.Query{Catalogue: "sha256:older"}, []int64{8}, false},
		{"a catalogue and words", broker.Query{Catalogue: "sha256:c0ffee", Words: "flaky"}, []int64{3, 2}, true},
		{"a key", broker.Query{KeyID: "old"}, []int64{7}, false},
		{"a key and parameters", broker.Query{KeyID: "key-1", Params: map[string]string{"repo": "acme/api"}}, []int64{3, 2}, true},
		{"nobody voted", broker.Query{Approver: "https://idp.test#alice"}, nil, false},
		{"words of another sandbox", broker.Query{Words: "flaky", SPIFFEID: sandbox + "b"}, nil, false},
		{"words in a state", broker.Query{Words: "flaky", Status: broker.StatusIssued}, []int64{3, 2}, true},
		{"words at a time", broker.Query{Words: "flaky", Since: start.Add(-time.Hour), Until: start.Add(time.Hour)}, []int64{3, 2}, true},
		{"words before", broker.Query{Words: "flaky", Until: start.Add(-time.Hour)}, nil, false},
		{"words since", broker.Query{Words: "flaky", Since: start.Add(time.Hour)}, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := tc.want
			if tc.other {
				all = slices.Sorted(slices.Values(append([]int64{6}, tc.want...)))
				slices.Reverse(all)
			}
			theirs := []int64(nil)
			if tc.other {
				theirs = []int64{6}
			}
			for _, r := range []struct {
				reach broker.Reach
				want  []int64
			}{
				{acme, tc.want},
				{agents, tc.want},
				{everything, all},
				{broker.Reach{Subject: sandbox}, tc.want},
				{broker.Reach{Within: []string{"spiffe://other.test/agents/a", "spiffe://acme.test/x"}}, theirs},
				{broker.Reach{TrustDomains: []string{"acme.test.evil"}}, nil},
			} {
				for _, limit := range []int{1, 2, 100} {
					tc.query.Limit = limit
					if got := indexes(t, l, tc.query, r.reach); !slices.Equal(got, r.want) {
						t.Errorf("%+v, pages of %d: got %v, want %v", r.reach, limit, got, r.want)
					}
				}
			}
		})
	}
}

// back lists all pages from the last to the first, like a reader who pages back, and then forwards again.
func back(t *testing.T, l *ledger.Ledger, q broker.Query, reach broker.Reach) []int64 {
	t.Helper()
	var all []int64
	for q.From = 1; q.From != 0; {
		page, err := l.List(t.Context(), q, reach)
		if err != nil {
			t.Fatal(err)
		}
		var some []int64
		for _, v := range page.Records {
			some = append(some, v.Index)
		}
		if len(some) > 0 && page.Next != some[len(some)-1] {
			t.Errorf("got next %d after %v", page.Next, some)
		}
		all, q.From = append(some, all...), page.Prev
	}
	return all
}

// A reader who pages back and forth while others write sees neither gaps nor duplicates, in searches of all kinds.
func TestPagesTurnBothWays(t *testing.T) {
	t.Parallel()
	start := moment()
	l := testkit.NewDB(t).Ledger(t)
	fill := func(n int) {
		for i := range n {
			begin(t, l, allowed(because("look here", map[string]any{"n": int64(i % 3)}, ofSandbox(i%5, nil))),
				denied(because("look there", nil)))
		}
	}
	fill(30)
	random := rand.New(rand.NewPCG(1, 2))
	for _, q := range []broker.Query{
		{},
		{Words: "look"},
		{Words: "here"},
		{Params: map[string]string{"n": "0"}},
		{Decision: "deny"},
		{SPIFFEIDPrefix: sandbox},
		{Since: start.Add(-time.Minute)},
		{Catalogue: "sha256:c0ffee", Words: "there"},
	} {
		q.Limit = 200
		before := indexes(t, l, q, everything)
		q.Limit = 1 + random.IntN(3)
		page, err := l.List(t.Context(), q, everything)
		if err != nil || page.Prev != 0 {
			t.Fatalf("%+v: the first page has %d before it, %v", q, page.Prev, err)
		}
		at := q
		for range 3 {
			at.Before = page.Next
			if page, err = l.List(t.Context(), at, everything); err != nil {
				t.Fatal(err)
			}
		}
		fill(1)
		// Paging back shows what was on the pages before, and what was added since.
		turn := q
		turn.From = page.Prev
		var newer []int64
		for turn.From != 0 {
			p, err := l.List(t.Context(), turn, everything)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range slices.Backward(p.Records) {
				newer = append(newer, v.Index)
			}
			turn.From = p.Prev
		}
		slices.Reverse(newer)
		q.Limit = 200
		now := indexes(t, l, q, everything)
		if want := now[:slices.Index(now, page.Records[0].Index)]; !slices.Equal(newer, want) {
			t.Errorf("%+v: got %v on the pages before, want %v", q, newer, want)
		}
		q.Limit = 4
		if got := slices.DeleteFunc(back(t, l, q, everything), func(i int64) bool { return i == 0 }); !slices.Equal(got, slices.DeleteFunc(now, func(i int64) bool { return i == 0 })) {
			t.Errorf("%+v: got %v from the end, want %v", q, got, now)
		}
		if len(before) >= len(now) {
			t.Errorf("%+v: nothing was written meanwhile", q)
		}
	}
}

// A search that takes too long fails with another error than one on an unavailable database.
func TestSlowSearchTimesOut(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	begin(t, l, allowed(nil))
	conn := testkit.Connect(t, db.AdminURL)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE issuances`); err != nil {
		t.Fatal(err)
	}
	_, err = l.List(t.Context(), broker.Query{Limit: 1, Words: "flaky"}, everything)
	if !errors.Is(err, broker.ErrTooBroad) || errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want ErrTooBroad", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Tidy(t.Context()); err != nil {
		t.Errorf("Tidy: %v", err)
	}
}

// Searches with a separate auditor's login see what the broker's login sees, and can only read.
func TestAuditorLoginSearchesReadOnly(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l, err := ledger.Open(t.Context(), ledger.Config{URL: db.BrokerURL, AuditURL: db.AuditorURL, AuditConns: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	begin(t, l, allowed(because("flaky", nil)), denied(nil))
	for _, q := range []broker.Query{{}, {Words: "flaky"}, {Approver: "x"}, {Since: start.Add(-time.Hour), Catalogue: "sha256:c0ffee"}} {
		q.Limit = 10
		if _, err := l.List(t.Context(), q, everything); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
	conn := testkit.Connect(t, db.AuditorURL)
	for _, view := range []string{"audit_issuances", "audit_votes", "audit_tasks"} {
		var rows int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM `+view).Scan(&rows); err != nil {
			t.Errorf("%s: %v", view, err)
		}
	}
	if got := testkit.RefusedBy(t, conn, `SELECT tidy_terms()`); got != noRight {
		t.Errorf("tidying: got %q, want %q", got, noRight)
	}
	var found string
	err = conn.QueryRow(t.Context(), `SELECT sha256 FROM audit_issuances WHERE reason = 'flaky'`).Scan(&found)
	want := sha256.Sum256([]byte(`{"jti":"x"}`))
	if err != nil || found != hex.EncodeToString(want[:]) {
		t.Errorf("got %s, %v, want the digest of the claims %s", found, err, fmt.Sprintf("%x", want))
	}
}

// A search by terms finds every record: near ones, a few far ones, or many far ones; in both directions, and over any number
// of pages.
func TestSearchesByTermsFindAll(t *testing.T) {
	db := testkit.NewDB(t)
	if err := devstack.Fill(t.Context(), db.AdminURL, 0, 20000, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	// No trigger ran while the database was filled.
	rules, err := testkit.Connect(t, db.AdminURL).Query(t.Context(), `SELECT DISTINCT broken_rule(i, false) FROM issuances AS i WHERE broken_rule(i, false) IS NOT NULL`)
	if err != nil {
		t.Fatal(err)
	}
	if broken, err := pgx.CollectRows(rules, pgx.RowTo[string]); err != nil || len(broken) > 0 {
		t.Fatalf("what it was filled with breaks rules: %q, %v", broken, err)
	}
	l := db.Ledger(t)
	conn := testkit.Connect(t, db.AdminURL)
	acme := broker.Reach{TrustDomains: []string{"acme.test"}}
	for _, tc := range []struct {
		query broker.Query
		is    string
	}{
		{broker.Query{Words: "w7"}, `reason ~ '\mw7\M'`},
		{broker.Query{Words: "w7 w30"}, `reason ~ '\mw7\M' AND reason ~ '\mw30\M'`},
		{broker.Query{Words: "w7", Scope: "app1.verb1"}, `reason ~ '\mw7\M' AND scope = 'app1.verb1'`},
		{broker.Query{Words: "w7", SPIFFEIDPrefix: "spiffe://acme.test/team-3"}, `reason ~ '\mw7\M' AND spiffe_id LIKE '%/team-3/%'`},
		{broker.Query{Scope: "app1.verb1"}, `scope = 'app1.verb1'`},
		{broker.Query{SPIFFEIDPrefix: "spiffe://acme.test/team-3"}, `spiffe_id LIKE '%/team-3/%'`},
		{broker.Query{Resource: "github:repo/acme/repo-2"}, `resource = 'github:repo/acme/repo-2'`},
		{broker.Query{Params: map[string]string{"repo": "acme/repo-2"}}, `params ->> 'repo' = 'acme/repo-2'`},
		{broker.Query{Params: map[string]string{"issue": "37"}}, `params ->> 'issue' = '37'`},
		{broker.Query{Params: map[string]string{"repo": "acme/repo-2"}, Status: "revoked"}, `params ->> 'repo' = 'acme/repo-2' AND status = 'revoked'`},
		{broker.Query{Scope: "app1.verb1", Decision: "deny"}, `scope = 'app1.verb1' AND decision = 'deny'`},
		{broker.Query{Words: "w7", DecisionCode: "no_permit"}, `reason ~ '\mw7\M' AND decision_code = 'no_permit'`},
		{broker.Query{Words: "w7", Authority: "write"}, `reason ~ '\mw7\M' AND authority = 'write'`},
		{broker.Query{Words: "w0", Group: "group-0"}, `reason ~ '\mw0\M' AND approval_group = 'group-0'`},
		{broker.Query{Words: "w0", User: "https://idp.test#u0"}, `reason ~ '\mw0\M' AND on_behalf_of = 'https://idp.test#u0'`},
		{broker.Query{Words: "w7", Decision: "allow", Authority: "read"}, `reason ~ '\mw7\M' AND decision = 'allow' AND authority = 'read'`},
		{broker.Query{Params: map[string]string{"repo": "acme/repo-2"}, Words: "w7"}, `params ->> 'repo' = 'acme/repo-2' AND reason ~ '\mw7\M'`},
	} {
		rows, err := conn.Query(t.Context(), `
			SELECT entry_index FROM issuances WHERE trust_domain = 'acme.test' AND entry_index > 0 AND `+tc.is+` ORDER BY entry_index DESC`)
		if err != nil {
			t.Fatal(err)
		}
		want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(want) == 0 {
			t.Fatalf("%s: got %d, %v", tc.is, len(want), err)
		}
		tc.query.Limit = 50
		for _, by := range []struct {
			most   int
			shifts []uint
		}{{10000, []uint{12, 15, 18}}, {10000, []uint{12}}, {1, []uint{12}}} {
			search.SearchInBlocks(t, by.most, by.shifts...)
			if got := indexes(t, l, tc.query, acme); !slices.Equal(got, want) {
				t.Errorf("%+v by %v: got %d, want %d", tc.query, by, len(got), len(want))
			}
			if got := back(t, l, tc.query, acme); !slices.Equal(got, want) {
				t.Errorf("%+v from the end by %v: got %d, want %d", tc.query, by, len(got), len(want))
			}
			if got := indexes(t, l, tc.query, broker.Reach{TrustDomains: []string{"other.test"}}); slices.ContainsFunc(got, func(i int64) bool { return slices.Contains(want, i) }) {
				t.Errorf("%+v by %v: another domain sees some of it", tc.query, by)
			}
		}
	}
}
