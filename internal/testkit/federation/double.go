// Package federation has doubles of systems that exchange the tokens of an OpenID issuer for credentials of their own: AWS, Google
// Cloud, Microsoft Entra with Azure Storage, Anthropic and OpenAI. Each double is a server over TLS. It reads the keys of the
// issuer by OpenID discovery over TLS, with a library that the issuer has no part in.
//
// The doubles follow what the systems publish: the AWS references of the Security Token Service and of S3 and its Signature
// Version 4, the Google references of the Security Token Service, of the IAM Service Account Credentials API and of the JSON API
// of Cloud Storage, the Microsoft identity platform's client credentials flow and the Blob service REST API, the reference of
// Workload Identity Federation at Anthropic, and the reference of the workload identity token exchange at OpenAI. Where these say
// nothing, the doubles expect what the official SDKs send. A test runs the official SDKs against each double.
//
// A double must never accept a call that the real system refuses. So it refuses everything that it does not know.
package federation

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/coreos/go-oidc/v3/oidc"
)

// Issuer is the OpenID issuer whose tokens a double accepts.
type Issuer struct {
	// URL is what the tokens have as iss. The discovery document is below it.
	URL string
	// HTTP reads the discovery document and the keys.
	HTTP *http.Client
}

// Trust is what a double requires of a token, for one of its roles or accounts. Audience and subject have to be equal.
type Trust struct {
	Audience, Subject string
}

// Faults are what goes wrong at a double. The zero value is a double that works.
type Faults struct {
	// Down cuts every connection before the double does anything.
	Down bool
	// Slow delays each exchange of a token. The token counts as exchanged after the delay.
	Slow time.Duration
	// Lost is the number of exchanges whose answer does not arrive: the double makes the credential, and cuts the connection.
	Lost int
	// Wider makes the double give more than a client asks for: another role at AWS, more scopes at Google and Anthropic.
	Wider bool
	// Once makes the double accept each jti once.
	Once bool
}

// Call is a request that a double got.
type Call struct {
	Method, Host, Path string
	// Status is the status of the answer; 0 means that the connection was cut.
	Status int
}

// Credential is something that a double has made for a token.
type Credential struct {
	// Of is the role, the account or the client that the credential acts as, and Scope what it may do where the system has scopes.
	Of, Scope string
	// Subject is the sub of the token, and ID its jti.
	Subject, ID string
	// Secrets are what a holder can prove the credential by.
	Secrets []string
	// Answered is false if the answer was lost.
	Answered bool
	Expires  time.Time
}

// Config is what all doubles need.
type Config struct {
	Issuer    Issuer
	Authority *Authority
	// Now is the double's clock; nil is the system's.
	Now func() time.Time
	// Once makes the double accept each jti once, whatever its faults.
	Once bool
}

// double is what all doubles have.
type double struct {
	*listening
	issuer Issuer
	now    func() time.Time
	once   bool

	mu     sync.Mutex
	faults Faults
	used   map[string]bool // by jti
	calls  []Call
	tokens []string               // every token that a caller presented
	made   map[string]*Credential // by what a caller presents
}

func newDouble(c Config) *double {
	d := &double{issuer: c.Issuer, now: c.Now, once: c.Once, used: map[string]bool{}, made: map[string]*Credential{}}
	if d.now == nil {
		d.now = time.Now
	}
	return d
}

// Set changes what goes wrong from now on.
func (d *double) Set(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// Trust makes the double accept the tokens of another issuer, and of no other.
func (d *double) Trust(issuer Issuer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.issuer = issuer
}

// Tokens returns every token that a caller presented, also those that the double refused.
func (d *double) Tokens() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.tokens)
}

// Calls returns all calls until now.
func (d *double) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Made returns all credentials until now, the first one first.
func (d *double) Made() []Credential {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Credential
	for _, c := range d.made {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b Credential) int { return a.Expires.Compare(b.Expires) })
	return all
}

// Alive returns the credentials that have not expired.
func (d *double) Alive() []Credential {
	now := d.now()
	return slices.DeleteFunc(d.Made(), func(c Credential) bool { return !c.Expires.After(now) })
}

// answer is an answer that has not been sent.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func jsonAnswer(status int, body any) *answer {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // only types of this package
	}
	return &answer{status: status, header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}, body: text}
}

// serve answers a call with handle, or as the faults say.
func (d *double) serve(w http.ResponseWriter, r *http.Request, handle func(*http.Request) *answer) {
	call := Call{Method: r.Method, Host: r.Host, Path: r.URL.Path}
	keep := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls = append(d.calls, call)
	}
	d.mu.Lock()
	down := d.faults.Down
	d.mu.Unlock()
	if down {
		keep()
		panic(http.ErrAbortHandler)
	}
	a := handle(r)
	if a == nil { // its answer is lost
		keep()
		panic(http.ErrAbortHandler)
	}
	call.Status = a.status
	keep()
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(a.body)
	}
}

// Why a double refuses a token.
var (
	errIssuer    = errors.New("the issuer is unknown")
	errKeys      = errors.New("the keys of the issuer cannot be read")
	errMalformed = errors.New("the token is malformed")
	errAlgorithm = errors.New("the algorithm is not supported")
	errSignature = errors.New("the signature does not match")
	errAudience  = errors.New("the audience is another")
	errSubject   = errors.New("the subject is another")
	errExpired   = errors.New("the token has expired")
	errEarly     = errors.New("the token is not valid yet")
	errUsed      = errors.New("the jti was used before")
)

