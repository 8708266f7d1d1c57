package hostile_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// certMaker makes a certificate to present in a handshake.
type certMaker func(t *testing.T, w *world) tls.Certificate

// unshaken is a handshake that fails and leaves one entry, or none if detail is "": in that case Go's TLS refuses by itself.
func unshaken(name, detail string, make certMaker) try {
	return try{name, func(t *testing.T, w *world) {
		_ = w.fails(t, detail, func(s *testkit.Stack) *tls.Config { return showing(s, make(t, w)) })
		w.hush(t)
	}}
}

// fails checks that a handshake fails, and checks Vault and the ledger. It returns the error that the client got.
func (w *world) fails(t *testing.T, detail string, cfg func(*testkit.Stack) *tls.Config) error {
	t.Helper()
	s := w.next()
	asked := len(w.vault.since(0))
	failure := shake(t, s, cfg(s))
	var late net.Error
	if failure == nil || errors.As(failure, &late) && late.Timeout() {
		t.Errorf("got %v, want the handshake to fail", failure)
	}
	if calls := w.vault.since(asked); len(calls) != 0 {
		t.Errorf("Vault was asked for %v, want nothing", calls)
	}
	entries := w.added(t)
	if detail != "" && len(entries) == 0 { // a client may give up before the replica does
		eventually(t, "the entry", func() bool { entries = w.added(t); return len(entries) > 0 })
	}
	refusal{0, "unauthenticated", detail}.recorded(t, entries)
	for _, e := range entries {
		if e.Body["operation"] != "tlsHandshake" || e.Body["subject"] != nil {
			t.Errorf("the entry says %v, want a handshake of nobody", e.Body)
		}
	}
	return failure
}

// shake connects and reads: in TLS 1.3 only a read shows the client that it was refused.
func shake(t *testing.T, s *testkit.Stack, cfg *tls.Config) error {
	t.Helper()
	cfg.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: cfg}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	// A refused connection ends with an alert. An accepted one would get an answer.
	_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: "+s.Addr+"\r\nConnection: close\r\n\r\n")
	_, err = io.ReadAll(conn)
	return err
}

// spoiled signs a leaf of agent with one change.
func spoiled(change func(*x509.Certificate)) certMaker {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		template := leaf()
		change(template)
		return w.forged.svid(t, template)
	}
}

// named signs a leaf whose URI names are exactly these texts.
func named(uris ...string) certMaker {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		return spoiled(func(c *x509.Certificate) { c.URIs, c.ExtraExtensions = nil, []pkix.Extension{uriSAN(t, uris...)} })(t, w)
	}
}

// through signs a leaf by an intermediate with one change.
func through(change func(*x509.Certificate)) certMaker {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		template := authority("acme.test")
		template.SerialNumber, template.Subject.CommonName = big.NewInt(3), "intermediate"
		change(template)
		interKey, key := ecKey(t), ecKey(t)
		inter := certify(t, template, w.forged.root, interKey.Public(), w.forged.key)
		return keyPair(key, certify(t, leaf(), inter, key.Public(), interKey), inter)
	}
}

// keyOf signs a leaf for a key of some kind.
func keyOf(make func(*testing.T) crypto.Signer) certMaker {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		key := make(t)
		return keyPair(key, certify(t, leaf(), w.forged.root, key.Public(), w.forged.key))
	}
}

// byAuthority signs a leaf by an authority with a key of some kind, which is trusted for this one handshake.
func byAuthority(bits int, algorithm x509.SignatureAlgorithm) certMaker {
	return func(t *testing.T, w *world) tls.Certificate {
		t.Helper()
		root := rsaKey(t, bits)
		template := authority("acme.test")
		cert := certify(t, template, nil, root.Public(), root)
		bundle := w.bundle.Clone()
		bundle.AddX509Authority(cert)
		w.trust(t, bundle)
		spoilt := leaf()
		spoilt.SignatureAlgorithm = algorithm
		key := ecKey(t)
		return keyPair(key, certify(t, spoilt, cert, key.Public(), root))
	}
}

