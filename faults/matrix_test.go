package faults_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// points are where a credential of this kind can come to grief. A JWT has no wrapper token, no second record and
// nothing to revoke in Vault; what has no lease is not renewed; a Vault token is its own wrapper.
func (k kind) points() []point {
	points := []point{beforeIntent, afterIntent}
	if k.dynamic() {
		points = append(points, wrapperLost)
	}
	if k.name != "vault-token" {
		points = append(points, mintLost)
	}
	if k.dynamic() {
		points = append(points, beforeIssued, afterIssued)
	}
	if k.leased() {
		points = append(points, beforeRenewal, afterRevoking)
	}
	points = append(points, writing)
	if !k.static() {
		points = append(points, afterRevocation)
	}
	return points
}

// allPoints are the rows of the matrix.
var allPoints = []point{
	beforeIntent, afterIntent, wrapperLost, mintLost, beforeIssued, afterIssued, beforeRenewal, writing, afterRevoking, afterRevocation,
}

// TestFaults breaks things, and looks what is left of them. One world goes through all of it, so that every later
// check looks at what every earlier fault has left behind.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	t.Run("crash points", w.crashPoints)
	t.Run("servers", w.servers)
	t.Run("load", w.killsUnderLoad)
	w.checkLater(t)
}

// crashPoints kills, panics, stalls and fails a replica at each crash point, for each kind of credential. Another
// replica lives on. A minute later nothing is alive that was not delivered, and the record says what became of it.
func (w *world) crashPoints(t *testing.T) {
	for _, k := range kinds {
		for _, p := range k.points() {
			for _, a := range actions {
				if !*all && (k.name != "database" || a != kill) {
					continue // the whole matrix is a run of its own
				}
				t.Run(fmt.Sprintf("%s/%s/%s", k.name, p, a), func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() { results.add(k.name, string(p), !t.Failed()) })
					w.strike(t, k, p, a)
				})
			}
		}
	}
}

// strike runs one case.
func (w *world) strike(t *testing.T, k kind, p point, a action) {
	subject := "spiffe://acme.test/faults/" + strings.NewReplacer(" ", "", "-", "").Replace(fmt.Sprintf("%s/%s/%s", k.name, p, a))
	w.crowd <- struct{}{} // few replicas start at a time
	leave := sync.OnceFunc(func() { <-w.crowd })
	defer leave()
	c := w.startReplica(t, &fault{Point: p, Action: a})
	got := w.ask(t, c, subject, k)
	if revoking(p) {
		if !got.has() {
			t.Fatalf("issuing before the fault: status %d, %s", got.status, got.Code)
		}
		_, _ = call(t.Context(), w.client(t, subject), c.url+"/v1/tasks/"+task+"/end", map[string]any{})
	}
	struck := time.Now()
	if a == kill {
		c.waitKilled(t)
	}
	leave()

	ended := w.awaitEnd(t, subject, struck.Add(grace), func(r row) bool { return revoking(p) || r.Leased && !renewed(r) })
	w.judge(t, k, p, a, got, ended)
	w.check(t)
	c.stop(t)
	if !strings.Contains(c.log.String(), struckLine) {
		t.Errorf("the fault did not strike:\n%s", c.log)
	}
}

// revoking tells whether the point is on the way to the end of a credential.
func revoking(p point) bool { return p == afterRevoking || p == afterRevocation }

// judge holds what came of a case to what the caller was told.
func (w *world) judge(t *testing.T, k kind, p point, a action, got answer, rows []row) {
	t.Helper()
	revoked := revoking(p)
	if (p == beforeIntent && (a == kill || a == crash || a == fail)) != (len(rows) == 0) {
		t.Errorf("got %d records", len(rows))
	}
	for _, r := range rows {
		switch {
		case got.has() && r.ID == got.ID && revoked:
			if r.Status != "revoked" {
				t.Errorf("the task has ended, the record says %s", r.Status)
			}
		case got.has() && r.ID == got.ID && p == beforeRenewal && (a == kill || a == crash):
			if r.Status != "revoked" || r.Detail != "gone" {
				t.Errorf("nobody renewed it, the record says %s %s", r.Status, r.Detail)
			}
		case got.has() && r.ID == got.ID:
			if r.Status != "issued" {
				t.Errorf("it was delivered, the record says %s %s", r.Status, r.Detail)
			}
		case k.leased() && r.Status == "issued":
			t.Errorf("it was not delivered (status %d), the record says issued", got.status)
		}
	}
	if !got.has() {
		return
	}
	// I1: what was delivered has its record.
	if !slices.ContainsFunc(rows, func(r row) bool { return r.ID == got.ID }) {
		t.Errorf("%s was delivered and is not recorded", got.ID)
	}
	if k.leased() {
		w.judgeLife(t, k, p, a, got)
	}
}

// judgeLife uses what was delivered: it works unless it was revoked or not renewed, and not after its task.
func (w *world) judgeLife(t *testing.T, k kind, p point, a action, got answer) {
	t.Helper()
	dead := revoking(p) || p == beforeRenewal && (a == kill || a == crash)
	if works := k.works(t.Context(), w.estate, got); works == dead {
		t.Errorf("the credential works: %t", works)
	}
	if dead {
		return
	}
	ended, err := call(t.Context(), w.admin, w.stack.URL+"/v1/revocations", map[string]any{"id": got.ID, "reason": "the case is over"})
	if err != nil || ended.status != http.StatusOK {
		t.Errorf("revoking: %v, status %d %s %+v", err, ended.status, ended.Code, ended.Ended)
	}
	if k.works(t.Context(), w.estate, got) {
		t.Error("the credential works after its revocation was acknowledged")
	}
}
