package faults_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/openapi"
)

var (
	approvers     = []devstack.DevPerson{{Username: "bob", Name: "Bob", Groups: []string{"oncall"}}}
	approverRules = []people.Rule{{Role: people.RoleApprover, Group: "oncall"}}
)

func approvalPolicy() (approval.Policy, error) {
	rules, err := people.NewRules(approverRules)
	return approval.Policy{Rules: rules}, err
}

// quorumPoints makes a replica fail after people have approved a request and before the intent is committed (C9). The failure
// does not use up the approval, which is still good for exactly one credential.
func (w *world) quorumPoints(t *testing.T) {
	for _, k := range kinds {
		for _, a := range actions {
			if !*all && (k.name != "database" && k.name != "carried" || a != kill) {
				continue // only a full run tries the whole matrix
			}
			t.Run(fmt.Sprintf("%s/%s", k.name, a), func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() { results.add(k.name, string(afterQuorum), !t.Failed()) })
				w.strikeApproved(t, k, a)
			})
		}
	}
}

func (w *world) strikeApproved(t *testing.T, k kind, a action) {
	subject := "spiffe://acme.test/faults/" + strings.NewReplacer(" ", "", "-", "").Replace(k.name+"/C9/"+string(a))
	body := k.body()
	proofs := map[string]any{}
	for _, name := range []string{"csr", "public_key"} {
		if body[name] != nil {
			proofs[name] = body[name]
		}
	}
	body["scope"], body["task"] = "gated."+k.name, task
	sandbox := w.client(t, subject)
	asked, err := call(t.Context(), sandbox, w.stack.URL+"/v1/tokens", body)
	if err != nil || asked.status != http.StatusAccepted {
		t.Fatalf("asking: got %+v, %v, want it pending", asked, err)
	}
	w.approve(t, asked.ID)
	w.crowd <- struct{}{} // few replicas start at the same time
	leave := sync.OnceFunc(func() { <-w.crowd })
	defer leave()
	r := w.startReplica(t, &fault{Point: afterQuorum, Action: a})
	redeem := func(url string) answer {
		got, err := call(t.Context(), sandbox, url+"/v1/requests/"+asked.ID+"/token", proofs)
		if err != nil {
			t.Logf("no answer: %v", err)
		}
		if got.has() {
			w.inventory.deliver(got.ID)
		}
		return got
	}
	got := redeem(r.url)
	if a == kill {
		r.waitKilled(t)
	}
	if got.has() != (a == stall) {
		t.Errorf("redeeming at the fault: status %d %s", got.status, got.Code)
	}
	if !got.has() {
		if got = redeem(w.stack.URL); !got.has() {
			t.Fatalf("redeeming afterwards: status %d %s", got.status, got.Code)
		}
	}
	if again := redeem(w.stack.URL); again.Code != string(openapi.CodeNotApproved) {
		t.Errorf("redeeming twice: status %d %s, want not_approved", again.status, again.Code)
	}
	r.stop(t)
	leave()
	rows := w.awaitEnd(t, subject, time.Now().Add(grace), func(row) bool { return false })
	if len(rows) != 1 || !slices.ContainsFunc(rows, func(r row) bool { return r.ID == got.ID && r.Status == "issued" }) {
		t.Errorf("got %+v, want one issuance", rows)
	}
	if k.leased() {
		w.judgeLife(t, crashCase{kind: k, at: afterQuorum, by: a, subject: subject}, got)
	}
	w.check(t)
	if !strings.Contains(r.log.String(), struckLine) {
		t.Errorf("the fault did not strike:\n%s", r.log)
	}
}

// approve casts Bob's vote to approve.
func (w *world) approve(t *testing.T, id string) {
	t.Helper()
	bob := w.stack.Person(t, "bob")
	shown, err := bob.Approval(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := bob.Vote(t.Context(), shown, openapi.VerdictApprove, ""); err != nil || after.Status != openapi.StatusApproved {
		t.Fatalf("voting: got %+v, %v, want it approved", after, err)
	}
}
