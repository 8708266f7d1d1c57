package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/replay"
)

const (
	replayedScopes = `scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://git.test}
`
	replayedPolicies = `@id("agents") permit (principal in Path::"spiffe://acme.test/agents", action, resource)
when { context.params.repo like "acme/*" };
@id("people") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
`
)

// replayed returns a folder with a draft: the catalogue with the given replacements.
func replayed(t *testing.T, replace ...string) string {
	t.Helper()
	folder := t.TempDir()
	change := strings.NewReplacer(replace...)
	for name, text := range map[string]string{"scopes.yaml": replayedScopes, "policies.cedar": replayedPolicies} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(change.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// decided makes 322 decisions by real calls. Each of ten sandboxes makes 16 reads that are allowed, 8 reads that are
// denied, and 8 writes that wait. There are two more writes, one of which is redeemed after a person has approved it.
func decided(t *testing.T) (urlFile string) {
	t.Helper()
	s := testkit.NewStack(t, testkit.Options{
		Catalogue: []scopes.File{
			{Name: "scopes.yaml", Data: []byte(replayedScopes)}, {Name: "policies.cedar", Data: []byte(replayedPolicies)},
		},
		People: []devstack.DevPerson{{Username: "carol", Name: "Carol", Groups: []string{"oncall"}}},
		Rules:  []people.Rule{{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}}},
	})
	ask := func(c *client.Client, scope, repo string) client.Answer {
		t.Helper()
		got, err := c.Request(t.Context(), client.Ask{
			Scope: scope, Params: map[string]any{"repo": repo}, Task: "t", Reason: "because",
			IdempotencyKey: rand.Text(), // otherwise equal requests that wait are one
		})
		if err != nil && !errors.Is(err, client.ErrDenied) {
			t.Fatal(err)
		}
		return got
	}
	for i := range 10 {
		sandbox := s.Client(t, fmt.Sprintf("spiffe://acme.test/agents/a-%d", i))
		for range 8 {
			ask(sandbox, "git.issues.read", "acme/api")
			ask(sandbox, "git.issues.read", "acme/web")
			ask(sandbox, "git.issues.read", "evil/api")
			ask(sandbox, "git.issues.write", "acme/api")
		}
	}
	sandbox, carol := s.JWTClient(t, "spiffe://acme.test/agents/a-0"), s.Person(t, "carol")
	ask(sandbox, "git.issues.write", "acme/web")
	write := client.Ask{Scope: "git.issues.write", Params: map[string]any{"repo": "acme/web"}, Task: "t", Reason: "because"}
	waits := ask(sandbox, write.Scope, "acme/web").Pending
	shown, err := carol.Approval(t.Context(), waits.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := carol.Vote(t.Context(), shown, openapi.VerdictApprove, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := sandbox.Redeem(t.Context(), waits.ID, write); err != nil || got.Token == nil {
		t.Fatalf("redeeming: got %+v, %v, want a token", got, err)
	}
	urlFile = filepath.Join(t.TempDir(), "auditor-url")
	if err := os.WriteFile(urlFile, []byte(s.DB.AuditorURL+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return urlFile
}

// TestCatalogReplay compares a draft with decisions that were really made.
func TestCatalogReplay(t *testing.T) {
	from := "--database-url-file=" + decided(t)
	for _, tc := range []struct {
		name  string
		draft []string // what is replaced in the catalogue
		code  int
		want  []string
	}{
		{"as it is", nil, 0, []string{"0 of 322 decisions since", "unchanged  322"}},
		{"narrower", []string{`"acme/*"`, `"acme/a*"`}, 2, []string{
			"82 of 322 decisions", "newly denied  82", "  git.issues.read\n    newly denied  80  such as 0",
			"  spiffe://acme.test/agents/a-0 git.issues.write\n    newly denied  2 ", "The replay does not model",
		}},
		{"wider", []string{`"acme/*"`, `"*"`}, 2, []string{"newly allowed  80"}},
		{"without a person", []string{`action in Action::"authority:write"`, `action in Action::"git.*"`, "unless { context.approved }", `when { context.params.repo == "x/y" }`}, 2, []string{
			"newly ungated  82", "unchanged      240",
		}},
		{"gated", []string{`action in Action::"authority:write"`, "action"}, 2, []string{"newly gated  160"}},
		{"asked of a person", []string{`action in Action::"authority:write"`, "action", `"acme/*"`, `"*"`}, 2, []string{
			"newly askable  80", "newly gated    160",
		}},
		{"shorter", []string{"default: 5m", "default: 1m"}, 2, []string{"now shorter  242"}},
		{"undecidable", []string{"max_length: 100", "max_length: 2"}, 2, []string{"undecidable  322"}},
		{"scope gone", []string{"git.issues.write", "git.issues.edit"}, 2, []string{"newly denied  82"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inProcess(t, "catalog", "replay", replayed(t, tc.draft...), from, "--detailed-exitcode").want(t, tc.code, tc.want...)
		})
	}
	t.Run("for programs", func(t *testing.T) { replayForPrograms(t, from) })
}

func replayForPrograms(t *testing.T, from string) {
	t.Helper()
	draft := replayed(t, `"acme/*"`, `"acme/a*"`)
	got := inProcess(t, "catalog", "replay", draft, from, "--since=24h", "--top=1", "--output=json")
	got.want(t, 0)
	report := object(t, got.out)
	counts, _ := report["counts"].(map[string]any)
	sandboxes, _ := report["sandboxes"].([]any)
	unlisted, _ := report["unlisted"].(map[string]any)
	if report["changes"] != true || report["decisions"] != 322.0 || counts["newly_denied"] != 82.0 || len(sandboxes) != 1 || unlisted["scopes"] != 2.0 {
		t.Errorf("got %v, want changes, 322 decisions, 82 newly denied, one sandbox, and 2 changes of the other scope", report)
	}
	if since, err := time.Parse(time.RFC3339, report["since"].(string)); err != nil || time.Since(since).Round(time.Hour) != 24*time.Hour {
		t.Errorf("got since %v, want a day ago", report["since"])
	}
}

func TestCatalogReplayOfNothing(t *testing.T) {
	urlFile := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(urlFile, []byte(testkit.NewDB(t).AuditorURL), 0o600); err != nil {
		t.Fatal(err)
	}
	inProcess(t, "catalog", "replay", replayed(t), "--database-url-file", urlFile, "--detailed-exitcode").
		want(t, 0, "No decisions since")
}

func TestCatalogReplayRefusals(t *testing.T) {
	unmigrated := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(unmigrated, []byte(testkit.EmptyDB(t).AdminURL), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	if err := os.WriteFile(nowhere, []byte("postgres://auditor:hunter2@127.0.0.1:1/brevet"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no database", nil, 2, "missing flags: --database-url-file"},
		{"no such file", []string{"--database-url-file=/nowhere"}, 1, "--database-url-file: "},
		{"not migrated", []string{"--database-url-file", unmigrated}, 1, "run `brevet migrate`"},
		{"no server", []string{"--database-url-file", nowhere}, 1, "replaying decisions: connecting: "},
		{"fewer than none", []string{"--database-url-file", nowhere, "--top=-1"}, 1, "--top: must be at least 0"},
		{"no time", []string{"--database-url-file", nowhere, "--since=0d"}, 2, "--since: must be a duration such as 7d or 24h"},
		{"unsound draft", []string{"--database-url-file", nowhere}, 1, "authority"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			draft := replayed(t)
			if tc.name == "unsound draft" {
				draft = "testdata/broken"
			}
			got := inProcess(t, append([]string{"catalog", "replay", draft}, tc.args...)...)
			got.want(t, tc.code, tc.want)
			if strings.Contains(got.err, "hunter2") || got.out != "" {
				t.Errorf("got %q and %q, want no password and no result", got.out, got.err)
			}
		})
	}
}

func TestLookback(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * 24 * time.Hour, "24h": 24 * time.Hour, "90m": 90 * time.Minute, "106751d": 106751 * 24 * time.Hour,
		"106752d": 0, "99999999999999999999d": 0, "0d": 0, "-1d": 0, "-1h": 0, "d": 0, "1.5d": 0, "7": 0, "": 0, "1d12h": 0,
	} {
		var got lookback
		if err := got.UnmarshalText([]byte(text)); time.Duration(got) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %s, %v, want %s", text, time.Duration(got), err, want)
		}
	}
}

// TestReplayPrintsNoTerminalEscapes checks that the content of a record cannot move the reader's cursor.
func TestReplayPrintsNoTerminalEscapes(t *testing.T) {
	var out bytes.Buffer
	group := replay.Group{
		SPIFFEID: "spiffe://acme.test/\x1b[2J", Scope: "x\u202ey", Changes: 1, Counts: map[replay.Shift]int64{replay.NewlyDenied: 1},
		Samples: map[replay.Shift][]string{replay.NewlyDenied: {"01\r"}},
	}
	if err := printGroups(&out, []replay.Group{group}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\r\u202e") || !strings.Contains(got, `\u001b[2J`) {
		t.Errorf("got %q, want escapes", got)
	}
}

func TestProgress(t *testing.T) {
	for _, tc := range []struct {
		name  string
		p     progress
		takes time.Duration
		want  string
	}{
		{"quick", progress{every: reportEvery}, 900 * time.Millisecond, ""},
		{"quick on a terminal", progress{every: redrawEvery, redraws: true}, 900 * time.Millisecond, ""},
		{"lines", progress{every: reportEvery}, 12 * time.Second, "1s done\n6s done\n11s done\n"},
		{"terminal", progress{every: redrawEvery, redraws: true}, 1500 * time.Millisecond, "\r1s done\r1.2s done\r1.4s done\r         \r"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				tc.p.out = &out
				began := time.Now()
				stop := tc.p.follow(func() string { return time.Since(began).String() + " done" })
				<-time.After(tc.takes)
				stop()
				if got := out.String(); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// TestProgressWritesOver checks that a shorter line leaves nothing of a longer one behind.
func TestProgressWritesOver(t *testing.T) {
	var out bytes.Buffer
	p := progress{out: &out, redraws: true}
	p.print("long line")
	p.print("short")
	if got, want := out.String(), "\rlong line\rshort    "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReplayProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at replayProgress
		wants := func(want string) {
			t.Helper()
			if got := at.line(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		wants("counting recorded decisions")
		at.begin(1000)
		wants("replayed 0 of 1000 decisions (0%)")
		at.done.Store(250)
		<-time.After(4 * time.Second)
		wants("replayed 250 of 1000 decisions (25%), about 12s left")
	})
}
