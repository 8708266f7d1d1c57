package devstack_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

var (
	acme  = spiffeid.RequireTrustDomainFromString("acme.example")
	other = spiffeid.RequireTrustDomainFromString("other.example")
	agent = spiffeid.RequireFromPath(acme, "/agents/one")
)

func issuerOf(t *testing.T, td spiffeid.TrustDomain) *devstack.Issuer {
	t.Helper()
	return newIssuer(t, devstack.IssuerConfig{TrustDomain: td})
}

func newIssuer(t *testing.T, cfg devstack.IssuerConfig) *devstack.Issuer {
	t.Helper()
	issuer, err := devstack.NewIssuer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

func x509SVID(t *testing.T, issuer *devstack.Issuer) *x509svid.SVID {
	t.Helper()
	svid, err := issuer.X509SVID(agent)
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

func jwtSVID(t *testing.T, issuer *devstack.Issuer, audience ...string) string {
	t.Helper()
	token, err := issuer.JWTSVID(agent, audience...)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestX509SVIDFollowsTheStandard(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	issuer := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Now: func() time.Time { return now }})
	svid := x509SVID(t, issuer)
	leaf := svid.Certificates[0]
	if id, _, err := x509svid.Verify(svid.Certificates, issuer.Bundle()); err != nil || id != agent {
		t.Fatalf("verify: got %v, %v, want %v", id, err, agent)
	}
	if len(leaf.URIs) != 1 || len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) != 0 {
		t.Errorf("names: got %v %v, want one URI", leaf.URIs, leaf.DNSNames)
	}
	if leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("got CA %v, usage %b, want a leaf for signatures only", leaf.IsCA, leaf.KeyUsage)
	}
	keyUsage := asn1.ObjectIdentifier{2, 5, 29, 15}
	if !slices.ContainsFunc(leaf.Extensions, func(e pkix.Extension) bool { return e.Critical && e.Id.Equal(keyUsage) }) {
		t.Error("the key usage is not marked critical")
	}
	want := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	if !cmp.Equal(leaf.ExtKeyUsage, want) {
		t.Errorf("extended usage: got %v, want %v", leaf.ExtKeyUsage, want)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("key: got %T, want ECDSA P-256", leaf.PublicKey)
	}
	if got := leaf.NotAfter.Sub(now); got != time.Hour {
		t.Errorf("life: got %v, want 1h", got)
	}
	ca, _ := issuer.CA()
	if !ca.IsCA || len(ca.URIs) != 1 || ca.URIs[0].String() != "spiffe://acme.example" {
		t.Errorf("CA: got CA %v, %v, want the trust domain", ca.IsCA, ca.URIs)
	}
}

func TestJWTSVIDFollowsTheStandard(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	issuer := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Now: func() time.Time { return now }})
	token := jwtSVID(t, issuer, "https://brevet.example")
	if svid, err := jwtsvid.ParseAndValidate(token, issuer.Bundle(), []string{"https://brevet.example"}); err != nil || svid.ID != agent {
		t.Fatalf("validate: got %v, %v, want %v", svid, err, agent)
	}
	kid, _ := issuer.JWTKey()
	parts := strings.Split(token, ".")
	for i, want := range []map[string]any{
		{"alg": "ES256", "kid": kid, "typ": "JWT"},
		{
			"sub": agent.String(), "aud": "https://brevet.example",
			"iat": float64(now.Unix()), "exp": float64(now.Add(5 * time.Minute).Unix()),
		},
	} {
		text, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("part %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestIssuerRefuses(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	for name, id := range map[string]spiffeid.ID{
		"another trust domain": spiffeid.RequireFromPath(other, "/agents/one"),
		"no path":              acme.ID(),
		"zero":                 {},
	} {
		if _, err := issuer.X509SVID(id); !errors.Is(err, devstack.ErrForeignID) {
			t.Errorf("X.509-SVID, %s: got %v, want ErrForeignID", name, err)
		}
		if _, err := issuer.JWTSVID(id, "a"); !errors.Is(err, devstack.ErrForeignID) {
			t.Errorf("JWT-SVID, %s: got %v, want ErrForeignID", name, err)
		}
		if _, err := issuer.ServeWorkload(t.TempDir()+"/s", id); !errors.Is(err, devstack.ErrForeignID) {
			t.Errorf("Workload API, %s: got %v, want ErrForeignID", name, err)
		}
	}
	if _, err := issuer.JWTSVID(agent); err == nil {
		t.Error("a JWT-SVID without an audience was issued")
	}
	if _, err := devstack.NewIssuer(devstack.IssuerConfig{}); err == nil {
		t.Error("an issuer without a trust domain was created")
	}
}

