package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

const (
	// nowhere is an id that does not exist, and elsewhere a host name that belongs to nobody (RFC 2606).
	nowhere   = "00000000-0000-4000-8000-000000000000"
	elsewhere = "brevet-probe.invalid"
	// mostProbed is how much of a response is read, in bytes.
	mostProbed = 64 << 10
	// refusalTakes is how long the refusal of a certificate may take to arrive. In TLS 1.3 it comes after the handshake.
	refusalTakes = 500 * time.Millisecond
)

// prober checks one deployment as one workload.
type prober struct {
	cmd     ProbeCmd
	base    *url.URL
	id      spiffeid.ID
	own     *tls.Certificate
	trust   *tls.Config // verifies the broker
	broker  *client.Client
	console *http.Client
	params  map[string]any
	// token is the credential to release. brief is the one to let expire, which has happened by ends.
	token, brief *client.Token
	ends         time.Time
}

func tlsPair(svid *x509svid.SVID) *tls.Certificate {
	pair := &tls.Certificate{PrivateKey: svid.PrivateKey}
	for _, cert := range svid.Certificates {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// attempt is an HTTP call exactly as it is sent.
type attempt struct {
	method, path string
	host         string // instead of the broker's own
	header       map[string]string
	body         string
	as           *tls.Certificate // client certificate; nil for none
}

// answered is the response to an attempt.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// knows returns the TLS configuration that verifies the broker, and that presents a certificate if as is set.
func (p *prober) knows(as *tls.Certificate) *tls.Config {
	cfg := p.trust.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if as != nil { // presented whatever authorities the broker accepts
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return as, nil }
	}
	return cfg
}

// send makes a call over a new connection, and follows no redirects.
func (p *prober) send(ctx context.Context, a attempt) (answered, error) {
	transport := &http.Transport{TLSClientConfig: p.knows(a.as), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	return a.over(ctx, &http.Client{Transport: transport, CheckRedirect: followNothing}, p.base.Scheme+"://"+p.base.Host)
}

func followNothing(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (a attempt) over(ctx context.Context, by *http.Client, base string) (answered, error) {
	ctx, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, a.method, base+a.path, strings.NewReader(a.body))
	if err != nil {
		return answered{}, err
	}
	req.Host = a.host
	for name, value := range a.header {
		req.Header.Set(name, value)
	}
	resp, err := by.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostProbed))
	return answered{resp.StatusCode, resp.Header, body}, err
}

// reach returns an error if the broker cannot be reached, so that no check would be conclusive.
func (p *prober) reach(ctx context.Context) error {
	got, err := p.send(ctx, attempt{method: http.MethodGet, path: "/livez"})
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("%s/livez returned status %d", p.base, got.status)
	}
	return err
}

// refused compares a response with the expected refusal. Rate limits and server errors are inconclusive.
func refused(got answered, err error, want int) sight {
	switch {
	case err != nil:
		return sight{untold, err.Error()}
	case got.status == want:
		return sight{held, fmt.Sprint(want)}
	case got.status == http.StatusTooManyRequests || got.status >= http.StatusInternalServerError:
		return sight{untold, fmt.Sprintf("%d instead of %d", got.status, want)}
	default:
		return sight{broken, fmt.Sprintf("%d instead of %d", got.status, want)}
	}
}

