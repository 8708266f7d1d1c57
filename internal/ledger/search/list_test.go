package search_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestListFilters(t *testing.T) {
	t.Parallel()
	start := moment()
	l := testkit.NewDB(t).Ledger(t)
	begin(
		t, l,
		allowed(as(start, "spiffe://acme.test/agents/a", "git.read", "t1", 0)),    // 0
		allowed(as(start, "spiffe://acme.test/agents/ab", "git.read", "t1", 1)),   // 1
		allowed(as(start, "spiffe://acme.test/agents/a/x", "git.write", "t2", 2)), // 2
		denied(as(start, "spiffe://acme.test/agents/a", "git.write", "t1", 3)),    // 3
		pending(as(start, "spiffe://acme.test/agents", "git.write", "t%", 4)),     // 4
		allowed(as(start, "spiffe://other.test/agents/a", "git.read", "t1", 5)),   // 5
		allowed(as(start, "spiffe://acme.test/agents/a-b", "git.read", "t3", 6)),  // 6
		allowed(as(start, "spiffe://acme.test/agents/a0", "git.read", "t3", 7)),   // 7
	)
	failing := allowed(as(start, "spiffe://acme.test/agents/z", "git.read", "t4", 8)) // 8, and 9 records its failure
	begin(t, l, failing)
	out := broker.Outcome{ID: failing.ID, Time: failing.Time, Status: broker.StatusFailed, Detail: "internal"}
	if err := l.RecordOutcome(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	at := func(minutes int) time.Time {
		return start.Truncate(time.Microsecond).Add(time.Duration(minutes) * time.Minute)
	}
	acme := broker.Reach{TrustDomains: []string{"acme.test"}}
	for _, tc := range []struct {
		name  string
		query broker.Query
		reach broker.Reach
		want  []int64
	}{
		{"all", broker.Query{}, everything, []int64{8, 7, 6, 5, 4, 3, 2, 1, 0}},
		{"nobody", broker.Query{}, broker.Reach{}, nil},
		{"one trust domain", broker.Query{}, acme, []int64{8, 7, 6, 4, 3, 2, 1, 0}},
		{"own", broker.Query{}, broker.Reach{Subject: sandbox}, []int64{3, 0}},
		{"own is not widened", broker.Query{SPIFFEIDPrefix: "spiffe://acme.test"}, broker.Reach{Subject: sandbox}, []int64{3, 0}},
		{"own, in another domain's reach", broker.Query{}, broker.Reach{Subject: sandbox, TrustDomains: []string{"other.test"}}, nil},
		{"trust domain", broker.Query{TrustDomain: "other.test"}, everything, []int64{5}},
		{"trust domain out of reach", broker.Query{TrustDomain: "other.test"}, acme, nil},
		{"SPIFFE ID", broker.Query{SPIFFEID: sandbox}, everything, []int64{3, 0}},
		{"prefix ends on a segment", broker.Query{SPIFFEIDPrefix: "spiffe://acme.test/agents/a"}, everything, []int64{3, 2, 0}},
		{"prefix with a slash", broker.Query{SPIFFEIDPrefix: "spiffe://acme.test/agents/a/"}, everything, []int64{3, 2, 0}},
		{"prefix is a trust domain", broker.Query{SPIFFEIDPrefix: "spiffe://other.test"}, everything, []int64{5}},
		{"prefix has no wildcards", broker.Query{SPIFFEIDPrefix: "spiffe://acme.test/%"}, everything, nil},
		{"prefix out of reach", broker.Query{SPIFFEIDPrefix: "spiffe://other.test"}, acme, nil},
		{"scope", broker.Query{Scope: "git.write"}, everything, []int64{4, 3, 2}},
		{"task", broker.Query{Task: "t1"}, everything, []int64{5, 3, 1, 0}},
		{"task has no wildcards", broker.Query{Task: "t%"}, everything, []int64{4}},
		{"task with a NUL", broker.Query{Task: "t1\x00"}, everything, nil},
		{"allow", broker.Query{Decision: "allow"}, everything, []int64{8, 7, 6, 5, 2, 1, 0}},
		{"deny", broker.Query{Decision: "deny"}, everything, []int64{3}},
		{"pending", broker.Query{Decision: "pending"}, everything, []int64{4}},
		{"issued", broker.Query{Status: broker.StatusIssued}, everything, []int64{7, 6, 5, 2, 1, 0}},
		{"failed", broker.Query{Status: broker.StatusFailed}, everything, []int64{8}},
		{"since is inclusive", broker.Query{Since: at(6)}, everything, []int64{8, 7, 6}},
		{"until is exclusive", broker.Query{Until: at(2)}, everything, []int64{1, 0}},
		{"all together", broker.Query{
			TrustDomain: "acme.test", SPIFFEIDPrefix: "spiffe://acme.test/agents", Scope: "git.read", Task: "t1",
			Decision: "allow", Status: broker.StatusIssued, Since: at(1), Until: at(5),
		}, acme, []int64{1}},
		{"before", broker.Query{Before: 2}, everything, []int64{1, 0}},
		{"before the first", broker.Query{Before: 1}, everything, []int64{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.query.Limit = 100
			if got := indexes(t, l, tc.query, tc.reach); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			tc.query.Limit = 1 // the result is the same page by page
			if got := indexes(t, l, tc.query, tc.reach); !slices.Equal(got, tc.want) {
				t.Errorf("in pages of one: got %v, want %v", got, tc.want)
			}
		})
	}
}

// indexes returns the indexes on all pages.
func indexes(t *testing.T, l *ledger.Ledger, q broker.Query, reach broker.Reach) []int64 {
	t.Helper()
	var all []int64
	for {
		page, err := l.List(t.Context(), q, reach)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		if len(page.Records) > q.Limit {
			t.Fatalf("got %d records on a page of %d", len(page.Records), q.Limit)
		}
		for _, v := range page.Records {
			all = append(all, v.Index)
		}
		if page.Next == 0 {
			return all
		}
		q.Before = page.Next
	}
}

// Any client that may send requests can make large records. A page of them ends early, and no record is left out.
func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	const records = 120
	for range records {
		begin(t, l, denied(func(rec *broker.Record) {
			rec.Request.Params = map[string]any{"p": strings.Repeat("x", 20<<10)}
			rec.Decision.Params, rec.Decision.Scope = nil, nil
		}))
	}
	page, err := l.List(t.Context(), broker.Query{Limit: 500}, everything)
	if err != nil || len(page.Records) > 60 || page.Next == 0 {
		t.Errorf("got %d records of 20 KiB and next %d, %v; want about a MiB of them and a next page", len(page.Records), page.Next, err)
	}
	if got := len(indexes(t, l, broker.Query{Limit: 500}, everything)); got != records {
		t.Errorf("got %d records over all pages, want %d", got, records)
	}
}

