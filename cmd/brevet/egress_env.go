package main

import (
	"context"
	"fmt"
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

// Run prints lines for a shell, or one JSON object.
func (c *EgressEnvCmd) Run(_ context.Context, con *console) error {
	address, err := os.ReadFile(filepath.Join(c.Dir, egressAddress))
	if err != nil {
		return fmt.Errorf("reading where the gateway is: %w", err)
	}
	password, err := os.ReadFile(filepath.Join(c.Dir, egressPassword))
	if err != nil {
		return fmt.Errorf("reading the gateway's password: %w", err)
	}
	door := egress.Door{Address: string(address), Password: secret.New(string(password)), CA: filepath.Join(c.Dir, egressCA), Databases: c.Dir}
	all := door.Environ()
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
