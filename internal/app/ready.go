package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/openapi"
)

// Ready asks the server on this machine whether it is ready. It calls the address that the server listens on, with the host name that the server accepts.
func Ready(ctx context.Context, cfg Config) (openapi.Health, error) {
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return openapi.Health{}, err
	}
	if host == "" || net.ParseIP(host).IsUnspecified() { // it listens on all addresses
		host = "localhost"
	}
	issuer, err := url.Parse(cfg.Issuer)
	if err != nil {
		return openapi.Health{}, err
	}
	caller := &http.Client{Timeout: 5 * time.Second, Transport: quiet.New(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		},
		// The certificate is for the server's public name, or is an SVID without a host name. The call sends nothing
		// secret, and only the health of this machine's own server depends on the response.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, //nolint:gosec // see above
	})}
	defer caller.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+issuer.Host+"/readyz", nil)
	if err != nil {
		return openapi.Health{}, err
	}
	resp, err := caller.Do(req)
	if err != nil {
		return openapi.Health{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var health openapi.Health
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&health); err != nil {
		return openapi.Health{}, fmt.Errorf("the response (%s) is not a health report of Brevet: %w", resp.Status, err)
	}
	return health, nil
}
