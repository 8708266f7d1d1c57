package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/internal/egress"
)

// ownIdentity are prefixes of variables that lead to the identity of the sandbox. A program that uses a gateway does not
// get them. The sandbox itself must ensure that the program cannot find the identity in another way.
var ownIdentity = []string{
	"SPIFFE_ENDPOINT_SOCKET=", "BREVET_SERVER=", "BREVET_SERVER_ID=", "BREVET_AUDIENCE=", "BREVET_SVID=",
	"SVID_DIR=", "BREVET_DEV_STATE=", // folders with keys, of `brevet dev env`
}

// inherited returns the part of brevet's environment that the program gets.
func (c *ExecCmd) inherited() []string {
	all := os.Environ()
	if !c.Egress {
		return all
	}
	return slices.DeleteFunc(all, func(pair string) bool {
		return slices.ContainsFunc(ownIdentity, func(name string) bool { return strings.HasPrefix(pair, name) })
	})
}

// wayOut opens a gateway for the program alone, and returns the variables that make the program use it.
func (c *ExecCmd) wayOut(ctx context.Context, run *execution, folder *privateFolder, parts []*part) (environ []string, done func(), err error) {
	if !c.Egress {
		return nil, func() {}, nil
	}
	gateway, err := c.gateway(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	cfg := egress.SandboxConfig{Task: run.task, Reason: c.Reason, Broker: run.broker, Scopes: usedSo(parts)}
	own, proxy, err := c.openWay(ctx, gateway, cfg)
	if err != nil {
		closeGateway(ctx, gateway)
		return nil, nil, err
	}
	database, err := proxy.describe(folder.path, gateway.CA())
	if err != nil {
		closeGateway(ctx, gateway)
		return nil, nil, err
	}
	go func() { _ = gateway.ServePostgres(context.WithoutCancel(ctx), database, own) }()
	go func() { _ = gateway.Serve(context.WithoutCancel(ctx), proxy, egress.WithPassword(own, proxy.password)) }() // until it is closed
	described := egress.Endpoint{Address: proxy.Addr().String(), Password: proxy.password, CA: filepath.Join(folder.path, egressCA), Databases: folder.path}
	return described.Environ(), func() { closeGateway(ctx, gateway) }, nil
}

func (c *ExecCmd) openWay(ctx context.Context, gateway *egress.Gateway, cfg egress.SandboxConfig) (own *egress.Sandbox, at *endpoint, err error) {
	if cfg.ID, err = c.self(ctx, cfg.Broker); err != nil {
		return nil, nil, err
	}
	if own, err = gateway.Sandbox(cfg); err != nil {
		return nil, nil, err
	}
	at, err = openEndpoint(ctx, "127.0.0.1:0")
	return own, at, err
}

// usedSo returns the scopes without a destination, with their parameters, for use by the gateway. It returns nil if there
// are none, which allows all scopes that may be requested.
func usedSo(parts []*part) map[string]map[string]any {
	var scopes map[string]map[string]any
	for _, p := range parts {
		if len(p.places) > 0 {
			continue
		}
		if scopes == nil {
			scopes = map[string]map[string]any{}
		}
		given := map[string]any{}
		maps.Copy(given, p.ask.Params)
		scopes[p.ask.Scope] = given
	}
	return scopes
}
