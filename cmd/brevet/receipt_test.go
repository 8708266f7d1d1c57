package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

func TestPrintReceipt(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	dead := openapi.Ended{ID: "1", Status: openapi.StatusRevoked, Cause: "task_ended", Kind: "database", Scope: "a.b", Task: "t\x1b[2J"}
	offline := openapi.Ended{ID: "2", Status: openapi.StatusReleased, Cause: "released", Kind: "jwt", UsableUntil: now.Add(time.Minute)}
	static := openapi.Ended{ID: "3", Status: openapi.StatusIssued, Kind: "kv", Why: "static"}
	open := openapi.Ended{ID: "4", Status: openapi.StatusRevoking, Cause: "revoked", Kind: "pki", Why: "vault_unavailable"}
	lost := openapi.Ended{ID: "5", Status: openapi.StatusUnknown, Kind: "vault", Why: "unfinished", UsableUntil: now.Add(time.Minute)}
	for name, tc := range map[string]struct {
		receipt openapi.Receipt
		code    int
		want    []string
	}{
		"nothing":  {openapi.Receipt{Time: now}, 0, []string{"no live credentials matched"}},
		"later":    {openapi.Receipt{Time: now.Add(time.Hour)}, 0, []string{"ends at 2030-01-02"}},
		"all dead": {openapi.Receipt{Time: now, Ended: []openapi.Ended{dead, offline, static}}, 0, []string{"STATUS", "task_ended", `t\u001b[2J`, "accepted offline until", "rotate it where it is stored"}},
		"one open": {openapi.Receipt{Time: now, Ended: []openapi.Ended{dead, open}}, exitPending, []string{"vault_unavailable", "brevet audit unrevoked"}},
		"one lost": {openapi.Receipt{Time: now, Ended: []openapi.Ended{lost}}, exitPending, []string{"unfinished, may be accepted until"}},
		"more":     {openapi.Receipt{Time: now, Ended: []openapi.Ended{dead}, More: true}, exitPending, []string{"list is truncated"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, news strings.Builder
			err := printReceipt(&console{out: &out, err: &news}, tc.receipt, now)
			var explained exitError
			if code := 0; errors.As(err, &explained) && explained.code != tc.code || (err != nil) != (tc.code != code) {
				t.Errorf("got %v, want exit code %d", err, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String()+news.String(), want) {
					t.Errorf("%q is missing in\n%s%s", want, out.String(), news.String())
				}
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Error("the table obeys what a sandbox wrote")
			}
			out.Reset()
			_ = printReceipt(&console{out: &out, err: &news, json: true}, tc.receipt, now)
			var back openapi.Receipt
			if err := json.Unmarshal([]byte(out.String()), &back); err != nil || len(back.Ended) != len(tc.receipt.Ended) {
				t.Errorf("in JSON: got %s, %v", out.String(), err)
			}
		})
	}
}

func TestPrintUnrevoked(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	one := openapi.Issuance{
		ID: "1", Status: openapi.StatusRevoking, StatusDetail: "quarantined", StatusAt: now.Add(-90 * time.Second),
		EndedBy: "spiffe://a.example/admin", Credential: openapi.CredentialFacts{Kind: "database", Name: "v-1"},
	}
	var out strings.Builder
	err := printUnrevoked(&console{out: &out}, []openapi.Issuance{one}, now)
	var explained exitError
	if !errors.As(err, &explained) || explained.code != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
	for _, want := range []string{"1m30s", "quarantined", "spiffe://a.example/admin", "database", "v-1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := printUnrevoked(&console{out: &out, json: true}, []openapi.Issuance{one}, now); err == nil || !strings.HasPrefix(out.String(), "{") {
		t.Errorf("in JSON: got %v and %s", err, out.String())
	}
	if err := printUnrevoked(&console{out: &out}, nil, now); err != nil {
		t.Errorf("none: got %v", err)
	}
}

// TestReadKeyFile checks that a private key that is named by mistake is refused before anything is sent.
func TestReadKeyFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if got, err := readKeyFile(file("id.pub", "ssh-ed25519 AAAA\n")); err != nil || got != "ssh-ed25519 AAAA\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := readKeyFile(""); err != nil || got != "" {
		t.Errorf("no file: got %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"id": "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary", "key.pem": "-----BEGIN EC PRIVATE KEY-----\ncanary", "big": strings.Repeat("x", 8<<10+1),
	} {
		if _, err := readKeyFile(file(name, text)); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
}

func TestRevokeNeedsASelection(t *testing.T) {
	env := []string{"--server", "https://b", "--workload-api", "unix:///s", "--reason", "x"}
	inProcess(t, append([]string{"revoke"}, env...)...).want(t, 1, "set at least one of")
	inProcess(t, append([]string{"revoke", "--task", "t"}, env[:4]...)...).want(t, 2, "--reason")
	inProcess(t, append([]string{"task", "end", "t", "--at", "tomorrow"}, env...)...).want(t, 2, "--at")
	inProcess(t, append([]string{"quarantine", "add"}, env...)...).want(t, 2, "<spiffe-id>")
}

// TestTokenDocument checks the JSON document of a credential, which scripts read.
func TestTokenDocument(t *testing.T) {
	if got := tokenDocument(&client.Token{Kind: kindJWT}); got["credential"] != nil || got["token_type"] == nil {
		t.Errorf("a JWT: got %v", got)
	}
	if got := tokenDocument(&client.Token{Kind: "kv", Static: true, Name: "n"}); got["token"] != nil || got["static"] != true || got["name"] != "n" {
		t.Errorf("another kind: got %v", got)
	}
}