const (
	profile    = "svid_profile"
	unverified = "svid_signature"
	tooLarge   = "svid_too_large"
)

var x509Rows = []row{
	{h: "H19", sent: "two URI names", then: "the handshake fails", tries: []try{
		unshaken("two SPIFFE IDs", profile, named(agent, admin)),
		unshaken("another URI", profile, named(agent, "https://acme.test/")),
	}},
	{h: "H20", sent: "a CA certificate, or a key usage that signs certificates or does not fit a client", then: "the handshake fails", tries: []try{
		unshaken("CA", profile, spoiled(func(c *x509.Certificate) { c.IsCA = true })),
		unshaken("keyCertSign", profile, spoiled(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign })),
		unshaken("cRLSign", profile, spoiled(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign })),
		unshaken("no digitalSignature", profile, spoiled(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement })),
		unshaken("no key usage", profile, spoiled(func(c *x509.Certificate) { c.KeyUsage = 0 })),
		unshaken("not critical", profile, spoiled(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Value: []byte{asn1.TagBitString, 2, 7, 0x80}}}
		})),
		unshaken("no clientAuth", profile, spoiled(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
		unshaken("any usage", profile, spoiled(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })),
	}},
	{h: "H21", sent: "a SPIFFE ID without a path", then: "the handshake fails", tries: []try{
		unshaken("none", "spiffe_id_invalid", named("spiffe://acme.test")),
		unshaken("a slash", "spiffe_id_invalid", named("spiffe://acme.test/")),
	}},
	{h: "H22", sent: "an ID of our trust domain, signed by a federated trust domain", then: "the handshake fails", tries: []try{
		unshaken("federated", unverified, func(t *testing.T, w *world) tls.Certificate {
			ca, signer := w.s[0].Other.CA()
			return forgery{ca, signer}.svid(t, leaf())
		}),
		unshaken("self-signed", unverified, func(t *testing.T, _ *world) tls.Certificate {
			key := ecKey(t)
			return keyPair(key, certify(t, leaf(), nil, key.Public(), key))
		}),
		unshaken("ours by name", unverified, func(t *testing.T, w *world) tls.Certificate {
			another, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: w.s[0].Acme.TrustDomain()})
			if err != nil {
				t.Fatal(err)
			}
			ca, signer := another.CA()
			return forgery{ca, signer}.svid(t, leaf())
		}),
	}},
	{h: "H23", sent: "outside the name constraints of its authority", then: "the handshake fails", tries: []try{
		unshaken("permitted elsewhere", unverified, through(func(c *x509.Certificate) { c.PermittedURIDomains = []string{"else.test"} })),
		unshaken("excluded here", unverified, through(func(c *x509.Certificate) { c.ExcludedURIDomains = []string{"acme.test"} })),
		unshaken("no authority", unverified, through(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })),
	}},
	{h: "H24", sent: "expired, or not valid yet", then: "the handshake fails", tries: []try{
		unshaken("expired", "svid_expired", spoiled(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-6 * time.Second) })),
		unshaken("future", "svid_not_yet_valid", spoiled(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(10 * time.Minute) })),
		unshaken("an expired authority", "svid_expired", through(func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(time.Minute) })),
	}},
	{h: "H25", sent: "a session resumed after the authority is gone", then: "the session is not resumed; the handshake fails", tries: []try{{"resumed", resumption}}},
	{h: "H26", sent: "an SVID that expires on a live connection", then: "401 on the same connection", apart: true, tries: []try{
		{"HTTP/2", liveConnection("h2")}, {"HTTP/1.1", liveConnection("http/1.1")},
	}},
	{h: "H27", sent: "TLS below 1.3, RSA below 2048 bits, SHA-1", then: "the handshake fails", tries: []try{
		{"TLS 1.1", oldVersion(tls.VersionTLS11)},
		{"TLS 1.2", oldVersion(tls.VersionTLS12)},
		unshaken("RSA 1024", "svid_weak_key", keyOf(rsaOf(1024))),
		unshaken("P-224", "svid_weak_key", keyOf(curve(elliptic.P224()))),
		unshaken("an authority of RSA 1024", unverified, byAuthority(1024, x509.SHA256WithRSA)),
		unshaken("SHA-1", unverified, byAuthority(2048, x509.SHA1WithRSA)),
		unproven("a JWT by RSA 1024", "svid_weak_key", byKey("RS256", rsaOf(1024))),
	}},
	{h: "H28", sent: "a flood of key updates", then: "the connection is closed; other callers are served", tries: []try{{"100", keyUpdates}}},
	{h: "H29", sent: "headers that claim an identity", then: "401, and nothing happens under another identity", tries: []try{
		refused("alone", call{auth: "none", headers: claiming(agent)}, refusal{401, "unauthenticated", "no_identity"}),
		{"beside an SVID", headersOfAnother},
	}},
	{h: "H30", sent: "a certificate of A with a token of B", then: "401", tries: []try{
		refusedBy("a JWT-SVID", func(t *testing.T, w *world, s *testkit.Stack) call {
			return call{cert: shown(t, s, agent), auth: "Bearer " + s.JWT(t, twin)}
		}, refusal{401, "unauthenticated", "identity_mismatch"}),
		refusedBy("an ID token", func(t *testing.T, w *world, s *testkit.Stack) call {
			return call{method: "GET", target: "/v1/approvals", cert: shown(t, s, agent), auth: "Bearer " + s.IDToken(t, "bob")}
		}, refusal{401, "unauthenticated", "spiffe_id_invalid"}),
		refusedBy("another scheme", func(t *testing.T, w *world, s *testkit.Stack) call {
			return call{cert: shown(t, s, agent), auth: "Basic " + marker}
		}, refusal{401, "unauthenticated", "authorization_malformed"}),
	}},
	{h: "H31", sent: "a chain of 100 certificates, 10,000 names", then: "the handshake fails", tries: []try{
		unshaken("100 certificates", tooLarge, func(t *testing.T, w *world) tls.Certificate {
			pair := w.forged.svid(t, leaf())
			for len(pair.Certificate) < 100 {
				pair.Certificate = append(pair.Certificate, w.forged.root.Raw)
			}
			return pair
		}),
		unshaken("65 names", tooLarge, spoiled(func(c *x509.Certificate) { c.DNSNames = names(64) })),
		unshaken("10,000 names", tooLarge, spoiled(func(c *x509.Certificate) { c.DNSNames = names(10_000) })),
	}},
}