// dial opens a connection with a deadline of probeCall.
func (p *prober) dial(ctx context.Context) (net.Conn, error) {
	address := p.base.Host
	if p.base.Port() == "" {
		address = net.JoinHostPort(p.base.Hostname(), "443")
	}
	conn, err := (&net.Dialer{Timeout: probeCall}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(probeCall)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// alertOf returns the TLS alert that the other side sent, or nil if it sent none.
func alertOf(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err
	}
	return nil
}

func alerted(err error) bool { return alertOf(err) != nil }

// errBadVersion is the TLS alert for a version that is not supported (RFC 8446, section 6.2).
const errBadVersion tls.AlertError = 70

// speaks offers one TLS version alone. A server that chooses the version accepts it, whatever it requires of the client
// afterwards. Only an alert about the version proves that it is refused. Any other alert may be about something else that
// the client presented or did not present.
func (p *prober) speaks(ctx context.Context, version uint16) sight {
	raw, err := p.dial(ctx)
	if err != nil {
		return sight{untold, err.Error()}
	}
	defer func() { _ = raw.Close() }()
	taken := false
	err = tls.Client(raw, &tls.Config{
		MinVersion: version, MaxVersion: version, ServerName: p.base.Hostname(),
		InsecureSkipVerify: true, //nolint:gosec // whose certificate it is does not matter, and nothing is sent over it
		VerifyConnection:   func(tls.ConnectionState) error { taken = true; return nil },
	}).HandshakeContext(ctx)
	switch {
	case taken:
		return sight{broken, "the version is accepted"}
	case alerted(err) && alertOf(err).Error() == errBadVersion.Error():
		return sight{held, "the version is refused"}
	case err == nil:
		return sight{untold, "the handshake succeeded without a server certificate"}
	}
	return sight{untold, err.Error()}
}

// handshake tries a TLS handshake that must fail.
func (p *prober) handshake(ctx context.Context, cfg *tls.Config) sight {
	raw, err := p.dial(ctx)
	if err != nil {
		return sight{untold, err.Error()}
	}
	defer func() { _ = raw.Close() }()
	cfg.ServerName = p.base.Hostname()
	conn := tls.Client(raw, cfg)
	switch err := conn.HandshakeContext(ctx); {
	case alerted(err):
		return sight{held, "the handshake fails"}
	case err != nil:
		return sight{untold, err.Error()}
	case conn.ConnectionState().Version < tls.VersionTLS13:
		return sight{broken, "the handshake succeeds"}
	}
	return p.stranger(raw, conn)
}

// stranger calls over a connection whose certificate must be refused, unless the refusal has already arrived.
func (p *prober) stranger(raw net.Conn, conn *tls.Conn) sight {
	_ = raw.SetReadDeadline(time.Now().Add(refusalTakes))
	_, err := conn.Read(make([]byte, 1))
	if alerted(err) || errors.Is(err, io.EOF) {
		return sight{held, "the handshake fails"}
	}
	_ = raw.SetReadDeadline(time.Now().Add(probeCall))
	_, _ = fmt.Fprintf(conn, "GET /v1/whoami HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", p.base.Host)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if alerted(err) {
		return sight{held, "the handshake fails"}
	}
	if err != nil {
		return sight{untold, err.Error()}
	}
	_ = resp.Body.Close()
	return refused(answered{status: resp.StatusCode}, nil, http.StatusUnauthorized)
}

// plainly calls without TLS.
func (p *prober) plainly(ctx context.Context) sight {
	conn, err := p.dial(ctx)
	if err != nil {
		return sight{untold, err.Error()}
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", p.base.Host)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return sight{untold, err.Error()}
	case err != nil: // the response is not HTTP: EOF, or a TLS alert
		return sight{held, "no HTTP response"}
	}
	_ = resp.Body.Close()
	return refused(answered{status: resp.StatusCode}, nil, http.StatusBadRequest)
}

// nobodys returns the template of a certificate in the prober's name that the real authority does not sign.
func (p *prober) nobodys() *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, URIs: []*url.URL{p.id.URL()},
	}
}

func (p *prober) selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := p.nobodys()
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// signedElsewhere returns a certificate signed by an unknown authority that uses the name of the same trust domain.
func (p *prober) signedElsewhere() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf := p.nobodys()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{p.id.TrustDomain().ID().URL()},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), signer)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// unsigned returns a JWT-SVID of the prober without a signature.
func (p *prober) unsigned() (string, error) {
	now := time.Now()
	payload, err := json.Marshal(map[string]any{
		"sub": p.id.String(), "aud": []string{p.cmd.Audience}, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	return encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(payload) + ".", err
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// prolonged returns the token with a later expiry and its old signature.
func prolonged(raw string) (string, error) {
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return "", errors.New("the issued credential is not a JWT: use a scope with a JWT credential")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	claims["exp"] = time.Now().Add(24 * time.Hour).Unix()
	if payload, err = json.Marshal(claims); err != nil {
		return "", err
	}
	return parts[0] + "." + encode(payload) + "." + parts[2], nil
}

// openPages returns a client for the console.
func openPages(at, ca string) (*http.Client, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost") {
		return nil, errors.New("--console: must be https://host[:port], or http://localhost[:port]")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		roots, err := readRoots(ca)
		if err != nil {
			return nil, fmt.Errorf("--console-ca: %w", err)
		}
		cfg.RootCAs = roots
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, CheckRedirect: followNothing}, nil
}
