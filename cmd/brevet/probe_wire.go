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
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

const (
	// nowhere is the id of nothing, and elsewhere the name of nobody (RFC 2606).
	nowhere   = "00000000-0000-4000-8000-000000000000"
	elsewhere = "brevet-probe.invalid"
	// mostProbed is how much of an answer is read, in bytes.
	mostProbed = 64 << 10
	// refusalTakes is how long the refusal of a certificate may be on its way: in TLS 1.3 it comes after the handshake.
	refusalTakes = 500 * time.Millisecond
)

// prober tries one deployment, as one workload.
type prober struct {
	cmd     ProbeCmd
	base    *url.URL
	id      spiffeid.ID
	own     *tls.Certificate
	trust   *tls.Config // how the broker is known
	broker  *client.Client
	console *http.Client
	params  map[string]any
	// token is what was asked for to be released, and brief what was asked for to expire, at ends.
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

// attempt is a call as it goes over the wire.
type attempt struct {
	method, path string
	host         string // instead of the broker's own
	header       map[string]string
	body         string
	as           *tls.Certificate // nil shows none
}

// answered is what came back.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// knows is how a call knows the broker, and what certificate it shows, if any.
func (p *prober) knows(as *tls.Certificate) *tls.Config {
	cfg := p.trust.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if as != nil { // whatever authorities the broker says that it takes
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return as, nil }
	}
	return cfg
}

// send makes a call over a connection of its own, and follows nothing.
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

// reach is an error when nothing that is tried would say anything.
func (p *prober) reach(ctx context.Context) error {
	got, err := p.send(ctx, attempt{method: http.MethodGet, path: "/livez"})
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("%s/livez answers with %d", p.base, got.status)
	}
	return err
}

// refused holds an answer to the one that is due.
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

// dial opens a connection that ends soon.
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

// alertOf is how the far side has said no in TLS, nil where it has not.
func alertOf(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err
	}
	return nil
}

func alerted(err error) bool { return alertOf(err) != nil }

// errBadVersion is what TLS says of a version that is not taken (RFC 8446, 6.2).
const errBadVersion tls.AlertError = 70

// speaks tries one version of TLS alone. Who chooses it has taken it, whatever is wanted of the caller then. Only an alert about
// the version says that it is not taken: any other may be about something else that was shown or was not.
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
		return sight{broken, "the version is taken"}
	case alerted(err) && alertOf(err).Error() == errBadVersion.Error():
		return sight{held, "the version is not taken"}
	case err == nil:
		return sight{untold, "a handshake without a certificate"}
	}
	return sight{untold, err.Error()}
}

// handshake tries one that has to fail.
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
		return sight{broken, "the handshake goes through"}
	}
	return p.stranger(raw, conn)
}

// stranger calls over a connection whose certificate has to be refused, unless that has come already.
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
	case err != nil: // what came is no HTTP: the end, or an alert of TLS
		return sight{held, "no answer"}
	}
	_ = resp.Body.Close()
	return refused(answered{status: resp.StatusCode}, nil, http.StatusBadRequest)
}

// nobodys is the template of a certificate in the prober's own name, which is not the authority's.
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

// signedElsewhere is by an authority of the same trust domain's name that nobody has heard of.
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

// unsigned is a JWT-SVID of the prober that nobody has signed.
func (p *prober) unsigned() (string, error) {
	now := time.Now()
	payload, err := json.Marshal(map[string]any{
		"sub": p.id.String(), "aud": []string{p.cmd.Audience}, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	return encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(payload) + ".", err
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// prolonged is a token whose end somebody has put off.
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

// openPages is a client for the console.
func openPages(at, ca string) (*http.Client, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost") {
		return nil, errors.New("--console: it must be https://host[:port], or http of localhost")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("--console-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--console-ca: %s holds no PEM certificate", ca)
		}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, CheckRedirect: followNothing}, nil
}
