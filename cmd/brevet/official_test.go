package main

import (
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

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

	// If there is a Workload API, the command acts as its workload unless --person is set.
	both := s.person(t, "carol")
	brevet(t, both, "quarantine", "list").want(t, 1, "Permission denied")
	brevet(t, both, "quarantine", "list", "--person").want(t, 0, "no quarantined sandboxes")
	brevet(t, both, "quarantine", "list", "--person", "--jwt").want(t, 1, "--jwt")
	s.stop(t, syscall.SIGTERM)
}
