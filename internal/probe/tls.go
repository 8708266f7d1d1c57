package probe

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
)

// refusalTakes is how long the refusal of a certificate may take to arrive. In TLS 1.3 it comes after the handshake.
const refusalTakes = 500 * time.Millisecond

// knows returns the TLS configuration that verifies the broker, and that presents a certificate if as is set.
func (p *prober) knows(as *tls.Certificate) *tls.Config {
	cfg := p.trust.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if as != nil { // presented whatever authorities the broker accepts
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return as, nil }
	}
	return cfg
}

// dial opens a connection with a deadline of callWithin.
func (p *prober) dial(ctx context.Context) (net.Conn, error) {
	address := p.cfg.Server.Host
	if p.cfg.Server.Port() == "" {
		address = net.JoinHostPort(p.cfg.Server.Hostname(), "443")
	}
	conn, err := (&net.Dialer{Timeout: callWithin}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(p.cfg.Now().Add(callWithin)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// alertOf returns the text of the TLS alert that the other side sent, or nothing if it sent none.
func alertOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}

// errBadVersion is the TLS alert for a version that is not supported (RFC 8446, section 6.2).
const errBadVersion tls.AlertError = 70

// speaks offers one TLS version alone. A server that chooses the version accepts it, whatever it requires of the client
// afterwards. Only an alert about the version proves that it is refused. Any other alert may be about something else that
// the client presented or did not present.
func (p *prober) speaks(ctx context.Context, version uint16) sight {
	raw, err := p.dial(ctx)
	if err != nil {
		return sight{Untold, err.Error()}
	}
	defer func() { _ = raw.Close() }()
	taken := false
	err = tls.Client(raw, &tls.Config{
		MinVersion: version, MaxVersion: version, ServerName: p.cfg.Server.Hostname(),
		InsecureSkipVerify: true, //nolint:gosec // whose certificate it is does not matter, and nothing is sent over it
		VerifyConnection:   func(tls.ConnectionState) error { taken = true; return nil },
	}).HandshakeContext(ctx)
	switch {
	case taken:
		return sight{Broken, "the version is accepted"}
	case alertOf(err) == errBadVersion.Error():
		return sight{Held, "the version is refused"}
	case err == nil:
		return sight{Untold, "the handshake succeeded without a server certificate"}
	}
	return sight{Untold, err.Error()}
}

// handshake shows a forged certificate, which the broker must refuse in the handshake or after it.
func (p *prober) handshake(ctx context.Context, authority *x509.Certificate) sight {
	pair, err := p.forge(authority)
	if err != nil {
		return sight{Untold, err.Error()}
	}
	raw, err := p.dial(ctx)
	if err != nil {
		return sight{Untold, err.Error()}
	}
	defer func() { _ = raw.Close() }()
	cfg := p.knows(pair)
	cfg.ServerName = p.cfg.Server.Hostname()
	conn := tls.Client(raw, cfg)
	fails := sight{Held, "the handshake fails"}
	switch err := conn.HandshakeContext(ctx); {
	case alertOf(err) != "":
		return fails
	case err != nil:
		return sight{Untold, err.Error()}
	case conn.ConnectionState().Version < tls.VersionTLS13:
		return sight{Broken, "the handshake succeeds"}
	}
	_ = raw.SetReadDeadline(p.cfg.Now().Add(refusalTakes))
	if _, err := conn.Read(make([]byte, 1)); alertOf(err) != "" || errors.Is(err, io.EOF) {
		return fails
	}
	// The refusal may come later. A call that is answered shows that none comes.
	_ = raw.SetReadDeadline(p.cfg.Now().Add(callWithin))
	_, _ = fmt.Fprintf(conn, "GET /v1/whoami HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", p.cfg.Server.Host)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	switch {
	case alertOf(err) != "":
		return fails
	case err != nil:
		return sight{Untold, err.Error()}
	}
	_ = resp.Body.Close()
	return refused(answered{status: resp.StatusCode}, nil, http.StatusUnauthorized)
}

// plainly calls without TLS.
func plainly(ctx context.Context, p *prober) sight {
	conn, err := p.dial(ctx)
	if err != nil {
		return sight{Untold, err.Error()}
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", p.cfg.Server.Host)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return sight{Untold, err.Error()}
	case err != nil: // the response is not HTTP: EOF, or a TLS alert
		return sight{Held, "no HTTP response"}
	}
	_ = resp.Body.Close()
	return refused(answered{status: resp.StatusCode}, nil, http.StatusBadRequest)
}

// forge returns a certificate in the prober's name that the real authority does not sign, but an authority that is made for
// it. Without an authority, the certificate is self-signed.
func (p *prober) forge(authority *x509.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := p.cfg.Now()
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), URIs: []*url.URL{p.id.URL()}, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	signer := key
	if authority == nil {
		authority = leaf
	} else if signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), signer)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// sameName returns the template of an authority that uses the name of the prober's trust domain.
func (p *prober) sameName() *x509.Certificate {
	now := p.cfg.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{p.id.TrustDomain().ID().URL()}, NotBefore: now.Add(-time.Minute),
		NotAfter: now.Add(time.Hour), BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

// unsigned returns a JWT-SVID of the prober without a signature.
func (p *prober) unsigned() string {
	now := p.cfg.Now()
	payload, _ := json.Marshal(map[string]any{ // these values always encode
		"sub": p.id.String(), "aud": []string{p.cfg.Audience}, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	return segment([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + segment(payload) + "."
}

func segment(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// prolonged returns the token with a later expiry and its old signature.
func (p *prober) prolonged(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errNoJWT
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	claims["exp"] = p.cfg.Now().Add(24 * time.Hour).Unix()
	if payload, err = json.Marshal(claims); err != nil {
		return "", err
	}
	return parts[0] + "." + segment(payload) + "." + parts[2], nil
}