func TestListRefusesPageSizes(t *testing.T) {
	t.Parallel()
	l := testkit.NewDB(t).Ledger(t)
	for _, limit := range []int{-1, 0, 501} {
		if _, err := l.List(t.Context(), broker.Query{Limit: limit}, everything); !errors.Is(err, record.ErrPageSize) {
			t.Errorf("limit %d: got %v, want ErrPageSize", limit, err)
		}
	}
}

func TestPagingWhileOthersWrite(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l, other := db.Ledger(t), db.Ledger(t)
	begin(t, l, slices.Collect(records(100))...)
	var writers sync.WaitGroup
	for n := range 8 {
		writers.Go(func() {
			for rec := range records(50) {
				if _, err := []*ledger.Ledger{l, other}[n%2].Begin(t.Context(), rec); err != nil {
					t.Errorf("Begin: %v", err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()
	for done := false; !done; {
		select {
		case <-written:
			done = true
		default:
		}
		all := indexes(t, l, broker.Query{Limit: 7}, everything)
		for i, index := range all {
			if want := int64(len(all) - 1 - i); index != want {
				t.Fatalf("got index %d at place %d of %d, want %d: a gap or a duplicate", index, i, len(all), want)
			}
		}
	}
	if got := len(indexes(t, l, broker.Query{Limit: 500}, everything)); got != 500 {
		t.Errorf("got %d records, want 500", got)
	}
	db.Check(t)
}
