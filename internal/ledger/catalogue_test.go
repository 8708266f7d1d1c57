package ledger_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// small returns a catalogue that differs from others only in its title.
func small(t *testing.T, title string) (files []scopes.File, digest string) {
	t.Helper()
	files = []scopes.File{
		{Name: "a.yaml", Data: fmt.Appendf(nil, "scopes:\n  - name: git.read\n    title: %s\n    authority: read\n    resource: git:all\n"+
			"    ttl: {default: 1m, max: 5m}\n    credential: {kind: jwt, audience: https://git.test}\n", title)},
		{Name: "b/c.cedar", Data: []byte(`@id("p") permit (principal, action, resource);`)},
	}
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return files, c.Digest()
}

// step returns the step with which a catalogue of that title becomes something, as the next version.
func step(t *testing.T, l *ledger.Ledger, becomes broker.CatalogueState, title, actor string) broker.CatalogueStep {
	t.Helper()
	head, err := l.InForce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files, digest := small(t, title)
	return broker.CatalogueStep{
		ID: uuid.Must(uuid.NewV7()).String(), Time: moment(), Becomes: becomes, Digest: digest, Base: head.Digest,
		Version: head.Version + 1, Actor: actor, Reason: "because", Files: files,
	}
}

func take(t *testing.T, l *ledger.Ledger, s broker.CatalogueStep) broker.CatalogueStep {
	t.Helper()
	if err := l.ChangeCatalogue(t.Context(), s); err != nil {
		t.Fatalf("ChangeCatalogue: %v", err)
	}
	return s
}

func decidedBy(digest string) func(*broker.Record) {
	return func(rec *broker.Record) { rec.Decision.Catalogue = digest }
}

func TestCatalogueIsStoredUnchanged(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	if head, err := l.InForce(t.Context()); err != nil || head != (broker.CatalogueVersion{}) {
		t.Errorf("got %+v, %v, want none in force", head, err)
	}
	first := take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	head, err := l.InForce(t.Context())
	want := broker.CatalogueVersion{Version: 1, Digest: first.Digest, Since: first.Time.Truncate(time.Microsecond), Reason: "because"}
	if diff := cmp.Diff(want, head); err != nil || diff != "" {
		t.Errorf("got %v and (-want +got):\n%s", err, diff)
	}
	files, err := l.CatalogueFiles(t.Context(), first.Digest)
	if diff := cmp.Diff(first.Files, files); err != nil || diff != "" {
		t.Errorf("got %v and (-want +got):\n%s", err, diff)
	}
	for _, digest := range []string{"", "sha256:", "\x00", "sha256:\xff", first.Digest + " "} {
		if _, err := l.CatalogueFiles(t.Context(), digest); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("files of %q: got %v, want ErrNotFound", digest, err)
		}
		if _, err := l.Proposal(t.Context(), digest); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("proposal of %q: got %v, want ErrNotFound", digest, err)
		}
	}
	for _, limit := range []int{-1, 0, 501} {
		if _, err := l.CatalogueChanges(t.Context(), limit); !errors.Is(err, record.ErrPageSize) {
			t.Errorf("limit %d: got %v, want ErrPageSize", limit, err)
		}
	}
	db.Check(t)
}

