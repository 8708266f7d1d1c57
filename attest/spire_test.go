package attest_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// testdata/spire was issued by a SPIRE 1.14.7 server and fetched through its agent's Workload API. It holds the bundle as
// `spire-server bundle show -format spiffe` prints it, an X.509-SVID and a JWT-SVID.
var spireIssued = time.Date(2026, time.November, 21, 4, 45, 0, 0, time.UTC)

// SVIDs from SPIRE are accepted unchanged at the time when they were valid, and not an hour later.
func TestSVIDsFromSPIREAreAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(spireIssued)) // the bubble's clock, which go-spiffe reads too
		domain := spiffeid.RequireTrustDomainFromString("acme.example")
		bundle, err := spiffebundle.Load(domain, "testdata/spire/bundle.json")
		if err != nil {
			t.Fatal(err)
		}
		a, err := attest.New(attest.Config{
			Bundles: bundle, TrustDomains: []spiffeid.TrustDomain{domain}, Audience: "https://brevet.acme.example", Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		token, err := os.ReadFile("testdata/spire/svid.jwt")
		if err != nil {
			t.Fatal(err)
		}
		state := &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, PeerCertificates: chain(t, "testdata/spire/svid.pem")}
		const want = "spiffe://acme.example/research/agent-7"
		if who, err := a.JWT(strings.TrimSpace(string(token))); err != nil || who.ID().String() != want {
			t.Errorf("JWT-SVID: got %s, %v; want %s", who.ID(), err, want)
		}
		if who, err := a.X509(state); err != nil || who.ID().String() != want {
			t.Errorf("X.509-SVID: got %s, %v; want %s", who.ID(), err, want)
		}
		time.Sleep(time.Hour)
		if _, err := a.JWT(strings.TrimSpace(string(token))); refusal.Reason(err) != "svid_expired" {
			t.Errorf("JWT-SVID an hour later: got %v, want it expired", err)
		}
		if _, err := a.X509(state); refusal.Reason(err) != "svid_expired" {
			t.Errorf("X.509-SVID an hour later: got %v, want it expired", err)
		}
	})
}

func chain(t *testing.T, path string) []*x509.Certificate {
	t.Helper()
	rest, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		certificates = append(certificates, certificate)
	}
	return certificates
}
