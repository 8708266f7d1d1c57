package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/secret"
)

// EgressEnvCmd is `brevet egress env`.
type EgressEnvCmd struct {
	Dir string `help:"The gateway's folder." default:".brevet-egress" type:"path"`
}

// Run prints lines for a shell, or one JSON object, for a gateway that responds.
func (c *EgressEnvCmd) Run(ctx context.Context, con *console) error {
	endpoint, err := c.endpoint()
	if err != nil {
		return err
	}
	if err := c.answers(ctx, endpoint); err != nil {
		return err
	}
	all := endpoint.Environ()
	if con.json {
		object := map[string]string{}
		for _, pair := range all {
			name, value, _ := strings.Cut(pair, "=")
			object[name] = value
		}
		return con.encode(object)
	}
	for _, pair := range all {
		name, value, _ := strings.Cut(pair, "=")
		fmt.Fprintf(con.out, "export %s=%s\n", name, quote(value))
	}
	return nil
}

// endpoint reads the gateway's address and password from its folder.
func (c *EgressEnvCmd) endpoint() (egress.Endpoint, error) {
	address, err := os.ReadFile(filepath.Join(c.Dir, egressAddress))
	if errors.Is(err, fs.ErrNotExist) {
		return egress.Endpoint{}, fmt.Errorf("no gateway was started with the folder %s: start one with %s, or set --dir to the folder of a running gateway", c.Dir, c.start())
	}
	if err != nil {
		return egress.Endpoint{}, fmt.Errorf("reading the gateway's address: %w", err)
	}
	if _, err := netip.ParseAddrPort(string(address)); err != nil {
		return egress.Endpoint{}, fmt.Errorf("%s contains no address: restart the gateway with %s", filepath.Join(c.Dir, egressAddress), c.start())
	}
	password, err := os.ReadFile(filepath.Join(c.Dir, egressPassword))
	if err != nil {
		return egress.Endpoint{}, fmt.Errorf("reading the gateway's password: %w", err)
	}
	return egress.Endpoint{Address: string(address), Password: secret.New(string(password)), CA: filepath.Join(c.Dir, egressCA), Databases: c.Dir}, nil
}

// answers returns an error if the gateway does not respond. The error says what happened to the gateway, and what to do.
func (c *EgressEnvCmd) answers(ctx context.Context, endpoint egress.Endpoint) error {
	switch err := endpoint.Check(ctx); {
	case errors.Is(err, egress.ErrNoGateway):
		return fmt.Errorf("%s: %w; the gateway of this folder has stopped or hangs: restart it with %s", endpoint.Address, err, c.start())
	case errors.Is(err, egress.ErrOtherGateway):
		return fmt.Errorf(
			"%s: %w; the gateway of this folder has stopped, and another program or gateway uses its port: restart it with %s and a free port in --listen",
			endpoint.Address, err, c.start(),
		)
	default:
		return err
	}
}

// start returns the command that starts a gateway with this folder.
func (c *EgressEnvCmd) start() string { return "brevet egress --task TASK --dir " + quote(c.Dir) }
