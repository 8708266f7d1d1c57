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

// ReadyCmd is `brevet ready`: what a container's health check runs, where there is no shell and no curl.
type ReadyCmd struct {
	Config string `help:"Configuration file of the server." default:"brevet.yaml" type:"path" env:"BREVET_CONFIG"`
}

// Run fails when the server that the configuration describes does not answer, or says it is not ready.
func (c *ReadyCmd) Run(ctx context.Context, con *console) error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	health, err := askReady(ctx, cfg)
	if err != nil {
		return fmt.Errorf("asking the server on %s: %w", cfg.Listen, err)
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

// askReady calls the address that the server listens on, under the name that it answers to.
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
		// The certificate names the server as others know it, or is an SVID that names no host. Nothing secret is sent,
		// and nothing but the health of this very machine's server depends on the answer.
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
		return openapi.Health{}, fmt.Errorf("the answer, %s, is not one of Brevet: %w", resp.Status, err)
	}
	return health, nil
}

// ownAddress is where a server that listens on all addresses is reached from its own machine.
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