// A step is refused unless it follows on what is in force. A digest stands for its own files only.
func TestOutOfOrderCatalogueStepsAreRefused(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	proposed := take(t, l, step(t, l, broker.CatalogueProposed, "Two", "a"))
	_, other := small(t, "Three")
	for name, tc := range map[string]struct {
		change func(*broker.CatalogueStep)
		want   error
	}{
		"another base":           {func(s *broker.CatalogueStep) { s.Base = other }, broker.ErrConcurrentChange},
		"no base":                {func(s *broker.CatalogueStep) { s.Base = "" }, broker.ErrConcurrentChange},
		"a version that is over": {func(s *broker.CatalogueStep) { s.Version = 1 }, broker.ErrConcurrentChange},
		"a version to come":      {func(s *broker.CatalogueStep) { s.Version = 3 }, broker.ErrConcurrentChange},
		"no such proposal":       {func(s *broker.CatalogueStep) { s.Proposal, s.Proposer = uuid.NewString(), "a" }, broker.ErrConcurrentChange},
		"a proposal of another":  {func(s *broker.CatalogueStep) { s.Proposal, s.Proposer = proposed.ID, "a" }, broker.ErrConcurrentChange},
		"no state":               {func(s *broker.CatalogueStep) { s.Becomes = "superseded" }, record.ErrUnrecordable},
		"no id":                  {func(s *broker.CatalogueStep) { s.ID = "x" }, record.ErrUnrecordable},
		"another's name":         {func(s *broker.CatalogueStep) { s.Digest = other[:len(other)-1] + "x" }, record.ErrUnrecordable},
		"files that nobody kept": {func(s *broker.CatalogueStep) { s.Digest, s.Files = other, nil }, record.ErrUnrecordable},
		"nobody":                 {func(s *broker.CatalogueStep) { s.Actor = "" }, record.ErrUnrecordable},
		"the same that is open": {func(s *broker.CatalogueStep) {
			s.Becomes, s.Digest, s.Files = broker.CatalogueProposed, proposed.Digest, nil
		}, broker.ErrConcurrentChange},
		"one's own proposal": {func(s *broker.CatalogueStep) {
			s.Digest, s.Files, s.Proposal, s.Proposer, s.Actor = proposed.Digest, nil, proposed.ID, "a", "a"
		}, record.ErrUnrecordable},
		"another's as proposer": {func(s *broker.CatalogueStep) {
			s.Digest, s.Files, s.Proposal, s.Proposer, s.Actor = proposed.Digest, nil, proposed.ID, "b", "a"
		}, record.ErrUnrecordable},
		"a rejection of nothing":  {func(s *broker.CatalogueStep) { s.Becomes = broker.CatalogueRejected }, record.ErrUnrecordable},
		"what is in force itself": {func(s *broker.CatalogueStep) { s.Digest, s.Files = s.Base, nil }, record.ErrUnrecordable},
	} {
		t.Run(name, func(t *testing.T) {
			s := step(t, l, broker.CatalogueApplied, "Unheard of", "b")
			tc.change(&s)
			if err := l.ChangeCatalogue(t.Context(), s); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if head, err := l.InForce(t.Context()); err != nil || head.Version != 1 {
		t.Errorf("got %+v, %v, want the first still in force", head, err)
	}
	db.Check(t)
}

// I11: a record that was decided by another catalogue than the one in force is not begun, and counts against no limit.
func TestRecordUnderAnotherCatalogueIsRefused(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	begin(t, l, allowed(decidedBy("sha256:c0ffee")), denied(nil)) // while no catalogue is in force, any will do
	old := take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	begin(t, l, allowed(decidedBy(old.Digest)))
	keyed := func(digest string) broker.Record {
		return allowed(func(rec *broker.Record) {
			rec.Decision.Catalogue, rec.Request.IdempotencyKey = digest, "k"
			rec.Limits = []broker.Limit{limit("once", 1, time.Hour)}
		})
	}
	now := take(t, l, step(t, l, broker.CatalogueApplied, "Two", "a"))
	for name, rec := range map[string]broker.Record{
		"allowed": allowed(decidedBy(old.Digest)), "denied": denied(decidedBy(old.Digest)), "pending": pending(decidedBy(old.Digest)),
		"dynamic": dynamic("database", decidedBy(old.Digest)), "with a key": keyed(old.Digest),
	} {
		if earlier, err := l.Begin(t.Context(), rec); earlier != nil || !errors.Is(err, broker.ErrSuperseded) {
			t.Errorf("%s: got %v, %v, want ErrSuperseded", name, earlier, err)
		}
	}
	answered := keyed(now.Digest)
	begin(t, l, answered)
	// A key that was used gets the same answer again.
	if earlier, err := l.Begin(t.Context(), keyed(old.Digest)); err != nil || earlier == nil || earlier.ID != answered.ID {
		t.Errorf("got %v, %v, want the earlier record", earlier, err)
	}
	db.Check(t)
}

// H105 at its core: while two replicas begin records and catalogues change, no record comes after a change that it does not
// know of.
func TestNoRecordFollowsACatalogueChangeItMissed(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	replicas := []*ledger.Ledger{db.Ledger(t), db.Ledger(t)}
	var inForce atomic.Pointer[string]
	first := take(t, replicas[0], step(t, replicas[0], broker.CatalogueApplied, "Round 0", ""))
	inForce.Store(&first.Digest)
	var wg sync.WaitGroup
	var begun, superseded atomic.Int64
	for n := range 32 {
		wg.Go(func() {
			for range 40 {
				_, err := replicas[n%2].Begin(t.Context(), allowed(decidedBy(*inForce.Load())))
				switch {
				case err == nil:
					begun.Add(1)
				case errors.Is(err, broker.ErrSuperseded):
					superseded.Add(1)
				default:
					t.Errorf("Begin: %v", err)
				}
			}
		})
	}
	for n := range 10 {
		s := take(t, replicas[n%2], step(t, replicas[n%2], broker.CatalogueApplied, fmt.Sprintf("Round %d", n+1), "a"))
		inForce.Store(&s.Digest)
	}
	wg.Wait()
	if begun.Load() == 0 {
		t.Error("nothing was begun")
	}
	t.Logf("%d begun, %d superseded", begun.Load(), superseded.Load())
	db.Check(t)
}

// The broker's own login cannot put a catalogue in force that no one has applied.
func TestForgedCatalogues(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	take(t, l, step(t, l, broker.CatalogueApplied, "One", ""))
	proposed := take(t, l, step(t, l, broker.CatalogueProposed, "Two", "a"))
	if err := l.Refuse(t.Context(), broker.Refusal{Time: start, Code: "invalid"}); err != nil {
		t.Fatal(err)
	}
	refusal := db.Entries(t)[2]
	conn := testkit.Connect(t, db.BrokerURL)
	const insert = `INSERT INTO catalogue_changes (id, kind, digest, base, version, proposal, proposer, actor, reason, time, entry_index)
		SELECT $1::uuid, %s, now(), $2 FROM catalogue_changes AS p WHERE p.kind = 'proposed'`
	for name, tc := range map[string]struct{ change, want string }{
		"applied, and not in force":    {`'applied', p.digest, p.base, 2, p.id, p.actor, 'b', ''`, violation},
		"applied by the proposer":      {`'applied', p.digest, p.base, 2, p.id, p.actor, p.actor, ''`, violation},
		"another proposer":             {`'applied', p.digest, p.base, 2, p.id, 'c', 'a', ''`, noParent},
		"applied by nobody":            {`'applied', p.digest, p.base, 2, NULL, NULL, NULL, ''`, violation},
		"proposed for later":           {`'proposed', p.digest, p.base, 7, NULL, NULL, 'b', ''`, violation},
		"proposed on another":          {`'proposed', p.base, p.digest, 2, NULL, NULL, 'b', ''`, violation},
		"rejected, and no proposal":    {`'rejected', p.digest, p.base, 2, NULL, NULL, 'b', ''`, violation},
		"rejected, another catalogue":  {`'rejected', p.base, p.digest, 2, p.id, 'a', 'b', ''`, noParent},
		"rejected, another's proposal": {`'rejected', p.digest, p.base, 2, p.id, 'c', 'b', ''`, noParent},
		"a proposal that proposes":     {`'proposed', p.digest, p.base, 2, p.id, 'a', 'b', ''`, violation},
		"no such kind":                 {`'superseded', p.digest, p.base, 2, p.id, 'a', 'b', ''`, violation},
	} {
		if got := refusedBy(t, conn, fmt.Sprintf(insert, tc.change), refusal.ID, refusal.Index); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	if got := refusedBy(t, conn, `UPDATE catalogue_head SET version = 2, digest = $1, change = $2`, proposed.Digest, proposed.ID); got != violation {
		t.Errorf("what was only proposed, in force: got %q, want %q", got, violation)
	}
	db.Check(t)
}