func TestRotateKeepsAndPruneDrops(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	oldX509, oldJWT := x509SVID(t, issuer), jwtSVID(t, issuer, "a")
	accepts := func(x *x509svid.SVID, token string) [2]bool {
		_, _, errX := x509svid.Verify(x.Certificates, issuer.Bundle())
		_, errJ := jwtsvid.ParseAndValidate(token, issuer.Bundle(), []string{"a"})
		return [2]bool{errX == nil, errJ == nil}
	}
	for step, change := range []struct {
		do       func() error
		sequence uint64
		old      bool
	}{
		{func() error { return nil }, 1, true},
		{issuer.Rotate, 2, true},
		{issuer.Prune, 3, false},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		if got, _ := issuer.Bundle().SequenceNumber(); got != change.sequence {
			t.Errorf("step %d: sequence: got %d, want %d", step, got, change.sequence)
		}
		if got := accepts(oldX509, oldJWT); got != [2]bool{change.old, change.old} {
			t.Errorf("step %d: old SVIDs accepted: got %v, want %v", step, got, change.old)
		}
		if got := accepts(x509SVID(t, issuer), jwtSVID(t, issuer, "a")); got != [2]bool{true, true} {
			t.Errorf("step %d: new SVIDs accepted: got %v, want both", step, got)
		}
	}
}

func TestIssuerResumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/issuer"
	first := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Dir: dir})
	if err := first.Rotate(); err != nil {
		t.Fatal(err)
	}
	second := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Dir: dir})
	if !first.Bundle().Equal(second.Bundle()) {
		t.Error("the bundle changed with a restart")
	}
	if _, err := jwtsvid.ParseAndValidate(jwtSVID(t, second, "a"), first.Bundle(), []string{"a"}); err != nil {
		t.Errorf("token from after the restart: %v", err)
	}
	if _, _, err := x509svid.Verify(x509SVID(t, second).Certificates, first.Bundle()); err != nil {
		t.Errorf("certificate from after the restart: %v", err)
	}
	firstKid, _ := first.JWTKey()
	if kid, _ := second.JWTKey(); kid != firstKid {
		t.Errorf("current key after the restart: got %s, want %s", kid, firstKid)
	}
	if _, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: other, Dir: dir}); err == nil {
		t.Error("another trust domain resumed the folder")
	}
}

func TestBundleEndpoint(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	server := httptest.NewServer(issuer.BundleHandler())
	defer server.Close()
	get := func(method string) (*http.Response, []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, text
	}
	resp, text := get(http.MethodGet)
	bundle, err := spiffebundle.Parse(acme, text)
	if err != nil || !bundle.Equal(issuer.Bundle()) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("GET: got %v %s, want the issuer's bundle", err, text)
	}
	if resp, _ := get(http.MethodPost); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d, want 405", resp.StatusCode)
	}
}

// curl checks the host name that it calls. Only the workload with that host has it in its SVID.
func TestHostsAreInTheSVIDsOfTheirWorkload(t *testing.T) {
	called := spiffeid.RequireFromPath(acme, "/called")
	issuer := newIssuer(t, devstack.IssuerConfig{
		TrustDomain: acme, Hosts: map[spiffeid.ID][]string{called: {"localhost", "127.0.0.1", "::1"}},
	})
	svid, err := issuer.X509SVID(called)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := svid.Certificates[0].VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := x509svid.Verify(svid.Certificates, issuer.Bundle().X509Bundle()); err != nil {
		t.Errorf("got %v, want an SVID still", err)
	}
	if other := x509SVID(t, issuer).Certificates[0]; len(other.DNSNames)+len(other.IPAddresses) != 0 {
		t.Errorf("got %v and %v for another workload, want no names", other.DNSNames, other.IPAddresses)
	}
}

// A prepared authority is in the bundle before it signs, so that no verifier meets an SVID of an unknown authority.
func TestPreparedAuthoritySignsOnceItIsActive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	issuer := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Dir: dir})
	before, _ := issuer.CA()
	if err := issuer.Prepare(); err != nil {
		t.Fatal(err)
	}
	if now, _ := issuer.CA(); !now.Equal(before) || len(issuer.Bundle().X509Authorities()) != 2 {
		t.Errorf("got %d authorities, and another one signs: %v", len(issuer.Bundle().X509Authorities()), !now.Equal(before))
	}
	resumed := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, Dir: dir})
	if now, _ := resumed.CA(); !now.Equal(before) {
		t.Error("after a restart an authority signs that was only prepared")
	}
	if err := issuer.Activate(); err != nil {
		t.Fatal(err)
	}
	if now, _ := issuer.CA(); now.Equal(before) {
		t.Error("the old authority signs after the activation")
	}
	if err := issuer.Prune(); err != nil {
		t.Fatal(err)
	}
	if left := issuer.Bundle().X509Authorities(); len(left) != 1 || left[0].Equal(before) {
		t.Errorf("got %d authorities after pruning, want the active one", len(left))
	}
}
