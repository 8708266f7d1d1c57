package github

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
)

// NewTransport returns a transport for calls to GitHub. Roots verify the server's certificate; nil means the system's. It uses no
// proxy from the environment. It connects to any address, because servers of GitHub Enterprise can have private ones, and only the
// operator says which servers there are.
func NewTransport(roots *x509.CertPool) *quiet.Transport {
	const connectTimeout = 10 * time.Second
	return quiet.New(&http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    16,
		DisableCompression:     true, // otherwise a small answer could expand to a large one
		ForceAttemptHTTP2:      true,
		// Without pings, the transport would keep using a dead HTTP/2 connection, and each call would time out.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: connectTimeout},
	})
}
