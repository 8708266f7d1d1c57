package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/brevet-dev/brevet/internal/secret"
)

// newKey makes a key and a certificate signing request for it. The request has no names: the scope decides them.
func newKey() (key secret.Text, csr string, err error) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, made)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a signing request: %w", err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return secret.New(text("PRIVATE KEY", der)), text("CERTIFICATE REQUEST", request), nil
}

// proving returns transports that present the certificate of a credential. Their connections close when the credential ends,
// even in the middle of a call.
func (g *Gateway) proving(h *held, cert *tls.Certificate) lines {
	l := g.lines()
	for _, t := range []*http.Transport{l.one, l.many} {
		p := &prover{dial: t.DialContext, cfg: t.TLSClientConfig.Clone(), cert: cert, held: h}
		if t.Protocols.HTTP2() {
			p.cfg.NextProtos = []string{"h2", "http/1.1"}
		}
		t.DialTLSContext = p.connect
	}
	return l
}

// prover connects to hosts and presents its certificate. It refuses a host that requests no certificate.
type prover struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	cfg  *tls.Config
	cert *tls.Certificate
	held *held // its end closes the connections; it also counts them
}

// errNotAsked refuses a call to a host that requests no client certificate: the host would accept the call from anyone.
var errNotAsked = &refusal{
	code: codeUnfit, explanation: "the host requests no client certificate in the handshake, so the call would be sent without the credential",
}

func (p *prover) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	plain, err := p.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p.held.open.Add(1)
	stop := context.AfterFunc(p.held.life, func() { _ = plain.Close() })
	conn := &bounded{plain, sync.OnceFunc(func() { stop(); p.held.open.Add(-1) })}
	asked := false
	cfg := p.cfg.Clone()
	cfg.ServerName = host
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		return p.cert, nil
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if !asked {
		_ = secured.Close()
		return nil, errNotAsked
	}
	return secured, nil
}

// bounded is a connection that also closes when a credential ends.
type bounded struct {
	net.Conn
	forget func()
}

// Close implements [net.Conn].
func (b *bounded) Close() error {
	b.forget()
	return b.Conn.Close()
}
