package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// TestTrustChangesUnderOpenConnections changes trust while agents of all trust domains are connected. A caller that is no
// longer trusted is refused at its next call, even on a connection that was open long before (H25, I10). Trusted callers
// and callers of other trust domains notice nothing (T6, I14).
func TestTrustChangesUnderOpenConnections(t *testing.T) {
	t.Parallel()
	f := federate(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"an authority comes", f.authorityComes},
		{"an authority goes", f.authorityGoes},
		{"a federation ends", f.federationEnds},
		{"the Workload API is down", f.agentDown},
		{"bundle endpoints are down", f.endpointsDown},
		{"a trust domain revokes all its keys", f.allRevoked},
	} {
		began := time.Now()
		if !t.Run(part.name, part.run) {
			return
		}
		t.Logf("%s: %s", part.name, time.Since(began).Round(10*time.Millisecond))
	}
	f.broker.signal(t, syscall.SIGTERM)
	f.broker.finish(t).want(t, 0)
	testkit.CheckLedger(t, f.db.AdminURL)
}

// authorityComes adds an authority to the deployment's own trust domain. It issues from now on, including the broker's
// certificate.
func (f *federation) authorityComes(t *testing.T) {
	f.old = f.prove(t, f.issuer)
	f.oldOpen = f.open(t, f.old)
	before := f.oldOpen[0].served(t).server
	if err := f.issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	f.fresh = f.prove(t, f.issuer)
	f.letIn(t, soon, f.fresh)
	f.showsNew(t, f.fresh)
	for _, c := range f.oldOpen {
		if got := c.served(t).server; got != before {
			t.Errorf("%s: the certificate of an open connection became %s, want %s", c.name, got, before)
		}
	}
	f.unbroken(t)
}

// authorityGoes removes the first authority of the deployment's own trust domain. Its agents have renewed their SVIDs,
// except for three.
func (f *federation) authorityGoes(t *testing.T) {
	f.steady[f.issuer].renew(f.fresh)
	open := f.open(t, f.fresh)
	allServed(t, f.oldOpen)
	if err := f.issuer.Prune(); err != nil {
		t.Fatal(err)
	}
	for _, c := range f.oldOpen {
		c.refusedSoon(t, http.StatusUnauthorized, "unauthenticated")
	}
	f.shutOut(t, f.old)
	allServed(t, open)
	f.letIn(t, soon, f.prove(t, f.issuer))
	f.unbroken(t)
	f.recorded(t, "issueToken svid_signature", "issueToken svid_authority", "tlsHandshake svid_signature") // I12
}

// recorded requires refusals of these kinds to be in the ledger.
func (f *federation) recorded(t *testing.T, kinds ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, e := range f.db.Entries(t) {
		found[fmt.Sprint(e.Body["operation"], " ", e.Body["detail"])] = true
	}
	for _, kind := range kinds {
		if !found[kind] {
			t.Errorf("I12: no refusal %q is recorded, of %v", kind, found)
		}
	}
}

// federationEnds checks the end of a federation: the Workload API no longer gives the partner's bundle. What was issued
// before stays in force until an admin ends it, and the admin needs no caller of that trust domain for that.
func (f *federation) federationEnds(t *testing.T) {
	p := f.prove(t, f.partner)
	open := f.open(t, p)
	issued := open[0].served(t)
	f.issuer.Unfederate(f.partner.TrustDomain())
	for _, c := range open {
		c.refusedSoon(t, http.StatusServiceUnavailable, "bundle_unavailable")
	}
	f.locked(t, p)
	f.ready(t)
	gateway, admin := f.official(t, "/gateway"), f.official(t, "/ops/admin")
	if !f.active(t, gateway, issued.Token) {
		t.Error("what was issued before is not in force any more, want it to be until its end")
	}
	order := fmt.Sprintf(`{"spiffe_id":%q,"reason":"the federation has ended"}`, f.partner.TrustDomain().IDString())
	if got, err := admin.call(t.Context(), http.MethodPost, "/v1/quarantines", "application/json", order); err != nil || got.status != http.StatusOK {
		t.Fatalf("the quarantine: got %d %s, %v", got.status, got.text, err)
	}
	if f.active(t, gateway, issued.Token) {
		t.Error("I6: a token of the partner is active after the receipt of the quarantine")
	}
	lift := "/v1/quarantines?spiffe_id=" + url.QueryEscape(f.partner.TrustDomain().IDString())
	if got, err := admin.call(t.Context(), http.MethodDelete, lift, "application/json", ""); err != nil || got.status != http.StatusNoContent {
		t.Fatalf("lifting it: got %d %s, %v", got.status, got.text, err)
	}
	f.issuer.Federate(f.partner.Bundle())
	for _, c := range open {
		c.servedSoon(t, soon)
	}
	if f.active(t, gateway, issued.Token) {
		t.Error("I13: the token is active again after the quarantine was lifted")
	}
	f.steady[f.partner].forgive()
	f.unbroken(t)
}

// official returns a workload of the deployment's own trust domain that has a role, on a connection that stays open.
func (f *federation) official(t *testing.T, path string) *caller {
	t.Helper()
	svid, err := f.issuer.X509SVID(spiffeid.RequireFromPath(f.issuer.TrustDomain(), path))
	if err != nil {
		t.Fatal(err)
	}
	return f.callers(proof{x509: svid})[0]
}

