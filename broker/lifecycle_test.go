package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// lifecycle is the part of tape that holds live credentials.
type lifecycle struct {
	outcomeErr map[broker.Status]error
	renewErr   []error // of the first calls, in order
	revokeErr  error
	hangs      string // the lease whose revocation gets no answer
	onOutcome  func()

	quarantines []broker.Quarantine
	alive       bool
	live        []broker.LiveCredential
	page        broker.LivePage // of the last call
	due         []broker.LiveCredential
	leads       time.Duration
	read        []time.Time // the Orders of each query for overdue records
	deadlines   []broker.Task
	commands    []broker.Command
}

func (p *tape) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, fmt.Sprintf(format, args...))
}

func (p *tape) Announce(_ context.Context, cmd broker.Command) error {
	if cmd.Kind == broker.CommandQuarantineAdd {
		q := broker.Quarantine{SPIFFEID: cmd.Target.SPIFFEID, Actor: cmd.Actor.ID(), Reason: cmd.Reason, Index: 7}
		if slices.ContainsFunc(p.quarantines, func(stands broker.Quarantine) bool { stands.Command = ""; return stands == q }) {
			return broker.ErrNotFound
		}
		q.Command = cmd.ID
		p.quarantines = append(p.quarantines, q)
	}
	p.say("announce %s", cmd.Kind)
	p.commands = append(p.commands, cmd)
	return nil
}

func (p *tape) Live(_ context.Context, _ broker.Selector, _ broker.Reach, page broker.LivePage) ([]broker.LiveCredential, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.page = page // the sweeper reads two pages concurrently
	if page.After != "" && !page.Leased {
		return nil, nil
	}
	return p.live, nil
}

func (p *tape) Overdue(_ context.Context, q broker.Overdue) ([]broker.LiveCredential, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = append(p.read, q.Orders)
	return p.due, nil
}

func (p *tape) Deadlines(context.Context, int) ([]broker.Task, error) {
	tasks := p.deadlines
	p.deadlines = nil
	return tasks, nil
}

func (p *tape) TaskEnded(context.Context, broker.Task, time.Time) (string, error) {
	return "", broker.ErrNotFound
}

func (p *tape) RequestsOfEndedTasks(context.Context, broker.Task, int) ([]broker.EndedTaskRequest, error) {
	return nil, nil
}

func (p *tape) Quarantines(context.Context, broker.Reach) ([]broker.Quarantine, error) {
	return p.quarantines, nil
}

func (p *tape) Renew(_ context.Context, minted broker.Minted) error {
	p.say("renew %s", minted.Accessor)
	if len(p.renewErr) == 0 {
		return nil
	}
	err := p.renewErr[0]
	p.renewErr = p.renewErr[1:]
	return err
}

func (p *tape) Revoke(ctx context.Context, h broker.VaultLease) error {
	p.say("revoke %s", h.Accessor)
	if p.hangs != "" && h.Lease == p.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return p.revokeErr
}

func (p *tape) MissingPolicies(context.Context, []string) ([]string, error) { return nil, nil }

func (p *tape) Alive(context.Context, broker.VaultLease) (bool, error) { return p.alive, nil }

// AcquireLeadership leads for one sweep, or for as long as leads says.
func (p *tape) AcquireLeadership(ctx context.Context, do func(context.Context, int64) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(p.leads, 50*time.Millisecond))
	defer cancel()
	return do(ctx, 7)
}

func (p *tape) Prune(context.Context) error { return nil }
func (p *tape) Tidy(context.Context) error  { return nil }

func report() broker.Request {
	return broker.Request{Scope: "reports.read", RequestContext: scopes.RequestContext{Task: "t-1"}, Reason: "numbers"}
}