func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("n%d.test", i)
	}
	return all
}

// shown returns an SVID of that ID, for a raw call.
func shown(t *testing.T, s *testkit.Stack, id string) *tls.Certificate {
	t.Helper()
	svid := s.X509(t, id)
	pair := keyPair(svid.PrivateKey, svid.Certificates...)
	return &pair
}

// resumption uses everything that a client may keep from earlier connections, after its authority is no longer trusted.
func resumption(t *testing.T, w *world) {
	cfg := func(s *testkit.Stack) *tls.Config {
		c := showing(s, w.forged.svid(t, leaf()))
		c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		return c
	}(w.s[0])
	for range 2 {
		if err := shake(t, w.s[0], cfg); err != nil {
			t.Fatalf("before: %v", err)
		}
	}
	if session, ok := cfg.ClientSessionCache.Get(w.s[0].Addr); ok || session != nil {
		t.Error("got a session ticket, want none")
	}
	w.trust(t, w.s[0].Acme.Bundle()) // without the forged authority
	w.tried.Add(w.tried.Load() % 2)
	w.tried.Add(1) // makes next return the replica that the client has connected to
	_ = w.fails(t, unverified, func(*testkit.Stack) *tls.Config { return cfg })
}

// liveConnection sends two calls over one connection, whose SVID expires between them.
func liveConnection(protocol string) func(*testing.T, *world) {
	return func(t *testing.T, _ *world) {
		w := newWorld(t, staffed)
		s := w.s[0]
		cfg := s.ClientTLS(s.X509(t, agent))
		transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: protocol == "h2", MaxConnsPerHost: 1}
		t.Cleanup(transport.CloseIdleConnections)
		get := func() (*http.Response, string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/whoami", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			return resp, string(text)
		}
		if before, text := get(); before.StatusCode != http.StatusOK || before.ProtoMajor == 2 != (protocol == "h2") {
			t.Fatalf("before: got %s %s %s", before.Proto, before.Status, text)
		}
		w.ahead.Store(int64(time.Hour + 6*time.Second))
		w.added(t)
		after, text := get()
		if after.StatusCode != http.StatusUnauthorized || !strings.Contains(text, `"unauthenticated"`) {
			t.Errorf("after its end: got %s %s", after.Status, text)
		}
		givesNothingAway(t, text)
		refusal{401, "unauthenticated", "svid_expired"}.recorded(t, w.added(t))
	}
}

