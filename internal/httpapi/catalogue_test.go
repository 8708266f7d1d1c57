package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/sync/errgroup"
)

const (
	chief    = "spiffe://acme.test/chief"
	deputy   = "spiffe://other.test/deputy"
	inspect  = "spiffe://acme.test/inspect"
	noDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

// kept has its catalogue in the ledger, and admins and auditors for it.
var kept = testkit.Options{
	Catalogue: catalogue, Applied: true, Auditors: []string{auditor}, Admins: []string{admin},
	CatalogueAdmins: []string{chief, deputy}, CatalogueAuditors: []string{inspect},
	People: []devstack.DevPerson{
		{Username: "alice", Name: "Alice", Groups: []string{"platform"}}, {Username: "bob", Name: "Bob", Groups: []string{"acme"}},
	},
	Rules: []people.Rule{
		{Role: people.RoleAdmin, Group: "platform"},
		{Role: people.RoleAdmin, Group: "acme", Within: []string{"spiffe://acme.test"}},
	},
}

// changed returns a catalogue with one text replaced by another.
func changed(t *testing.T, files []scopes.File, from, to string) []scopes.File {
	t.Helper()
	out, found := slices.Clone(files), false
	for i, f := range out {
		text := strings.ReplaceAll(string(f.Data), from, to)
		found = found || text != string(f.Data)
		out[i].Data = []byte(text)
	}
	if !found {
		t.Fatalf("%q is not in the catalogue", from)
	}
	return out
}

// withoutReading returns a catalogue that permits the agent nothing.
func withoutReading(t *testing.T) []scopes.File {
	return changed(t, catalogue, `Path::"spiffe://acme.test/agents/a"`, `Path::"spiffe://acme.test/agents/nobody"`)
}

func digestOf(t *testing.T, files []scopes.File) string {
	t.Helper()
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return c.Digest()
}

func order(files []scopes.File, reason string) openapi.CatalogueOrder {
	o := openapi.CatalogueOrder{Reason: reason}
	for _, f := range files {
		o.Files = append(o.Files, openapi.CatalogueFile{Name: f.Name, Text: string(f.Data)})
	}
	return o
}

// apply replaces the catalogue in force.
func apply(t *testing.T, c *client.Client, files []scopes.File) openapi.CatalogueChange {
	t.Helper()
	now, err := c.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.ApplyCatalogue(t.Context(), now.Digest, order(files, "a test"))
	if err != nil {
		t.Fatalf("applying: %v", err)
	}
	return got
}

// appliedAt returns for each digest the index of the last entry that applied it.
func appliedAt(t *testing.T, s *testkit.Stack) map[string]int64 {
	t.Helper()
	at := map[string]int64{}
	for _, e := range s.DB.Entries(t) {
		if e.Kind == "catalogue.applied" {
			at[e.Body["digest"].(string)] = e.Index
		}
	}
	return at
}

// H105: after an apply was answered, requests that begin later are decided by the new catalogue only, and so are later ledger
// entries, however busy two replicas are. No request fails because of the change.
func TestReplacedCatalogueIssuesNothing(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	replicas := []*testkit.Stack{s, s.Replica(t)}
	drafts := [][]scopes.File{changed(t, catalogue, "title: Read issues", "title: Read the issues"), withoutReading(t)}
	var inForce atomic.Pointer[string] // the last applied digest, nil during a change
	ctx, stop := context.WithCancel(t.Context())
	callers, callCtx := errgroup.WithContext(ctx)
	var issued, denied atomic.Int64
	for n := range 32 {
		c := replicas[n%2].Client(t, agent)
		callers.Go(func() error {
			for callCtx.Err() == nil {
				before := inForce.Load()
				got, err := c.Request(callCtx, read)
				after := inForce.Load()
				var p *client.Problem
				var by string
				switch {
				case callCtx.Err() != nil:
					return nil //nolint:nilerr // it was told to stop
				case err == nil:
					by = got.Token.Catalogue
					issued.Add(1)
				case errors.As(err, &p) && p.Code == openapi.CodeDenied:
					by = p.Catalogue
					denied.Add(1)
				default:
					return fmt.Errorf("got %w, want a token or a denial", err)
				}
				if before != nil && before == after && by != *before {
					return fmt.Errorf("decided by %s after %s was applied", by, *before)
				}
			}
			return nil
		})
	}
	operator := replicas[0].Client(t, chief)
	for round := range 8 {
		inForce.Store(nil)
		change := apply(t, operator, drafts[round%2])
		if change.State != openapi.CatalogueApplied || change.Version != int64(round)+2 {
			t.Errorf("got %+v, want version %d applied", change, round+2)
		}
		inForce.Store(&change.Digest)
		was := issued.Load() + denied.Load()
		for issued.Load()+denied.Load() < was+64 && callCtx.Err() == nil {
			<-time.After(time.Millisecond)
		}
	}
	stop()
	if err := callers.Wait(); err != nil {
		t.Error(err)
	}
	if issued.Load() == 0 || denied.Load() == 0 {
		t.Errorf("got %d issued and %d denied, want both", issued.Load(), denied.Load())
	}
	// The replay checks each decision against the catalogue in force at that entry.
	s.DB.Check(t)
	last, at := digestOf(t, drafts[1]), appliedAt(t, s)
	for _, e := range s.DB.Entries(t) {
		decision, _ := e.Body["decision"].(map[string]any)
		if decision != nil && e.Index > at[last] && decision["catalogue"] != last {
			t.Errorf("entry %d, behind %d, was decided by %v", e.Index, at[last], decision["catalogue"])
		}
	}
}

// The ledger makes a replica that has missed a change use the catalogue in force.
func TestLaggingReplicaUsesTheCatalogueInForce(t *testing.T) {
	t.Parallel()
	o := kept
	o.Applied = false
	s := testkit.NewStack(t, o)
	if _, err := broker.OpenCatalogue(t.Context(), s.DB.Ledger(t), catalogue, time.Now(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	lagging := s.Replica(t)
	token(t, lagging.Client(t, agent), read)
	next := withoutReading(t)
	apply(t, s.Client(t, chief), next)
	_, err := lagging.Client(t, agent).Request(t.Context(), read)
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != openapi.CodeDenied || p.Catalogue != digestOf(t, next) {
		t.Errorf("got %v, want it denied by the catalogue in force", err)
	}
	s.DB.Check(t)
}

// Replicas notice a change without a request.
func TestReplicasPickUpCatalogueChanges(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	other := s.Replica(t)
	next := changed(t, catalogue, "title: Read issues", "title: Read the issues")
	began := time.Now()
	apply(t, s.Client(t, chief), next)
	for other.Broker.Title("git.issues.read", digestOf(t, next)) != "Read the issues" {
		if time.Since(began) > patience {
			t.Fatalf("waited %s for another replica to follow", patience)
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Logf("another replica noticed after %s", time.Since(began))
}

func TestCatalogueIsComparedAndSwapped(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	c := s.Client(t, chief)
	first, err := c.Catalogue(t.Context())
	if err != nil || first.Version != 1 || first.Actor != "" || first.Digest != digestOf(t, catalogue) || len(first.Files) != 2 {
		t.Fatalf("got %+v, %v, want the first catalogue", first, err)
	}
	got := wire{method: "GET", target: "/v1/catalogue", auth: "Bearer " + s.JWT(t, chief)}.send(t, s)
	if tag := got.header.Get("ETag"); tag != `"`+first.Digest+`"` || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got the tag %s and %v, want the digest in quotes", tag, got.header)
	}
	next := withoutReading(t)
	if _, err := c.ApplyCatalogue(t.Context(), digestOf(t, next), order(next, "x")); !errors.Is(err, client.ErrOtherCatalogue) {
		t.Errorf("applying to what is not in force: got %v, want ErrOtherCatalogue", err)
	}
	// Of many concurrent changes over two replicas, one is applied.
	other := s.Replica(t).Client(t, deputy)
	var wg sync.WaitGroup
	var won atomic.Int64
	for n := range 16 {
		draft := changed(t, catalogue, "title: Read issues", fmt.Sprintf("title: Read issues %d", n))
		wg.Go(func() {
			_, err := []*client.Client{c, other}[n%2].ApplyCatalogue(t.Context(), first.Digest, order(draft, "x"))
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, client.ErrOtherCatalogue):
				t.Errorf("got %v, want ErrOtherCatalogue", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 were applied, want 1", won.Load())
	}
	// This applies the first catalogue again, which is still stored. Applying the catalogue in force changes nothing.
	files, err := c.CatalogueFiles(t.Context(), first.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now, err := c.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		back, err := c.ApplyCatalogue(t.Context(), now.Digest, openapi.CatalogueOrder{Files: files, Reason: "back"})
		if err != nil || back.Version != 3 || back.Digest != first.Digest || back.State != openapi.CatalogueApplied {
			t.Errorf("got %+v, %v, want the first catalogue as version 3", back, err)
		}
	}
	changes, err := c.CatalogueChanges(t.Context(), 10)
	if err != nil || len(changes) != 3 || changes[0].Version != 3 || changes[0].Actor != chief || changes[0].Reason != "back" || changes[2].Base != "" {
		t.Errorf("got %+v, %v, want three changes, newest first", changes, err)
	}
	if one, err := c.CatalogueChanges(t.Context(), 1); err != nil || len(one) != 1 || one[0].Version != 3 {
		t.Errorf("got %+v, %v, want the newest", one, err)
	}
	s.DB.Check(t)
}

// A catalogue concerns every trust domain, so only admins of all of them may change it, people and workloads alike.
func TestOnlyGlobalAdminsChangeTheCatalogue(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	for name, c := range map[string]*client.Client{
		"a sandbox": s.Client(t, agent), "an admin of one domain": s.Client(t, admin), "an auditor of one domain": s.Client(t, auditor),
		"a person of one domain": s.Person(t, "bob"),
	} {
		if _, err := c.Catalogue(t.Context()); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s reads: got %v, want ErrNotAllowed", name, err)
		}
		if _, err := c.CatalogueChanges(t.Context(), 1); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s reads the history: got %v, want ErrNotAllowed", name, err)
		}
		if _, err := c.ApplyCatalogue(t.Context(), noDigest, order(catalogue, "x")); !errors.Is(err, client.ErrNotAllowed) {
			t.Errorf("%s applies: got %v, want ErrNotAllowed", name, err)
		}
	}
	reader := s.Client(t, inspect)
	if _, err := reader.Catalogue(t.Context()); err != nil {
		t.Errorf("an auditor reads: %v", err)
	}
	if _, err := reader.ApplyCatalogue(t.Context(), noDigest, order(catalogue, "x")); !errors.Is(err, client.ErrNotAllowed) {
		t.Errorf("H101 an auditor applies: got %v, want ErrNotAllowed", err)
	}
	got := apply(t, s.Person(t, "alice"), withoutReading(t))
	if got.State != openapi.CatalogueApplied || !strings.Contains(got.Actor, "#") {
		t.Errorf("got %+v, want it applied by a person", got)
	}
	s.DB.Check(t)
}

// The catalogue in force survives replicas, whatever files their folders contain.
func TestCatalogueOutlivesReplicas(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, kept)
	next := changed(t, catalogue, "title: Read issues", "title: Read the issues")
	apply(t, s.Client(t, chief), next)
	fresh := s.Replica(t)
	if title := fresh.Broker.Title("git.issues.read", digestOf(t, next)); title == "" {
		t.Error("a new replica does not begin with what is in force")
	}
	if !strings.Contains(s.Log.String(), "configured catalogue is not the one in force") {
		t.Error("nothing in the log says that the folder differs")
	}
	if opened, err := broker.OpenCatalogue(t.Context(), s.DB.Ledger(t), nil, time.Now(), slog.New(slog.DiscardHandler)); err != nil || opened.Digest() != digestOf(t, next) {
		t.Errorf("got %v with a folder that is broken by now, want what is in force", err)
	}
	s.DB.Check(t)
}

// Replicas that start at the same time agree on one catalogue, whatever files their folders contain.
func TestReplicasAgreeOnTheFirstCatalogue(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	var wg sync.WaitGroup
	digests := make([]string, 8)
	for n := range digests {
		book, files := db.Ledger(t), changed(t, catalogue, "title: Read issues", fmt.Sprintf("title: Read issues %d", n%2))
		wg.Go(func() {
			opened, err := broker.OpenCatalogue(t.Context(), book, files, time.Now(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Errorf("opening: %v", err)
				return
			}
			digests[n] = opened.Digest()
		})
	}
	wg.Wait()
	if slices.Sort(digests); digests[0] != digests[len(digests)-1] || len(db.Entries(t)) != 1 {
		t.Errorf("got %v and %d entries, want one catalogue", digests, len(db.Entries(t)))
	}
	db.Check(t)
	for name, files := range map[string][]scopes.File{"nothing": nil, "broken": {{Name: "a.yaml", Data: []byte("{")}}} {
		if _, err := broker.OpenCatalogue(t.Context(), testkit.NewDB(t).Ledger(t), files, time.Now(), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("the first catalogue of %s was accepted", name)
		}
	}
}

// H66: another catalogue makes requests void that people approved or had to, because people saw something else. Nobody is asked in vain:
// whoever waits learns at once, and each refusal says what happened and what to do.
func TestApprovalUnderAnotherCatalogueIsVoid(t *testing.T) {
	t.Parallel()
	o := withPeople
	o.Applied, o.CatalogueAdmins = true, []string{chief}
	s := testkit.NewStack(t, o)
	lagging := s.Replica(t)
	sandbox, carol := lagging.Client(t, agent), s.Person(t, "carol")
	approved, undecided := waiting(t, sandbox, askFor("git.issues.write")), waiting(t, sandbox, askFor("git.comments.write"))
	if _, err := vote(t, carol, approved, openapi.VerdictApprove); err != nil {
		t.Fatal(err)
	}
	before, err := s.Client(t, chief).Catalogue(t.Context())
	if err != nil || before.OpenRequests != 2 {
		t.Errorf("got %d open requests, %v, want 2", before.OpenRequests, err)
	}
	decisions := make(chan string, 1)
	following, stop := context.WithCancel(t.Context())
	defer stop()
	known := make(chan struct{})
	go func() {
		_ = carol.WatchApprovals().Follow(following, func(e client.ApprovalEvent) error {
			switch {
			case e.Waiting != nil && e.Waiting.ID == undecided:
				close(known)
			case e.Decided != nil && e.Decided.ID == undecided:
				decisions <- string(e.Decided.Status)
			}
			return nil
		})
	}()
	<-known
	states := make(chan openapi.RequestState, 1)
	go func() {
		state, err := sandbox.Wait(t.Context(), undecided)
		if err != nil {
			t.Errorf("waiting: %v", err)
		}
		states <- state
	}()
	began := time.Now()
	change := apply(t, s.Client(t, chief), changed(t, o.Catalogue, "title: Write issues", "title: Write the issues"))
	state := <-states
	if state.Status != openapi.StatusVoid || !state.StatusAt.Equal(change.Time) || time.Since(began) > 10*time.Second {
		t.Errorf("got %+v after %v, want it void", state, time.Since(began))
	}
	if status := <-decisions; status != "void" {
		t.Errorf("an approver is told %q, want void", status)
	}
	stale := func(what string, err error) {
		t.Helper()
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != openapi.CodeStale || p.Title != "Request is void" || !strings.Contains(p.Detail, "send the same request again") ||
			!strings.Contains(p.Explanation, "catalogue version 2 was applied at "+change.Time.UTC().Format(time.RFC3339)) {
			t.Errorf("%s: got %v, want that the request is void, since when, and what to do", what, err)
		}
	}
	for _, id := range []string{approved, undecided} {
		for _, verdict := range []openapi.Verdict{openapi.VerdictApprove, openapi.VerdictDeny} {
			after, err := vote(t, carol, id, verdict)
			stale("voting", err)
			if after.Status == openapi.StatusApproved {
				t.Errorf("%s counts", verdict)
			}
		}
		_, err = sandbox.Redeem(t.Context(), id, askFor("git.issues.write"))
		stale("redeeming", err)
		stale("withdrawing", sandbox.Withdraw(t.Context(), id))
	}
	if list, err := carol.Approvals(t.Context(), 10); err != nil || len(list.Approvals) > 0 {
		t.Errorf("got %+v, %v, want nothing to decide", list, err)
	}
	if now, err := s.Client(t, chief).Catalogue(t.Context()); err != nil || now.OpenRequests != 0 {
		t.Errorf("got %d open requests, %v, want 0", now.OpenRequests, err)
	}
	again := waiting(t, sandbox, askFor("git.issues.write"))
	if again == approved {
		t.Fatal("the same request is still void")
	}
	if _, err := vote(t, carol, again, openapi.VerdictApprove); err != nil {
		t.Error(err)
	}
	if got, err := sandbox.Redeem(t.Context(), again, askFor("git.issues.write")); err != nil || got.Token == nil {
		t.Errorf("got %+v, %v, want a credential", got, err)
	}
	s.DB.Check(t)
}

// restless is a ledger whose catalogue changes during every decision.
type restless struct {
	broker.Ledger
	begun *atomic.Int64
}

func (l restless) Begin(context.Context, broker.Record) (*broker.View, error) {
	l.begun.Add(1)
	return nil, broker.ErrSuperseded
}

// I11: a request that cannot be decided by the catalogue in force is not decided.
func TestCatalogueThatNeverRests(t *testing.T) {
	t.Parallel()
	var begun atomic.Int64
	o := kept
	o.Ledger = func(l broker.Ledger) broker.Ledger { return restless{l, &begun} }
	s := testkit.NewStack(t, o)
	_, err := s.Client(t, agent).Request(t.Context(), read)
	if code(err) != openapi.CodeSuperseded || !errors.Is(err, client.ErrUnavailable) || begun.Load() != 3 {
		t.Errorf("got %v after %d decisions, want superseded after 3", err, begun.Load())
	}
	s.DB.Check(t)
}