// active reports whether a token is in force, by introspection as the gateway.
func (f *federation) active(t *testing.T, gateway *caller, token string) bool {
	t.Helper()
	got, err := gateway.call(t.Context(), http.MethodPost, "/oauth2/introspect", "application/x-www-form-urlencoded", url.Values{"token": {token}}.Encode())
	var about struct{ Active bool }
	if err == nil {
		err = json.Unmarshal([]byte(got.text), &about)
	}
	if err != nil || got.status != http.StatusOK {
		t.Fatalf("asking about a token: got %d %s, %v", got.status, got.text, err)
	}
	return about.Active
}

// endpointsDown stops both bundle endpoints. While they are down, their trust domains get another authority, and afterwards
// the first one is removed. Only those who watch the broker notice the outage.
func (f *federation) endpointsDown(t *testing.T) {
	both := []*bundleEndpoint{f.vendor, f.shop}
	failed, worked := `msg="bundle source fails" trust_domain=%s`, `msg="bundle source works" trust_domain=%s`
	began := time.Now()
	var old, fresh []proof
	var open []*caller
	for _, e := range both {
		old = append(old, f.prove(t, e.Issuer))
		open = append(open, f.open(t, old[len(old)-1])...)
		e.down.Store(true)
	}
	for _, e := range both {
		f.logged(t, fmt.Sprintf(failed, e.TrustDomain().Name()), 1)
		if err := e.Rotate(); err != nil {
			t.Fatal(err)
		}
		fresh = append(fresh, f.prove(t, e.Issuer))
	}
	allServed(t, open)
	for i, e := range both {
		f.letIn(t, soon, old[i])       // verified with the last known bundle
		f.shutOut(t, fresh[i])         // the last known bundle lacks the new authority
		f.failing(t, e.Issuer, "not ") // the metric is not 0
	}
	f.ready(t)
	f.unbroken(t)
	for _, e := range both {
		e.down.Store(false)
	}
	for i, e := range both {
		f.letIn(t, soon+time.Since(began), fresh[i])                // the broker's retry delay grows to a minute
		f.logged(t, fmt.Sprintf(worked, e.TrustDomain().Name()), 2) // the first line is from the start
		f.failing(t, e.Issuer, "")
	}
	allServed(t, open)
	f.unbroken(t)
	f.vendor.renew(t) // the shop has a Web PKI certificate
	for i, e := range both {
		f.steady[e.Issuer].renew(fresh[i])
		if err := e.Prune(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range open {
		c.refusedSoon(t, http.StatusUnauthorized, "unauthenticated")
	}
	f.shutOut(t, old[0])
	f.shutOut(t, old[1])
	f.unbroken(t)
}

// agentDown stops the Workload API. While it is down, the deployment's own trust domain gets another authority.
func (f *federation) agentDown(t *testing.T) {
	now, began := f.prove(t, f.issuer), time.Now()
	open := f.open(t, now)
	if err := f.agent.Close(); err != nil {
		t.Fatal(err)
	}
	f.logged(t, `msg="bundle source fails" trust_domain=acme.example`, 1)
	f.logged(t, `msg="bundle source fails" trust_domain=partner.example`, 2) // the first line is from the end of the federation
	f.failing(t, f.issuer, "not ")
	if err := f.issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	next := f.prove(t, f.issuer)
	allServed(t, open)
	f.letIn(t, soon, now)
	f.shutOut(t, next)
	f.ready(t)
	f.unbroken(t)
	f.serveAgent(t)
	f.letIn(t, soon+time.Since(began), next)
	f.showsNew(t, next)
	f.failing(t, f.issuer, "")
	allServed(t, open)
	f.unbroken(t)
}

// showsNew requires the broker to present a certificate of the newest authority to new connections.
func (f *federation) showsNew(t *testing.T, p proof) {
	t.Helper()
	authority, _ := f.issuer.CA()
	within(t, soon, "who connects is shown a certificate of the new authority", func() bool {
		c := f.callers(p)[0]
		c.served(t)
		return c.shown.CheckSignatureFrom(authority) == nil
	})
}

// failing requires the metric of a trust domain to be 0, or not to be.
func (f *federation) failing(t *testing.T, of *devstack.Issuer, not string) {
	t.Helper()
	series := fmt.Sprintf(`brevet_bundle_failing_seconds{trust_domain=%q} `, of.TrustDomain().Name())
	_, after, found := strings.Cut(f.metrics(t), series)
	value, _, _ := strings.Cut(after, "\n")
	if !found || (value != "0") != (not != "") {
		t.Errorf("got %s%s, want it %sto be 0", series, value, not)
	}
}

// allRevoked checks a bundle without keys: the shop publishes one, and later publishes its old bundle again.
func (f *federation) allRevoked(t *testing.T) {
	p := f.prove(t, f.shop.Issuer)
	open := f.open(t, p)
	f.shop.revoked.Store(true)
	for _, c := range open {
		c.refusedSoon(t, http.StatusUnauthorized, "unauthenticated")
	}
	f.shutOut(t, p)
	f.ready(t)
	f.shop.revoked.Store(false)
	for _, c := range open {
		c.conn = nil // a connection whose authority was removed is closed
		c.servedSoon(t, soon)
	}
	f.steady[f.shop.Issuer].forgive()
	f.unbroken(t)
}
