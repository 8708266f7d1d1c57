package attest

import (
	"crypto/tls"
	"net"
)

// TLSConfig returns the configuration of a server that requests an X.509-SVID from its clients. A client may present none and
// send a JWT-SVID instead. If it presents a certificate that does not verify, the handshake fails. The server speaks TLS 1.3
// only.
//
// Session tickets are disabled: Go does not verify the peer's certificate again on a resumed session, so a ticket would outlive
// the SVID and even its authority. For the same reason VerifyConnection does the verification.
func (a *Attestor) TLSConfig(getCert func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         getCert,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		// http.Server adds these to its own copy, which GetConfigForClient then replaces.
		NextProtos:       []string{"h2", "http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error { return a.verifyConnection(nil, state) },
	}
	perConnection := base.Clone()
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		cfg := perConnection.Clone()
		remote := hello.Conn.RemoteAddr()
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return a.verifyConnection(remote, state) }
		return cfg, nil
	}
	return base
}

func (a *Attestor) verifyConnection(remote net.Addr, state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	if _, err := a.verifyX509(&state); err != nil {
		a.onRefusal(remote, err)
		return err
	}
	return nil
}
