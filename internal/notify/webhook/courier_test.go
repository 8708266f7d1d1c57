package webhook_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// Two replicas deliver to each webhook all its notices, in order and once.
func TestEachNoticeIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	second := s.Replica(t)
	all, acme := newReceiver(t, nil), newReceiver(t, nil)
	decided := acme.spec("acme")
	decided.Events, decided.Within = []broker.NoticeKind{broker.NoticeDecided}, []string{"spiffe://acme.test/agents"}
	courier(t, s, all.spec("all"), decided)
	courier(t, second, all.spec("all"), decided)

	ids := map[string]bool{}
	for range 10 {
		request, foreign := ask(t, s, agent), ask(t, second, other)
		approve(t, second, request)
		if err := second.Client(t, other).Withdraw(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
		for _, got := range []received{
			all.wants(t, broker.NoticeWaiting, request, "pending"), all.wants(t, broker.NoticeWaiting, foreign, "pending"),
			all.wants(t, broker.NoticeDecided, request, "approved"), all.wants(t, broker.NoticeDecided, foreign, "withdrawn"),
		} {
			if ids[got.ID] {
				t.Errorf("the id %s comes twice", got.ID)
			}
			ids[got.ID] = true
			for _, banned := range []string{"CANARY", "channel", "reason"} {
				if strings.Contains(got.Body, banned) {
					t.Errorf("got %s, want no words of the sandbox", got.Body)
				}
			}
			if !strings.Contains(got.Body, `"link":"https://brevet.test/v1/approvals/`+got.Request+`"`) {
				t.Errorf("got %s, want a link", got.Body)
			}
		}
		acme.wants(t, broker.NoticeDecided, request, "approved")
	}
	if len(all.calls)+len(acme.calls) != 0 {
		t.Errorf("got %d and %d calls more", len(all.calls), len(acme.calls))
	}
	s.DB.Check(t)
}

// A failed delivery is retried with the same id and does not delay the others.
func TestRetries(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	var mu sync.Mutex
	tries, fails := map[string]int{}, ""
	r := newReceiver(t, func(got received) int {
		mu.Lock()
		defer mu.Unlock()
		if fails == "" {
			fails = got.ID
		}
		if tries[got.ID]++; got.ID == fails && tries[got.ID] < 3 {
			return []int{0, http.StatusFound, http.StatusInternalServerError}[tries[got.ID]]
		}
		return http.StatusOK
	})
	courier(t, s, r.spec("one"))
	first := ask(t, s, agent)
	eventually(t, "a first attempt", func() bool { mu.Lock(); defer mu.Unlock(); return len(tries) == 1 })
	second := ask(t, s, agent)
	r.wants(t, broker.NoticeWaiting, second, "pending")
	late := r.wants(t, broker.NoticeWaiting, first, "pending")
	mu.Lock()
	defer mu.Unlock()
	if tries[late.ID] != 3 {
		t.Errorf("it was taken at attempt %d, want the third", tries[late.ID])
	}
	for attempts, most := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 10: 512 * time.Second, 99: 15 * time.Minute} {
		if d := webhook.RetryAfter(attempts); d > most || d < most*4/5 {
			t.Errorf("after attempt %d: got %v, want at most %v and little less", attempts, d, most)
		}
	}
}

// A break-glass approval is announced at the first vote and when it is approved.
func TestBreakGlassIsAnnounced(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	second := s.Replica(t)
	r := newReceiver(t, nil)
	spec := r.spec("alarm")
	spec.Events = []broker.NoticeKind{broker.NoticeBroken}
	courier(t, s, spec)
	courier(t, second, spec)
	approve(t, s, ask(t, s, agent)) // this one sends no notice
	id := ask(t, s, agent)
	for i, status := range []string{"pending", "approved"} {
		says(t, second.Person(t, []string{"dave", "erin"}[i]), openapi.VerdictBreakGlass, id)
		got := r.wants(t, broker.NoticeBroken, id, status)
		if !strings.Contains(got.Body, `"group":"leads","quorum":2`) || strings.Contains(got.Body, "CANARY") {
			t.Errorf("got %s, want who stands in, and nobody's words", got.Body)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for a %s", patience, what)
		}
	}
}

// A crash loses no notice. A notice that was being delivered is delivered again.
func TestCrashLosesNoNotice(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	r := newReceiver(t, nil)
	spec := r.spec("one")
	sub := broker.Subscription{Name: spec.Name, Kinds: spec.Events, Within: spec.Within}
	dies := outbox(t, s)
	if err := dies.Subscribe(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	told, untold := ask(t, s, agent), ask(t, s, agent)
	n, err := dies.Next(t.Context(), sub)
	if err != nil || n == nil || n.Request != told {
		t.Fatalf("got %+v, %v, want the first", n, err)
	}
	// The replica crashes here. No other replica takes over before its lease expires.
	courier(t, s, spec)
	if again, err := outbox(t, s).Next(t.Context(), sub); err != nil || again != nil {
		t.Errorf("got %+v, %v, want nothing while somebody else tells", again, err)
	}
	admin := testkit.Connect(t, s.DB.AdminURL)
	for _, sql := range []string{
		`UPDATE webhook_notices SET due = due - interval '30 s' WHERE attempts > 0`,
		`UPDATE webhooks SET held_until = held_until - interval '30 s'`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.wants(t, broker.NoticeWaiting, told, "pending"); got.ID != n.ID {
		t.Errorf("got the id %s, want that of the first attempt %s", got.ID, n.ID)
	}
	r.wants(t, broker.NoticeWaiting, untold, "pending")
}

// Events during an interruption are delivered later, and a replica that stops releases its lease immediately.
func TestStoppedReplicaReleasesItsLease(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	r := newReceiver(t, nil)
	before := ask(t, s, agent) // the webhook is not subscribed yet
	stop := courier(t, s, r.spec("one"))
	approve(t, s, before)
	r.wants(t, broker.NoticeDecided, before, "approved")
	stop()
	var free bool
	err := testkit.Connect(t, s.DB.AdminURL).QueryRow(t.Context(), `SELECT held_until <= now() FROM webhooks WHERE name = 'one'`).Scan(&free)
	if err != nil || !free {
		t.Errorf("got %v, %v, want the webhook free for the next replica, before its lease is over", free, err)
	}
	missed := ask(t, s, agent)
	courier(t, s, r.spec("one"))
	r.wants(t, broker.NoticeWaiting, missed, "pending")
}
