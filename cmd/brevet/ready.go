package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// ReadyCmd is `brevet ready`: the health check for containers that have no shell and no curl.
type ReadyCmd struct {
	Config string `help:"Configuration file of the server." default:"brevet.yaml" type:"path" env:"BREVET_CONFIG"`
}

// Run fails if the server that the configuration describes does not respond, or is not ready.
func (c *ReadyCmd) Run(ctx context.Context, con *console) error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	health, err := askReady(ctx, cfg)
	if err != nil {
		return fmt.Errorf("checking the server on %s: %w", cfg.Listen, err)
	}
	if con.json {
		if err := con.encode(health); err != nil {
			return err
		}
	} else {
		for _, name := range slices.Sorted(maps.Keys(health.Checks)) {
			fmt.Fprintf(con.out, "%-11s %s\n", name, health.Checks[name])
		}
	}
	if health.Status != openapi.HealthOK {
		return exitError{err: errors.New("not ready"), code: 1}
	}
	return nil
}

// askReady calls the address that the server listens on, with the host name that the server accepts.
func askReady(ctx context.Context, cfg Config) (openapi.Health, error) {
	address, err := ownAddress(cfg.Listen)
	if err != nil {
		return openapi.Health{}, err
	}
	issuer, err := url.Parse(cfg.Issuer)
	if err != nil {
		return openapi.Health{}, err
	}
	caller := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		// The certificate is for the server's public name, or is an SVID without a host name. The call sends nothing
		// secret, and only the health of this machine's own server depends on the response.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, //nolint:gosec // see above
	}}
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

// ownAddress returns the address of a server on this machine. A server that listens on all addresses is on localhost.
func ownAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port), nil
}
