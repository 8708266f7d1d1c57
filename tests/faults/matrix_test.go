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

// points returns the crash points of this kind of credential. A JWT has no wrapper token, no second record and nothing to revoke
// in Vault. A credential without a lease is not renewed. A Vault token is its own wrapper.
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
	afterQuorum,
}

// TestFaults breaks things, and checks what is left of them (I1, I2, I10). One world goes through all faults, so that each check
// also sees what every earlier fault has left behind.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	t.Run("crash points", w.crashPoints)
	t.Run("crash between quorum and intent", w.quorumPoints)
	t.Run("servers", w.servers)
	t.Run("load", w.killsUnderLoad)
	w.checkLater(t, "the last fault")
}

// crashPoints kills, panics, stalls and fails a replica at each crash point, for each kind of credential. Another replica lives
// on. A minute later nothing is alive that was not delivered, and the record shows how each issuance ended.
func (w *world) crashPoints(t *testing.T) {
	for _, k := range kinds {
		for _, p := range k.points() {
			for _, a := range actions {
				if !*all && (k.name != "database" && k.name != "carried" || a != kill) {
					continue // only a full run tries the whole matrix
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

// crashCase is one cell of the matrix with one action.
type crashCase struct {
	kind
	at      point
	by      action
	subject string // the sandbox of this case
}

// revoking reports whether the crash point is on the way to the end of a credential.
func (c crashCase) revoking() bool { return c.at == afterRevoking || c.at == afterRevocation }

// died reports whether the replica, or its call, ended at the crash point.
func (c crashCase) died() bool { return c.by == kill || c.by == crash }

// unrenewed reports whether a credential was delivered that no replica renews.
func (c crashCase) unrenewed() bool { return c.at == beforeRenewal && c.died() }

// strike runs one case.
func (w *world) strike(t *testing.T, k kind, p point, a action) {
	c := crashCase{kind: k, at: p, by: a}
	c.subject = "spiffe://acme.test/faults/" + strings.NewReplacer(" ", "", "-", "").Replace(fmt.Sprintf("%s/%s/%s", k.name, p, a))
	w.crowd <- struct{}{} // few replicas start at the same time
	leave := sync.OnceFunc(func() { <-w.crowd })
	defer leave()
	f := &fault{Point: p, Action: a}
	if k.second && !c.revoking() {
		f.Spares = 1
	}
	r := w.startReplica(t, f)
	if k.second {
		if first := w.ask(t, r, c.subject+"/first", k); !first.has() {
			t.Fatalf("before the fault: status %d, %s", first.status, first.Code)
		}
	}
	got := w.ask(t, r, c.subject, k)
	if c.revoking() {
		if !got.has() {
			t.Fatalf("issuing before the fault: status %d, %s", got.status, got.Code)
		}
		if k.leased() && !k.opens(t, w.inventory, got) {
			t.Error("the credential does not work before its end")
		}
		_, _ = call(t.Context(), w.client(t, c.subject), r.url+"/v1/tasks/"+task+"/end", map[string]any{})
	}
	struck := time.Now()
	if a == kill {
		r.waitKilled(t)
	}
	leave()

	rows := w.awaitEnd(t, c.subject, struck.Add(grace), func(r row) bool { return c.revoking() || r.Leased && !renewed(r) })
	w.judge(t, c, got, rows)
	w.check(t)
	r.stop(t)
	if !strings.Contains(r.log.String(), struckLine) {
		t.Errorf("the fault did not strike:\n%s", r.log)
	}
}

// judge checks the records of a case against the answer that the caller got.
func (w *world) judge(t *testing.T, c crashCase, got answer, rows []row) {
	t.Helper()
	if (c.at == beforeIntent && c.by != stall) != (len(rows) == 0) {
		t.Errorf("got %d records", len(rows))
	}
	for _, r := range rows {
		switch says := strings.TrimSpace(r.Status + " " + r.Detail); {
		case !got.has() || r.ID != got.ID:
			if c.leased() && r.Status == "issued" {
				t.Errorf("it was not delivered (status %d), the record says issued", got.status)
			}
		case c.revoking() && says != "revoked task_ended":
			t.Errorf("the task has ended, the record says %s", says)
		case c.unrenewed() && says != "revoked gone":
			t.Errorf("nobody renewed it, the record says %s", says)
		case !c.revoking() && !c.unrenewed() && says != "issued":
			t.Errorf("it was delivered, the record says %s", says)
		}
	}
	if !got.has() {
		return
	}
	// I1: a delivered credential has a record.
	if !slices.ContainsFunc(rows, func(r row) bool { return r.ID == got.ID }) {
		t.Errorf("%s was delivered and is not recorded", got.ID)
	}
	if c.leased() {
		w.judgeLife(t, c, got)
	}
	if c.lives != nil { // also after it has been revoked: the record says until when
		if works, err := c.lives(t.Context(), w.inventory, got); err != nil || !works {
			t.Errorf("the other system accepts the credential: %t, %v", works, err)
		}
	}
}

// judgeLife uses the delivered credential. It must work unless it was revoked or not renewed, and must stop working after its
// task ends.
func (w *world) judgeLife(t *testing.T, c crashCase, got answer) {
	t.Helper()
	dead := c.revoking() || c.unrenewed()
	if works := c.opens(t, w.inventory, got); works == dead {
		t.Errorf("the credential works: %t", works)
	}
	if dead {
		return
	}
	ended, err := call(t.Context(), w.admin, w.stack.URL+"/v1/revocations", map[string]any{"id": got.ID, "reason": "the case is over"})
	if err != nil || ended.status != http.StatusOK && ended.status != http.StatusAccepted {
		t.Errorf("revoking: %v, status %d %s %+v", err, ended.status, ended.Code, ended.Ended)
	}
	// A busy Vault may take longer to revoke than Brevet to answer.
	w.awaitEnd(t, c.subject, time.Now().Add(grace), func(r row) bool { return r.ID == got.ID })
	if c.opens(t, w.inventory, got) {
		t.Error("the credential works after its revocation was acknowledged")
	}
}