// claims are those that the doubles look at.
type claims struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
	ID      string `json:"jti"`
	// Audience has to be one string: several systems refuse a list.
	Audience  string `json:"aud"`
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expires   int64  `json:"exp"`
}

// skew is by how much the clocks of issuer and double may differ.
const skew = 5 * time.Second

// verify checks a token. If the faults say so, the token is used up when verify returns no error.
func (d *double) verify(ctx context.Context, raw string, trust Trust, algorithms ...string) (claims, error) {
	var head struct {
		Algorithm string `json:"alg"`
		Type      string `json:"typ"`
		Key       string `json:"kid"`
	}
	var c claims
	d.mu.Lock()
	d.tokens = append(d.tokens, raw)
	issuer := d.issuer
	d.mu.Unlock()
	parts := strings.Split(raw, ".")
	if len(parts) != 3 || decode(parts[0], &head) != nil || decode(parts[1], &c) != nil || head.Key == "" || head.Type != "JWT" {
		return c, errMalformed
	}
	if c.Issuer != issuer.URL {
		return c, errIssuer
	}
	if !slices.Contains(algorithms, head.Algorithm) {
		return c, errAlgorithm
	}
	ctx = oidc.ClientContext(ctx, issuer.HTTP)
	provider, err := oidc.NewProvider(ctx, issuer.URL)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errKeys, err)
	}
	// The order of the checks below is that of the double, so the library checks what it alone can.
	verifier := provider.VerifierContext(ctx, &oidc.Config{SkipClientIDCheck: true, SkipExpiryCheck: true, SupportedSigningAlgs: algorithms})
	if _, err := verifier.Verify(ctx, raw); err != nil {
		return c, fmt.Errorf("%w: %w", errSignature, err)
	}
	now := d.now()
	switch {
	case c.IssuedAt == 0 || c.Expires == 0 || c.ID == "":
		return c, errMalformed
	case now.Add(skew).Before(time.Unix(max(c.IssuedAt, c.NotBefore), 0)):
		return c, errEarly
	case !now.Before(time.Unix(c.Expires, 0)):
		return c, errExpired
	case c.Audience != trust.Audience:
		return c, errAudience
	case c.Subject != trust.Subject:
		return c, errSubject
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if (d.once || d.faults.Once) && d.used[c.ID] {
		return c, errUsed
	}
	d.used[c.ID] = true
	return c, nil
}

// decode reads a part of a token.
func decode(part string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// give makes a credential, after the delay that the faults say. It returns nil in place of the answer if the answer is lost.
func (d *double) give(ctx context.Context, key string, c Credential, a *answer) *answer {
	d.mu.Lock()
	slow := d.faults.Slow
	d.mu.Unlock()
	if slow > 0 {
		// The far side goes on when the caller has hung up.
		time.Sleep(slow)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Answered = ctx.Err() == nil
	if d.faults.Lost > 0 {
		d.faults.Lost--
		c.Answered = false
	}
	d.made[key] = &c
	if !c.Answered {
		return nil
	}
	return a
}

func (d *double) wider() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.faults.Wider
}

// bearer returns the credential that a call presents as a bearer token. It returns nil if the double did not make it, or it has
// expired.
func (d *double) bearer(r *http.Request) *Credential {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return nil
	}
	return d.held(token)
}

func (d *double) held(key string) *Credential {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.made[key]
	if c == nil || !c.Expires.After(d.now()) {
		return nil
	}
	return c
}

// body reads a request's body, which has to be of one content type.
func body(r *http.Request, kind string) ([]byte, bool) {
	if mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(mediaType) != kind {
		return nil, false
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	return text, err == nil
}

// strict decodes JSON that may have no other members.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func random() string { return rand.Text() + rand.Text() }

// Authority issues the certificates of doubles.
type Authority struct {
	// File has the authority's certificate, for clients.
	File string
	// Pool has it too.
	Pool *x509.CertPool

	certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority creates an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{File: filepath.Join(t.TempDir(), "clouds.pem"), Pool: x509.NewCertPool()}
	// Python's and Go's verifiers require that names of authorities differ.
	a.certificate, a.key = testkit.Certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority of clouds"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	a.Pool.AddCert(a.certificate)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	if err := os.WriteFile(a.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// listening is where a double is served.
type listening struct {
	// Addr is the address on loopback, with the port. URL is the base URL, by the name localhost.
	Addr, URL string
	// Names are the host names that the system publishes, to which its certificate belongs too.
	Names []string
}

// Host returns the name localhost with the port.
func (l *listening) Host() string { return strings.TrimPrefix(l.URL, "https://") }

// Serve serves a handler over TLS until the test ends, under its published names and localhost.
func (a *Authority) serve(t testing.TB, h http.Handler, names ...string) *listening {
	t.Helper()
	certificate, key := testkit.Certificate(t, &x509.Certificate{
		DNSNames: append([]string{"localhost"}, names...), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.certificate, a.key)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving: %v", err)
		}
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return &listening{Addr: listener.Addr().String(), URL: "https://localhost:" + port, Names: names}
}