func oldVersion(version uint16) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		err := w.fails(t, "", func(s *testkit.Stack) *tls.Config {
			cfg := showing(s, *shown(t, s, agent))
			cfg.MinVersion, cfg.MaxVersion = version, version
			return cfg
		})
		var said *net.OpError // an alert of the replica; a refusal by the client itself is none
		if !errors.As(err, &said) || said.Op != "remote error" || !strings.Contains(said.Err.Error(), "protocol version") {
			t.Errorf("got %v, want the replica to refuse the version", err)
		}
	}
}

// keyUpdates floods a replica with records that only change keys.
func keyUpdates(t *testing.T, w *world) {
	s := w.next()
	raw, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	var log strings.Builder
	cfg := showing(s, *shown(t, s, agent))
	cfg.KeyLogWriter, cfg.ServerName, cfg.NextProtos = &log, "127.0.0.1", []string{"http/1.1"}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	flood := testkit.NewKeyUpdates(t, log.String(), conn.ConnectionState().CipherSuite)
	// A connection without a call would be closed by the server after some seconds.
	_ = raw.SetDeadline(time.Now().Add(3 * time.Second))
	for range 100 {
		if _, err := raw.Write(flood.Next(t)); err != nil {
			break // cut off already
		}
	}
	var late net.Error
	if _, err := io.Copy(io.Discard, raw); errors.As(err, &late) && late.Timeout() {
		t.Error("the connection is still open after 100 updates")
	}
	w.token(t, agent, issues)
	if entries := w.added(t); len(entries) != 1 {
		t.Errorf("got %+v, want the other's token alone", entries)
	}
}

// claiming returns the headers that TLS-terminating proxies add.
func claiming(id string) []string {
	return []string{
		"X-Forwarded-Client-Cert: By=" + marker + ";URI=" + id, "X-SPIFFE-ID: " + id, "X-Real-IP: 10.0.0.1",
		"X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "X-Request-Id: " + marker, "X-Forwarded-User: " + marker,
	}
}

// headersOfAnother checks that the credential is issued to the SVID, whatever the headers say.
func headersOfAnother(t *testing.T, w *world) {
	got := call{headers: claiming(admin)}.send(t, w.next())
	if got.status != http.StatusCreated {
		t.Fatalf("got %d %s", got.status, got.text)
	}
	entries := w.added(t)
	if len(entries) != 1 || !strings.Contains(fmt.Sprint(entries[0].Body), agent) || strings.Contains(fmt.Sprint(entries[0].Body), admin) {
		t.Errorf("got %v, want one entry, of the agent alone", entries)
	}
	if log := w.s[0].Log.String(); strings.Contains(log, "10.0.0.1") || strings.Contains(log, marker) {
		t.Error("the log believes the headers")
	}
}