// A dynamic credential is recorded, minted and recorded again. It is delivered only after that (I1), and renewed only after it was written.
func TestDynamicCredentialOrdersEvents(t *testing.T) {
	lost := &broker.LostMintError{VaultLease: broker.VaultLease{Accessor: "accessor"}, Err: broker.ErrVaultUnavailable}
	for _, tc := range []struct {
		name    string
		prepare func(*tape)
		write   error
		want    []string
		wantErr error
	}{
		{"written", nil, nil, []string{"begin intent", "mint", "settle issued ", "renew accessor"}, nil},
		{
			"not written (C7)", nil, errors.New("broken pipe"),
			[]string{"begin intent", "mint", "settle issued ", "settle revoking undelivered", "revoke accessor", "settle revoked undelivered"},
			nil,
		},
		{
			"vault refused", func(p *tape) { p.mintErr = broker.ErrVaultRefused }, nil,
			[]string{"begin intent", "mint", "settle failed vault_refused"},
			broker.ErrVaultRefused,
		},
		{
			"answer lost (C4)", func(p *tape) { p.mintErr = lost }, nil,
			[]string{"begin intent", "mint", "settle unknown vault_unavailable"},
			broker.ErrVaultUnavailable,
		},
		{
			"not recorded (C5)", func(p *tape) {
				p.outcomeErr = map[broker.Status]error{broker.StatusIssued: broker.ErrLedgerUnavailable}
			}, nil,
			[]string{"begin intent", "mint", "settle issued ", "revoke accessor"},
			broker.ErrLedgerUnavailable,
		},
		{
			"revoked meanwhile", func(p *tape) {
				p.outcomeErr = map[broker.Status]error{broker.StatusIssued: broker.ErrInvalidTransition}
				p.live = []broker.LiveCredential{{ID: "x", Status: broker.StatusRevoking, Detail: broker.CauseTaskEnded}}
			}, nil,
			[]string{"begin intent", "mint", "settle issued ", "revoke accessor", "settle revoked task_ended"},
			broker.ErrRevoked,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			if tc.prepare != nil {
				tc.prepare(f.tape)
			}
			var result broker.Result
			err := f.Broker.Issue(t.Context(), f.who, report(), func(delivered broker.Result) error {
				result = delivered
				return tc.write
			})
			want := tc.wantErr
			if want == nil {
				want = tc.write
			}
			if !errors.Is(err, want) || (tc.wantErr == nil) != (result.Credential != nil) {
				t.Fatalf("got %v and credential %v, want %v", err, result.Credential, want)
			}
			if diff := cmp.Diff(tc.want, f.tape.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// A request that took too long to record is not minted: the sweeper may take it for abandoned.
func TestLateRequestIsNotMinted(t *testing.T) {
	f := newFixture(t)
	f.tape.onBegin = func() { f.clock = f.clock.Add(broker.UnrenewedLife) }
	if _, err := f.Issue(t.Context(), f.who, report()); !errors.Is(err, broker.ErrVaultUnavailable) {
		t.Errorf("got %v, want ErrVaultUnavailable", err)
	}
	if diff := cmp.Diff([]string{"begin intent", "settle failed vault_unavailable"}, f.tape.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// A quarantine and the end of a task look like any other denial, and are recorded first.
func TestStoppedRequestsAreRecordedAsDenied(t *testing.T) {
	for cause, reason := range map[error]string{broker.ErrQuarantined: "quarantined", broker.ErrTaskEnded: "task_ended"} {
		f := newFixture(t)
		f.tape.stopped = cause
		result, err := f.Issue(t.Context(), f.who, report())
		if err != nil || result.Credential != nil || result.Record.Decision.Reason != reason {
			t.Errorf("%v: got %+v, %v", cause, result.Record.Decision, err)
		}
		if diff := cmp.Diff([]string{"begin intent", "begin denied"}, f.tape.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}
}

func id(t *testing.T, age time.Duration, now time.Time) string {
	t.Helper()
	made, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	ms := now.Add(-age).UnixMilli()
	for i := range 6 {
		made[i] = byte(ms >> (40 - 8*i))
	}
	return made.String()
}

// Each kind of credential ends in its own way. The receipt lists what cannot be ended.
func TestEndTaskByKind(t *testing.T) {
	f := newFixture(t)
	expires := f.clock.Add(time.Minute)
	handle := broker.VaultLease{Accessor: "a", Lease: "l"}
	fresh := func() string { return id(t, time.Second, f.clock) }
	f.tape.live = []broker.LiveCredential{
		{ID: fresh(), Kind: "jwt", Status: broker.StatusIssued, Expires: expires},
		{ID: fresh(), Kind: "database", Status: broker.StatusIssued, Expires: expires, VaultLease: handle},
		{ID: fresh(), Kind: "kv", Status: broker.StatusIssued, Expires: expires, Static: true},
		{ID: fresh(), Kind: "vault", Status: broker.StatusIssued, Expires: expires}, // neither leased nor static
		{ID: fresh(), Kind: "pki", Status: broker.StatusIntent, Expires: expires},
	}
	receipt, err := f.EndTask(t.Context(), broker.TaskEnd{
		Actor: broker.WorkloadActor(f.who), SPIFFEID: f.who.ID().String(), Task: "t-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.tape.events[0] != "announce task.end" || f.tape.commands[0].At != f.tape.commands[0].Time {
		t.Errorf("got %v, want the order recorded first", f.tape.events)
	}
	got := map[string]string{}
	for _, e := range receipt.Ended {
		got[e.Kind] = fmt.Sprintf("%s %s %t %s", e.Status, e.Cause, e.UsableUntil.Equal(expires), e.Why)
	}
	want := map[string]string{
		"jwt":      "revoked task_ended true ",
		"database": "revoked task_ended false ",
		"kv":       "issued  true static",
		"vault":    "revoked task_ended true ",
		"pki":      "revoking task_ended false unfinished",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("receipt (-want +got):\n%s", diff)
	}
}

// If Vault is down, the credential is inactive in Brevet at once, but never reported as revoked.
func TestEndWithVaultDownReportsRevoking(t *testing.T) {
	f := newFixture(t)
	f.tape.revokeErr = broker.ErrVaultUnavailable
	f.tape.live = []broker.LiveCredential{{
		ID: id(t, time.Minute, f.clock), Kind: "database", Status: broker.StatusIssued, VaultLease: broker.VaultLease{Accessor: "a"},
	}}
	receipt, err := f.Revoke(t.Context(), broker.Revocation{Actor: broker.WorkloadActor(f.who), Target: broker.Selector{Scope: "reports.read"}})
	if err != nil || len(receipt.Ended) != 1 || receipt.Ended[0].Status != broker.StatusRevoking || receipt.Ended[0].Why != "vault_unavailable" {
		t.Errorf("got %+v, %v", receipt, err)
	}
	want := []string{"announce credentials.revoke", "settle revoking revoked", "revoke a"}
	if diff := cmp.Diff(want, f.tape.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestQuarantineNeedsReach(t *testing.T) {
	f := newFixture(t)
	acme := broker.Reach{TrustDomains: []string{"acme.example"}}
	for name, wantErr := range map[string]error{
		"spiffe://acme.example/research": nil, "spiffe://acme.example": nil,
		"spiffe://other.example/a": broker.ErrNotFound, "acme.example": broker.ErrNotFound, "spiffe://": broker.ErrNotFound,
	} {
		_, err := f.Quarantine(t.Context(), broker.QuarantineOrder{Actor: broker.WorkloadActor(f.who), SPIFFEID: name, Reach: acme})
		if !errors.Is(err, wantErr) {
			t.Errorf("%s: got %v, want %v", name, err, wantErr)
		}
	}
}

// The sweeper takes each unfinished record as far as it can, and says no more than Vault and GitHub have confirmed (I2, I6).
func TestSweepAdvances(t *testing.T) {
	handle := broker.VaultLease{Accessor: "a", Lease: "l"}
	later := newFixture(t).clock.Add(time.Hour)
	lost, stored := &broker.MayLiveError{Until: later}, broker.VaultLease{Lease: broker.GitHubLease("x")}
	for _, tc := range []struct {
		name   string
		held   broker.LiveCredential
		age    time.Duration
		revoke error
		alive  bool
		want   []string
	}{
		{"begun and never finished (C3)", broker.LiveCredential{Status: broker.StatusIntent}, time.Minute, nil, false, []string{"settle compensated unfinished"}},
		{"lost with a handle (C4)", broker.LiveCredential{Status: broker.StatusUnknown, VaultLease: handle}, time.Minute, nil, false, []string{"revoke a", "settle compensated lost"}},
		{"lost with a handle, its lease may live", broker.LiveCredential{Status: broker.StatusUnknown, VaultLease: handle}, time.Second, nil, false, []string{"revoke a"}},
		{"lost with a handle, Vault away", broker.LiveCredential{Status: broker.StatusUnknown, VaultLease: handle}, time.Second, broker.ErrVaultUnavailable, false, []string{"revoke a"}},
		{"lost without a handle", broker.LiveCredential{Status: broker.StatusUnknown}, time.Minute, nil, false, []string{"settle compensated lost"}},
		{"lost without a handle, may live", broker.LiveCredential{Status: broker.StatusUnknown}, 49 * time.Second, nil, false, nil},
		{"irrevocable and never finished (C3 to C5)", broker.LiveCredential{Kind: "vault", Status: broker.StatusIntent, Expires: later}, time.Minute, nil, false, []string{"settle unknown unfinished"}},
		{"irrevocable and lost, may live", broker.LiveCredential{Kind: "vault", Status: broker.StatusUnknown, Expires: later, VaultLease: broker.VaultLease{Accessor: "a"}}, time.Minute, nil, false, nil},
		{"irrevocable and never finished, may live", broker.LiveCredential{Kind: "vault", Status: broker.StatusUnknown, Detail: "unfinished", Expires: later}, time.Minute, nil, false, nil},
		{"irrevocable, and its wrapper was lost", broker.LiveCredential{Kind: "vault", Status: broker.StatusUnknown, Expires: later}, time.Minute, nil, false, []string{"settle compensated lost"}},
		{"irrevocable and lost, past its time", broker.LiveCredential{Kind: "vault", Status: broker.StatusUnknown}, time.Minute, nil, false, []string{"settle compensated lost"}},
		{"GitHub was never asked (C2, C3)", broker.LiveCredential{Kind: "github", Status: broker.StatusIntent}, time.Minute, nil, false, []string{"revoke ", "settle compensated unfinished"}},
		{"GitHub was asked, nobody has the token (C4)", broker.LiveCredential{Kind: "github", Status: broker.StatusIntent}, time.Minute, lost, false, []string{"revoke ", "settle unknown github_unavailable"}},
		{"GitHub was asked, Vault away", broker.LiveCredential{Kind: "github", Status: broker.StatusIntent}, time.Minute, broker.ErrVaultUnavailable, false, []string{"revoke "}},
		{"a token of GitHub is lost", broker.LiveCredential{Kind: "github", Status: broker.StatusUnknown}, 50 * time.Minute, lost, false, []string{"revoke "}},
		{"a token of GitHub is lost and dead", broker.LiveCredential{Kind: "github", Status: broker.StatusUnknown}, time.Hour, nil, false, []string{"revoke ", "settle compensated lost"}},
		{"a token of GitHub is past its time", broker.LiveCredential{Kind: "github", Status: broker.StatusIssued, VaultLease: stored}, time.Hour, nil, true, []string{"revoke ", "settle expired "}},
		{"a token of GitHub has just expired, GitHub away", broker.LiveCredential{Kind: "github", Status: broker.StatusIssued, Expires: later.Add(-time.Hour), VaultLease: stored}, time.Hour, broker.ErrGitHubUnavailable, true, []string{"revoke "}},
		{"a token of GitHub is past its time, GitHub away", broker.LiveCredential{Kind: "github", Status: broker.StatusIssued, VaultLease: stored}, time.Hour, broker.ErrGitHubUnavailable, true, []string{"revoke ", "settle revoking overdue", "revoke "}},
		{"revoking a token of GitHub that nobody has", broker.LiveCredential{Kind: "github", Status: broker.StatusRevoking, Detail: "task_ended"}, time.Minute, lost, false, []string{"revoke "}},
		{"revoking (C8)", broker.LiveCredential{Status: broker.StatusRevoking, Detail: "task_ended", VaultLease: handle}, time.Second, nil, false, []string{"revoke a", "settle revoked task_ended"}},
		{"released", broker.LiveCredential{Status: broker.StatusRevoking, Detail: "released", VaultLease: handle}, time.Second, nil, false, []string{"revoke a", "settle released released"}},
		{"revoking what may be minted yet", broker.LiveCredential{Status: broker.StatusRevoking, Detail: "task_ended"}, time.Second, nil, false, nil},
		{"revoking what never was", broker.LiveCredential{Status: broker.StatusRevoking, Detail: "task_ended"}, time.Minute, nil, false, []string{"settle revoked task_ended"}},
		{"past its time", broker.LiveCredential{Status: broker.StatusIssued, VaultLease: handle}, time.Hour, nil, false, []string{"settle expired "}},
		{"past its time, alive in Vault", broker.LiveCredential{Status: broker.StatusIssued, VaultLease: handle}, time.Hour, nil, true, []string{"settle revoking overdue", "revoke a", "settle revoked overdue"}},
		{"forgotten by a replica that died", broker.LiveCredential{Status: broker.StatusIssued, Detail: "task_ended", VaultLease: handle}, time.Second, nil, true, []string{"settle revoking task_ended", "revoke a", "settle revoked task_ended"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			tc.held.ID = id(t, tc.age, f.clock)
			if tc.held.Kind == "" {
				tc.held.Kind, tc.held.Leased = "database", true
			}
			f.tape.due, f.tape.revokeErr, f.tape.alive = []broker.LiveCredential{tc.held}, tc.revoke, tc.alive
			f.sweepOnce(t)
			if diff := cmp.Diff(tc.want, f.tape.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			for _, out := range f.tape.outcomes {
				if out.Term != 7 {
					t.Errorf("%s was settled in term %d, want the leader's", out.Status, out.Term)
				}
			}
		})
	}
}

// A credential that was recorded but never renewed (C6) has expired in Vault, and the sweeper records this.
func TestSweepExpiresUnrenewedCredentials(t *testing.T) {
	f := newFixture(t)
	held := func(age time.Duration) broker.LiveCredential {
		return broker.LiveCredential{
			ID: id(t, age, f.clock), Kind: "database", Status: broker.StatusIssued,
			Expires: f.clock.Add(time.Hour), VaultLease: broker.VaultLease{Accessor: "a"},
		}
	}
	f.tape.live = []broker.LiveCredential{held(time.Second), held(35 * time.Second)}
	f.sweepOnce(t)
	for _, event := range []string{"settle revoking gone", "revoke a", "settle revoked gone"} {
		if !slices.Contains(f.tape.events, event) {
			t.Errorf("got %v, want %q among them", f.tape.events, event)
		}
	}
	for _, out := range f.tape.outcomes {
		if out.ID != f.tape.live[1].ID {
			t.Error("the young one was taken for dead")
		}
	}
}

func TestSweepClosesTasks(t *testing.T) {
	f := newFixture(t)
	f.tape.deadlines = []broker.Task{{SPIFFEID: f.who.ID().String(), Task: "t-1"}}
	f.sweepOnce(t)
	if len(f.tape.commands) != 1 || f.tape.commands[0].Actor != nil || f.tape.commands[0].Target.Task != "t-1" {
		t.Errorf("got %+v, want the end of t-1 by nobody", f.tape.commands)
	}
}

// A GitHub that does not answer delays the revocation of its own tokens only.
func TestSweepDoesNotWaitForGitHub(t *testing.T) {
	f := newFixture(t)
	token, login := id(t, time.Minute, f.clock), id(t, time.Minute, f.clock)
	f.tape.hangs = broker.GitHubLease(token)
	f.tape.leads = 5 * time.Second
	f.tape.due = []broker.LiveCredential{{
		ID: token, Kind: "github", Status: broker.StatusIssued, Leased: true, VaultLease: broker.VaultLease{Lease: f.tape.hangs},
	}}
	f.tape.due = append(f.tape.due, broker.LiveCredential{
		ID: login, Kind: "database", Status: broker.StatusRevoking, Detail: "task_ended", Leased: true, VaultLease: broker.VaultLease{Accessor: "a"},
	})
	f.sweepFor(t, 2*time.Second)
	if got := slices.Index(f.tape.events, "settle revoked task_ended"); got < 0 {
		t.Errorf("got %v, want the database login revoked", f.tape.events)
	}
	if got := len(f.tape.read); got < 2 {
		t.Errorf("the sweeper looked %d times within two seconds", got)
	}
}

// A lost login that nobody can revoke is over at a known time. Its record says so right then, within the minute of I2.
func TestSweepRecordsTheEndOfWhatWasLostInTime(t *testing.T) {
	f := newFixture(t)
	f.cfg.Now = time.Now
	f.useTokens(t, noTokens{})
	begun := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when the clock of a bubble starts
	f.tape.due = []broker.LiveCredential{{
		ID: id(t, 0, begun), Kind: "database", Leased: true, Status: broker.StatusUnknown, Expires: begun.Add(time.Hour),
	}}
	f.tape.leads = time.Minute
	f.sweepFor(t, 55*time.Second)
	if len(f.tape.outcomes) == 0 {
		t.Fatal("its end is not recorded")
	}
	if after := f.tape.outcomes[0].Time.Sub(begun); after < 50*time.Second || after > 52*time.Second {
		t.Errorf("its end is recorded after %s, want 50 s", after)
	}
}

// An order that could not be carried out is read again, however old it becomes (I2).
func TestSweepRetriesFailedRevocations(t *testing.T) {
	for name, failure := range map[string]error{"carried out": nil, "not recorded": broker.ErrLedgerUnavailable} {
		f := newFixture(t)
		f.tape.due = []broker.LiveCredential{{
			ID: id(t, time.Hour, f.clock), Kind: "database", Status: broker.StatusIssued, Detail: broker.CauseTaskEnded,
			Expires: f.clock.Add(time.Hour), VaultLease: broker.VaultLease{Accessor: "a"},
		}}
		f.tape.outcomeErr = map[broker.Status]error{broker.StatusRevoking: failure}
		f.tape.leads = 1500 * time.Millisecond
		f.sweepFor(t, f.tape.leads+10*time.Millisecond)
		if len(f.tape.read) != 2 || f.tape.read[1].IsZero() != (failure != nil) {
			t.Errorf("%s: got orders read since %v, want all of them only while one is open", name, f.tape.read)
		}
	}
}

// sweepOnce leads until one sweep is over.
func (f *fixture) sweepOnce(t *testing.T) {
	t.Helper()
	f.sweepFor(t, 60*time.Millisecond)
}

func (f *fixture) sweepFor(t *testing.T, long time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { // its clock advances only when every goroutine is blocked
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		if err := f.Sweep(ctx, f.tape); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sweep ended with %v", err)
		}
	})
}

// The mint is recorded between the read and the revocation. The credential then ends as an issued one.
func TestCredentialMintedDuringRevocationIsRevoked(t *testing.T) {
	f := newFixture(t)
	fresh := id(t, time.Second, f.clock)
	f.tape.live = []broker.LiveCredential{{ID: fresh, Kind: "ssh", Status: broker.StatusIntent, Expires: f.clock.Add(time.Minute)}}
	f.tape.outcomeErr = map[broker.Status]error{broker.StatusRevoking: broker.ErrInvalidTransition}
	f.tape.onOutcome = func() { f.tape.live[0].Status = broker.StatusIssued }
	receipt, err := f.Revoke(t.Context(), broker.Revocation{Actor: broker.WorkloadActor(f.who), Target: broker.Selector{ID: fresh}})
	if err != nil || len(receipt.Ended) != 1 || receipt.Ended[0].Status != broker.StatusRevoked {
		t.Errorf("got %+v, %v, want it revoked", receipt.Ended, err)
	}
}

// An equal order of the same actor is recorded once, but ends what is left each time. Another reason or another actor is recorded.
func TestRepeatedQuarantineIsRecordedOnce(t *testing.T) {
	f := newFixture(t)
	order := broker.QuarantineOrder{
		Actor: broker.WorkloadActor(f.who), SPIFFEID: "spiffe://acme.example/support", Reason: "odd", Reach: broker.ReachOf([]string{"spiffe://acme.example"}),
	}
	first, err := f.Quarantine(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	f.tape.live = []broker.LiveCredential{{ID: id(t, time.Minute, f.clock), Kind: "jwt", Status: broker.StatusIssued, Expires: f.clock.Add(time.Minute)}}
	again, err := f.Quarantine(t.Context(), order)
	if err != nil || again.Command != first.Command || len(again.Ended) != 1 || again.Ended[0].Cause != broker.CauseQuarantined {
		t.Errorf("repeating it: got %+v, %v, want what the first order left, ended by command %s", again, err, first.Command)
	}
	if f.tape.page.Before != 7 {
		t.Errorf("got what began before %d ended, want what began before the quarantine", f.tape.page.Before)
	}
	f.tape.live = nil
	for range 2 {
		for _, other := range []broker.QuarantineOrder{
			{Actor: order.Actor, SPIFFEID: order.SPIFFEID, Reason: "odder", Reach: order.Reach},
			{Actor: broker.Actor{Person: "https://idp#alice"}, SPIFFEID: order.SPIFFEID, Reason: "odd", Reach: order.Reach},
		} {
			if r, err := f.Quarantine(t.Context(), other); err != nil || r.Command == first.Command {
				t.Errorf("%+v: got %+v, %v, want an entry of its own", other, r, err)
			}
		}
	}
}

// A workload in quarantine cannot lift a quarantine: neither its own nor another one, whoever ordered it.
func TestQuarantinedAdminCannotLiftTheQuarantine(t *testing.T) {
	f := newFixture(t)
	lift := broker.QuarantineOrder{
		Actor: broker.WorkloadActor(f.who), SPIFFEID: "spiffe://acme.example/support",
		Reach: broker.Reach{TrustDomains: []string{"acme.example"}},
	}
	f.tape.quarantines = []broker.Quarantine{{SPIFFEID: lift.SPIFFEID, Actor: "spiffe://acme.example/ops"}}
	if err := f.Unquarantine(t.Context(), lift); err != nil {
		t.Errorf("somebody who is free: %v", err)
	}
	free := f.tape.quarantines[0]
	for _, covering := range []string{f.who.ID().String(), "spiffe://acme.example/research", "spiffe://acme.example"} {
		for _, by := range []string{f.who.ID().String(), "spiffe://acme.example/ops"} {
			f.tape.quarantines = []broker.Quarantine{{SPIFFEID: covering, Actor: by}, free}
			for _, lift.SPIFFEID = range []string{covering, free.SPIFFEID} {
				if err := f.Unquarantine(t.Context(), lift); !errors.Is(err, broker.ErrNotFound) || len(f.tape.commands) != 1 {
					t.Errorf("lifting %s, with %s quarantined by %s: got %v and %d commands, want ErrNotFound",
						lift.SPIFFEID, covering, by, err, len(f.tape.commands))
				}
			}
		}
	}
}

// A quarantine is lifted only after everything that it should have ended has ended. Otherwise some of it would be active again
// (I13).
func TestQuarantineIsLiftedOnlyAfterRevocation(t *testing.T) {
	f := newFixture(t)
	const name = "spiffe://acme.example/research"
	f.tape.quarantines = []broker.Quarantine{{SPIFFEID: name, Actor: "https://idp#bob", Command: "c", Index: 7}}
	f.tape.live = []broker.LiveCredential{{ID: id(t, time.Minute, f.clock), Kind: "jwt", Status: broker.StatusIssued, Expires: f.clock.Add(time.Minute)}}
	lift := broker.QuarantineOrder{Actor: broker.Actor{Person: "https://idp#alice"}, SPIFFEID: name, Reach: broker.ReachOf([]string{name})}
	f.tape.outcomeErr = map[broker.Status]error{broker.StatusRevoked: broker.ErrLedgerUnavailable}
	if err := f.Unquarantine(t.Context(), lift); !errors.Is(err, broker.ErrLedgerUnavailable) || len(f.tape.commands) != 0 {
		t.Errorf("got %v and %v, want no lift", err, f.tape.commands)
	}
	f.tape.outcomeErr, f.tape.events, f.tape.outcomes = nil, nil, nil
	if err := f.Unquarantine(t.Context(), lift); err != nil {
		t.Fatal(err)
	}
	if want := []string{"settle revoked quarantined", "announce quarantine.remove"}; !slices.Equal(f.tape.events, want) {
		t.Errorf("got %q, want %q", f.tape.events, want)
	}
	if by, cmd := f.tape.outcomes[0].Actor, f.tape.commands[0]; by != "https://idp#bob" || cmd.Lifts != "c" {
		t.Errorf("got it ended by %s, and %s lifted, want it by who ordered the quarantine, and that one", by, cmd.Lifts)
	}
	if got := f.tape.page.Before; got != 7 {
		t.Errorf("looked for what began before %d, want what began before the quarantine: another lift may have let more begin", got)
	}
}
