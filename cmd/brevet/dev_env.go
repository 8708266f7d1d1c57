package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/internal/devstack"
	"golang.org/x/oauth2"
)

// devEnvironments is the file in which a running stack writes how to act as each of its workloads, for `brevet dev env`.
const devEnvironments = "env.json"

// variables are environment variables in the order in which they are printed.
type variables [][2]string

// devVariables are the names of all variables that environment sets.
var devVariables = []string{
	"BREVET_SERVER", "BREVET_SERVER_ID", "SPIFFE_ENDPOINT_SOCKET", "BREVET_OIDC_ISSUER", "BREVET_OIDC_CLIENT_ID", "BREVET_DEV_STATE", "BREVET_DEV_API",
	"SVID_DIR", "PGHOST", "PGPORT", "PGDATABASE",
}

// environment returns the variables that a client of this stack needs to act as one of its workloads.
func (l *localStack) environment(cfg Config, workload string) variables {
	host, port, _ := net.SplitHostPort(l.Postgres.Addr()) // Addr returns host:port
	return variables{
		{"BREVET_SERVER", cfg.Issuer},
		{"BREVET_SERVER_ID", "spiffe://" + localDomain + localWorkloads["brevet"]},
		{"SPIFFE_ENDPOINT_SOCKET", l.socket(workload)},
		{"BREVET_OIDC_ISSUER", l.people.Issuer()},
		{"BREVET_OIDC_CLIENT_ID", localClient},
		{"BREVET_DEV_STATE", l.dir},
		{"BREVET_DEV_API", "https://" + l.apiHost()},
		{"SVID_DIR", l.identityFolder(workload)},
		// The database for the logins of scopes such as reports.orders.read.
		{"PGHOST", host},
		{"PGPORT", port},
		{"PGDATABASE", devstack.TargetDatabase},
	}
}

// writeEnvironments is called once the broker serves, so that programs that wait for the file can continue.
func (l *localStack) writeEnvironments(cfg Config) error {
	all := map[string]variables{}
	for workload := range localWorkloads {
		all[workload] = l.environment(cfg, workload)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return replaceFile(l.path(devEnvironments), string(text)+"\n")
}

// removeEnvironments ignores errors, because `brevet dev env` also detects that no stack runs if the file stays.
func (l *localStack) removeEnvironments() { _ = os.Remove(l.path(devEnvironments)) }

// runningStack returns the variables with which to act as a workload of the stack that runs in a folder.
func (s DevState) runningStack(ctx context.Context, workload string) (variables, error) {
	text, err := os.ReadFile(filepath.Join(s.State, devEnvironments))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.notRunning()
	}
	if err != nil {
		return nil, err
	}
	var all map[string]variables
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(s.State, devEnvironments), err)
	}
	found, ok := all[workload]
	if !ok {
		return nil, fmt.Errorf("unknown workload %s: use one of %s", quote(workload), strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	// A shell evaluates the printed names, and somebody else may have made the folder, for example as part of a repository.
	for _, pair := range found {
		if !slices.Contains(devVariables, pair[0]) {
			return nil, fmt.Errorf("%s was not written by brevet dev: do not use this folder", filepath.Join(s.State, devEnvironments))
		}
	}
	// A killed stack leaves the file behind.
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(found.get("SPIFFE_ENDPOINT_SOCKET"), "unix://"))
	if err != nil {
		return nil, s.notRunning()
	}
	return found, conn.Close()
}

func (s DevState) notRunning() error {
	return fmt.Errorf("no stack runs in %s: start one with brevet dev, or set --state to the folder of a running one", s.State)
}

func (v variables) get(name string) string {
	for _, pair := range v {
		if pair[0] == name {
			return pair[1]
		}
	}
	return ""
}

// DevEnvCmd is `brevet dev env`.
type DevEnvCmd struct {
	DevState
	Workload string `arg:"" optional:"" help:"Workload to act as: research or support (sandboxes), subagent, auditor, admin, or gateway (a resource server)." default:"research"`
}

// Run prints lines for a shell, or one JSON object.
func (c *DevEnvCmd) Run(ctx context.Context, con *console) error {
	all, err := c.runningStack(ctx, c.Workload)
	if err != nil {
		return err
	}
	if con.json {
		object := map[string]string{}
		for _, pair := range all {
			object[pair[0]] = pair[1]
		}
		return con.encode(object)
	}
	if folder := notOnPath(); folder != "" {
		fmt.Fprintf(con.out, "export PATH=%s:$PATH\n", quote(folder))
	}
	for _, pair := range all {
		fmt.Fprintf(con.out, "export %s=%s\n", pair[0], quote(pair[1]))
	}
	return nil
}

// DevLoginCmd is `brevet dev login`.
type DevLoginCmd struct {
	DevState
	Person string `arg:"" help:"Person to log in as: alice, bob, carol or dave."`
}

// Run uses the same device flow as `brevet login`, and approves the login on the provider's page by itself. That only works
// with the provider of a dev stack, where anybody can log in as anybody.
func (c *DevLoginCmd) Run(ctx context.Context, con *console) error {
	env, err := c.runningStack(ctx, "research")
	if err != nil {
		return err
	}
	flow := LoginCmd{Issuer: env.get("BREVET_OIDC_ISSUER"), ClientID: env.get("BREVET_OIDC_CLIENT_ID")}
	return flow.logIn(ctx, con, func(ctx context.Context, d *oauth2.DeviceAuthResponse) error {
		return devstack.AgreeToDevice(ctx, d.VerificationURI, d.UserCode, c.Person)
	})
}
