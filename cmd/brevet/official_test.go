package main

import (
	"encoding/pem"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// authorities writes the broker's authorities to a file, for people without a Workload API.
func (s *session) authorities(t *testing.T) string {
	t.Helper()
	bundles, err := workloadapi.FetchX509Bundles(t.Context(), workloadapi.WithAddr("unix://"+s.dir+"/svid/research.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, bundle := range bundles.Bundles() {
		for _, authority := range bundle.X509Authorities() {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw})...)
		}
	}
	path := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// withoutWorkload returns the environment of a machine without a Workload API.
func withoutWorkload(env []string, ca string) []string {
	return append(slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		return strings.HasPrefix(pair, "SPIFFE_ENDPOINT_SOCKET=")
	}), "BREVET_CA_FILE="+ca)
}

// TestPeopleActAsAdminsAndAuditors checks what people can do as admins and auditors: bob is only an admin, and carol only an auditor.
func TestPeopleActAsAdminsAndAuditors(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	ca := s.authorities(t)
	stranger := withoutWorkload(append(s.env[:len(s.env):len(s.env)], "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir()), ca)
	for _, args := range [][]string{
		{"audit", "list"},
		{"audit", "unrevoked"},
		{"quarantine", "list"},
		{"revoke", "--task", "t", "--reason", "x"},
		{"task", "end", "t", "--spiffe-id", researcher},
	} {
		brevet(t, stranger, args...).want(t, 1, "run brevet login", "--workload-api")
	}
	brevet(t, stranger, "request", "github.issues.read", "--task", "t").want(t, 2, "--workload-api")
	bob, carol := logInAs(t, withoutWorkload(s.env, ca), "bob"), logInAs(t, withoutWorkload(s.env, ca), "carol")

	s.issue(t, "t-1")
	brevet(t, carol, "audit", "list").want(t, 0, "t-1", researcher)
	brevet(t, carol, "audit", "unrevoked").want(t, 0)
	brevet(t, carol, "revoke", "--task", "t-1", "--reason", "x").want(t, 1, "Permission denied")
	brevet(t, bob, "audit", "list").want(t, 1, "Permission denied")
	brevet(t, bob, "revoke", "--task", "t-1", "--reason", "leaked").want(t, 0, "revoked", "t-1")
	records := objects(t, brevet(t, carol, "audit", "list", "--task", "t-1", "-o", "json").out)
	if by, _ := records[0]["ended_by"].(string); len(records) != 1 || !strings.HasSuffix(by, "#bob") {
		t.Errorf("got the records %v, want one that bob has ended", records)
	}
	s.issue(t, "t-2")
	brevet(t, bob, "task", "end", "t-2").want(t, 1, "--spiffe-id")
	brevet(t, bob, "task", "end", "t-2", "--spiffe-id", researcher).want(t, 0, "task_ended")
	brevet(t, bob, "quarantine", "add", researcher, "--reason", "odd").want(t, 0)
	brevet(t, carol, "quarantine", "list").want(t, 0, researcher, "#bob", "odd")
	brevet(t, bob, "quarantine", "remove", researcher).want(t, 0, "no longer in quarantine")

	s.stop(t, syscall.SIGTERM)
}

type officialCommand struct {
	line    string
	refused bool
}

// officialCommands are the commands that a person or a workload may run, with what carol, who is only an auditor, gets.
var officialCommands = []officialCommand{
	{"whoami", false},
	{"quarantine list", false},
	{"quarantine add " + researcher + " --reason x", true},
	{"quarantine remove " + researcher, true},
	{"revoke --task t --reason x", true},
	{"catalog history", false},
	{"catalog plan ../../examples/catalog", false},
	{"catalog apply ../../examples/catalog --reason x --yes", true},
	{"catalog rollback " + strings.Repeat("0", 64) + " --reason x --yes", true},
	{"catalog approve " + strings.Repeat("0", 64) + " --reason x --yes", true},
	{"catalog reject " + strings.Repeat("0", 64) + " --reason x --yes", true},
	{"audit list", false},
	{"audit whose " + strings.Repeat("0", 64), false},
	{"audit tail", false},
	{"audit task t --spiffe-id " + researcher, true}, // no such task
	{"audit calls --task t --spiffe-id " + researcher, true},
	{"audit usage", false},
	{"audit unrevoked", false},
	{"audit checkpoint", false},
	{"audit keys", false},
	{"audit evidence t --to /nonexistent/e --spiffe-id " + researcher, true},
	{"audit export", false},
	{"audit receipt none", true},
	{"task end t --person --spiffe-id " + researcher, true},
}

// TestCommandsActAsThePersonWhoIsLoggedIn checks one rule for all commands that a person or a workload may run, and that every
// refusal names the identity that acted, and how to act as the other.
func TestCommandsActAsThePersonWhoIsLoggedIn(t *testing.T) {
	t.Parallel()
	s := startDev(t, t.TempDir()+"/state")
	carol, nobody := s.person(t, "carol"), s.env
	const asWorkload = "add --workload to act as " + researcher
	var cli CLI
	for _, leaf := range newParser(t.Context(), &cli, io.Discard, io.Discard).Model.Leaves(false) {
		named := func(tc officialCommand) bool {
			return strings.HasPrefix("brevet "+tc.line+" ", leaf.FullPath()+" ")
		}
		isOfficial := slices.ContainsFunc(leaf.Flags, func(f *kong.Flag) bool { return f.Name == "person" })
		if slices.ContainsFunc(officialCommands, named) != isOfficial {
			t.Errorf("%s: a person or a workload may run it: %t, and this test does not know that", leaf.FullPath(), isOfficial)
		}
	}
	for _, tc := range officialCommands {
		if strings.HasPrefix(tc.line, "audit tail") || strings.HasPrefix(tc.line, "audit whose") {
			continue // runs until it is stopped; finds nothing, which is its exit code
		}
		got := brevet(t, carol, strings.Fields(tc.line)...)
		want := []string{"#carol"}
		if tc.refused {
			want = append(want, "acted as   ", asWorkload)
		}
		if got.want(t, got.code, want...); tc.refused != (got.code == 1) {
			t.Errorf("%s: got exit code %d: %s", tc.line, got.code, got.err)
		}
		chosen := strings.Contains(tc.line, "--person")
		if told := strings.Contains(got.err, "acting as "); told == (chosen || tc.line == "whoami") {
			t.Errorf("%s: said who acts: %t\n%s", tc.line, told, got.err)
		}
		if chosen {
			continue
		}
		// The workload acts if it is chosen, or if nobody is logged in. Only in the first case could somebody else.
		for _, env := range [][]string{carol, nobody, append(carol[:len(carol):len(carol)], "BREVET_AS_WORKLOAD=true")} {
			line := strings.Fields(tc.line)
			if &env[0] == &carol[0] && len(env) == len(carol) {
				line = append(line, "--workload")
			}
			got := brevet(t, env, line...)
			if strings.Contains(got.err, "acting as ") {
				t.Errorf("%v: got %s, want nothing about a choice that was made", line, got.err)
			}
			loggedIn := len(env) != len(nobody)
			if got.code != 0 || tc.line == "whoami" {
				got.want(t, got.code, researcher)
				if strings.Contains(got.err+got.out, "add --person to act as ") != loggedIn || loggedIn != strings.Contains(got.err+got.out, "#carol") {
					t.Errorf("%v: got %s%s, want the person named if there is one", line, got.out, got.err)
				}
			}
		}
	}
	// A sandbox command acts as the sandbox, whoever is logged in.
	brevet(t, carol, "task", "end", "t-own").want(t, 0)
	brevet(t, carol, "task", "end", "t", "--spiffe-id", theAdmin).want(t, 1, "acted as   "+researcher, "add --person to act as ", "#carol")
	brevet(t, carol, "release", "none").want(t, 1, "acted as   "+researcher)
	brevet(t, carol, "withdraw", "none").want(t, 1, "acted as   "+researcher)
	brevet(t, carol, "request", "github.repo.delete", "repo=acme/api", "--task", "t").want(t, exitDenied, "acted as   "+researcher)
	// An approver command acts as the person.
	brevet(t, carol, "approvals", "show", "none").want(t, 1, "acted as   ", "#carol")
	brevet(t, nobody, "approvals", "list").want(t, 1, "run brevet login")
	brevet(t, nobody, "audit", "task", "t").want(t, 1, "acted as   "+researcher)
	brevet(t, carol, "audit", "task", "t").want(t, 1, "--workload")

	in := object(t, brevet(t, carol, "revoke", "--task", "t", "--reason", "x", "-o", "json").out)
	if by, _ := in["acted_as"].(string); !strings.HasSuffix(by, "#carol)") || in["instead"] != asWorkload {
		t.Errorf("got %v, want both identities", in)
	}
	if me := object(t, brevet(t, carol, "whoami", "-o", "json", "--workload").out); me["id"] != researcher || !strings.Contains(me["instead"].(string), "#carol") {
		t.Errorf("got %v, want both identities", me)
	}
	brevet(t, carol, "quarantine", "list", "--jwt").want(t, 1, "acted as   "+researcher)
	brevet(t, carol, "quarantine", "list", "--person", "--jwt").want(t, 1, "--jwt")
	brevet(t, carol, "quarantine", "list", "--person", "--workload").want(t, 0)
	alone := logInAs(t, withoutWorkload(s.env, s.authorities(t)), "carol")
	brevet(t, alone, "quarantine", "list", "--workload").want(t, 1, "--workload: requires --workload-api")
	brevet(t, alone, "revoke", "--task", "t", "--reason", "x").want(t, 1, "acted as   ", "#carol")
	// The shells for workloads with a role act as these.
	auditor := slices.Clone(carol)
	for name, value := range object(t, brevet(t, nil, "dev", "env", "auditor", "--state", s.dir, "-o", "json").out) {
		auditor = append(auditor, name+"="+value.(string))
	}
	brevet(t, auditor, "audit", "list").want(t, 0)
	brevet(t, auditor, "whoami").want(t, 0, "id       "+local.ID("auditor").String(), "#carol")
	// A login that has ended is not replaced by another identity in silence.
	home := t.TempDir()
	if err := os.CopyFS(home, os.DirFS(strings.TrimPrefix(carol[len(carol)-1], "XDG_CONFIG_HOME="))); err != nil {
		t.Fatal(err)
	}
	spoiled := append(carol[:len(carol):len(carol)], "XDG_CONFIG_HOME="+home)
	if err := os.WriteFile(home+"/brevet/login.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	brevet(t, spoiled, "audit", "list").want(t, 1, "run brevet login", asWorkload)
	s.stop(t, syscall.SIGTERM)
}
