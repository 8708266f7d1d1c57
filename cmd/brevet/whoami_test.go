package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack/local"
)

// TestWhoamiTellsRoles checks that the broker reports the roles of every caller, and that without a broker only the login
// is printed.
func TestWhoamiTellsRoles(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	ca := s.authorities(t)
	bob := logInAs(t, withoutWorkload(s.env, ca), "bob")
	brevet(t, bob, "whoami").want(t, 0, "#bob", "roles    admin in spiffe://"+local.Domain, "approver in")
	brevet(t, s.person(t, "bob"), "whoami", "--person").want(t, 0, "#bob", "admin in spiffe://"+local.Domain)
	got := objects(t, brevet(t, bob, "whoami", "-o", "json").out)
	if len(got) != 1 || got[0]["kind"] != "person" || got[0]["expires_at"] == nil || len(got[0]["roles"].([]any)) != 2 {
		t.Errorf("got %v, want a person with two roles", got)
	}
	brevet(t, s.env, "whoami").want(t, 0, "id       "+researcher, "roles    -")
	got = objects(t, brevet(t, s.env, "whoami", "-o", "json").out)
	if len(got) != 1 || got[0]["kind"] != "workload" || got[0]["id"] != researcher {
		t.Errorf("got %v, want the researcher", got)
	}
	alone := brevet(t, append(bob, "BREVET_SERVER="), "whoami")
	alone.want(t, 0, "#bob")
	if strings.Contains(alone.out, "roles") {
		t.Errorf("got roles without a broker:\n%s", alone.out)
	}
	s.stop(t, syscall.SIGTERM)
}

// TestServeWithConfiguredAdmins checks a bootstrap admin and an admin of a path, as an operator configures them.
func TestServeWithConfiguredAdmins(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	d.cfg.TrustDomains[0].Admins[0].Within = []string{"spiffe://" + local.Domain + "/research"}
	d.cfg.People.Roles, d.cfg.People.BootstrapAdmin = nil, "bob"
	d.cfg.ResourceServers = []app.ResourceServerConfig{{ID: local.ID("support").String(), Audiences: []string{"https://git.test"}}}
	restart := func(says string) {
		d.broker.signal(t, syscall.SIGTERM)
		d.broker.finish(t).want(t, 0)
		d.serve(t)
		d.broker.waitFor(t, d.broker.err, says)
	}
	restart(`"msg":"bootstrap admin is on"`)
	bob := (&session{env: d.env("admin")}).person(t, "bob")
	brevet(t, bob, "whoami", "--person").want(t, 0, "admin (bootstrap until 20", "in spiffe://"+local.Domain)
	brevet(t, bob, "quarantine", "add", researcher, "--reason", "odd", "--person").want(t, 0)
	brevet(t, bob, "audit", "list", "--person").want(t, 1, "Permission denied")
	brevet(t, d.env("admin"), "whoami").want(t, 0, "admin in spiffe://"+local.Domain+"/research\n")
	brevet(t, d.env("support"), "whoami").want(t, 0, "roles    resource_server for https://git.test\n")
	brevet(t, bob, "quarantine", "list", "--person").want(t, 0, researcher)

	brevet(t, d.env("admin"), "quarantine", "add", local.ID("support").String(), "--reason", "odd").want(t, 1, "Not found")
	brevet(t, d.env("admin"), "quarantine", "remove", researcher).want(t, 0)
	brevet(t, bob, "quarantine", "list", "--person").want(t, 1, "The bootstrap admin has been disabled since 20", "people.roles")
	restart(`"msg":"bootstrap admin is off"`)
	brevet(t, bob, "quarantine", "list", "--person").want(t, 1, "The bootstrap admin has been disabled since 20")
	brevet(t, bob, "whoami", "--person").want(t, 0, "roles    -")
}
