package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// TestInvalidCommandLinesAreExplained checks that an invalid command line is reported with what is wrong and where to read on,
// and that scripts can tell it from a refusal.
func TestInvalidCommandLinesAreExplained(t *testing.T) {
	for _, tc := range []struct{ name, args, want string }{
		{"no subcommand", "catalog", "expected one of"},
		{"unknown command", "catalog isue", "unexpected argument isue"},
		{"unknown flag", "version --colour", "unknown flag --colour"},
		{"unknown format", "version -o xml", `--output must be one of "text","json"`},
		{"no scope", "request --task t --server https://b --workload-api unix:///s", "name a scope"},
		{"no task", "request s --server https://b --workload-api unix:///s", "--task"},
		{"no broker", "request s --task t --workload-api unix:///s", "--server"},
		{"unknown state", "audit list --status lost --server https://b --workload-api unix:///s", "--status must be one of"},
		{"TTL without a unit", "request s --ttl 300 --task t --server https://b --workload-api unix:///s", "--ttl"},
		{"no such folder", "catalog check /nonexistent/catalog", "/nonexistent/catalog"},
		{"down without a yes", "migrate down --database-url-file u", "--yes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := inProcess(t, strings.Fields(tc.args)...)
			got.want(t, 2, tc.want, "Try: brevet ", " --help\n")
			if got.out != "" {
				t.Errorf("got %q on standard output, want nothing", got.out)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	inProcess(t, "version").want(t, 0, "brevet ", "go1.")
	got := inProcess(t, "version", "--output", "json")
	got.want(t, 0)
	if parsed := object(t, got.out); parsed["version"] == "" || parsed["go"] == "" {
		t.Errorf("got %s, want a version and a Go version", got.out)
	}
}

// TestEncodedJSONIsEscapedAndEquivalent checks that escaped JSON decodes to the same value, and contains no raw control or invisible
// characters.
func TestEncodedJSONIsEscapedAndEquivalent(t *testing.T) {
	const hostile = "é \x1b[31m \u009b \u202e \U000e0041 \x7f \ufe0f 漢"
	var out bytes.Buffer
	if err := (&console{out: &out}).encode(map[string]string{"reason": hostile}); err != nil {
		t.Fatal(err)
	}
	if rest := strings.TrimSuffix(out.String(), "\n"); safetext.Text(rest) != rest || !strings.Contains(rest, "é") || !strings.Contains(rest, "漢") {
		t.Errorf("got %q, want what is visible and escapes for the rest", rest)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["reason"] != hostile {
		t.Errorf("got %q back, %v", back["reason"], err)
	}
}

func TestDurationsHaveNoZeroUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 5 * time.Second: "5s", 5 * time.Minute: "5m", 90 * time.Second: "1m30s", time.Hour: "1h", 10 * time.Hour: "10h",
		time.Hour + time.Second: "1h0m1s", 90 * time.Minute: "1h30m", 40 * time.Minute: "40m",
	} {
		if got := spell(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	if got := timeLeft(time.Now().Add(-time.Hour)); got != "0s" {
		t.Errorf("past: got %q, want 0s", got)
	}
}

func TestPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 entries", 1: "1 entry", 2: "2 entries"} {
		if got := plural(n, "entry", "entries"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestParseParams(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want map[string]any
		err  string
	}{
		{name: "none", want: map[string]any{}},
		{name: "text", args: []string{"repo=acme/api", "q=a=b", "empty="}, want: map[string]any{"repo": "acme/api", "q": "a=b", "empty": ""}},
		{name: "text that looks like a number", args: []string{"n=7"}, want: map[string]any{"n": loose("7")}},
		{name: "JSON", args: []string{"ok:=true", `s:="x"`}, want: map[string]any{"ok": true, "s": "x"}},
		{name: "a number beyond float64", args: []string{"n:=9007199254740993"}, want: map[string]any{"n": json.Number("9007199254740993")}},
		{name: "no value", args: []string{"repo"}, err: `"repo" is neither name=text nor name:=JSON`},
		{name: "no name", args: []string{"=acme/api"}, err: `"=acme/api" is neither name=text nor name:=JSON`},
		{name: "twice", args: []string{"a=1", "a:=2"}, err: "parameter a is given twice"},
		{name: "no JSON", args: []string{"n:=seven"}, err: `parameter n: "seven" is not one JSON value`},
		{name: "more than one JSON value", args: []string{"n:=1 2"}, err: "parameter n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseParams(tc.args)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want an error that says %q", err, tc.err)
				}
				return
			}
			if err != nil || !maps.Equal(got, tc.want) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

// TestCommandLineSurvivesAShell checks that a printed command can be pasted: a shell must read its values as values,
// whatever they contain.
func TestCommandLineSurvivesAShell(t *testing.T) {
	for _, tc := range []struct {
		name string
		ask  openapi.NarrowestAsk
		want string
	}{
		{
			"plain",
			openapi.NarrowestAsk{Scope: "github.issues.write", Params: map[string]any{"repo": "acme/api"}, TTL: 300, Context: map[string]string{"task": "t-1"}},
			"brevet request github.issues.write repo=acme/api --ttl 5m --task t-1",
		},
		{
			"numbers and booleans",
			openapi.NarrowestAsk{Scope: "s", Params: map[string]any{"cents": float64(1000000), "dry": true}, Context: map[string]string{"task": "t-1", "other_field": "x"}},
			"brevet request s cents:=1000000 dry:=true --other-field x --task t-1",
		},
		{
			"hostile",
			openapi.NarrowestAsk{Scope: "s", Params: map[string]any{"q": `'; touch /tmp/x; $(id) "`}, Context: map[string]string{"task": "t 1"}},
			`brevet request s 'q='\''; touch /tmp/x; $(id) "' --task 't 1'`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := commandLine(tc.ask); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestQuoteIsReadBackByAShell checks the quoting of values with a real shell.
func TestQuoteIsReadBackByAShell(t *testing.T) {
	for _, value := range []string{"acme/api", "", "a b", `'`, `"$HOME" \ !x *`, "~", "-x", "#x", "a;b", "é"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quote(value)).Output()
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != value {
			t.Errorf("%s: the shell reads %q, want %q", quote(value), out, value)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{client.ErrDenied, 3},
		{client.ErrUnavailable, 5},
		{client.ErrRateLimited, 5},
		{client.ErrInvalid, 1},
		{client.ErrUnauthenticated, 1},
		{client.ErrInternal, 1},
		{io.ErrUnexpectedEOF, 1},
	} {
		if got := exitCode(fmt.Errorf("asking: %w", tc.err)); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.err, got, tc.want)
		}
	}
}

// TestPersonMustNameTheTaskOwner checks that people must name the owner of a task before the broker is called.
func TestPersonMustNameTheTaskOwner(t *testing.T) {
	t.Parallel()
	inProcess(t, "audit", "task", "t 1", "--person", "--server", "https://localhost:1").want(t, 1, "brevet audit task 't 1' --spiffe-id spiffe://")
}

// TestExplain checks what a person reads of a problem: what happened, which field is at fault, and no terminal escapes.
func TestExplain(t *testing.T) {
	var out, errOut strings.Builder
	problem := &client.Problem{Problem: openapi.Problem{
		Title: "Invalid request", Detail: "field names it", Code: openapi.CodeInvalidRequest,
		Field: "params.repo", Explanation: "no such\x1b[2J", Policies: []string{"p-1", "p-2"},
	}, RequestID: "r-1"}
	err := explain(&console{out: &out, err: &errOut}, fmt.Errorf("asking: %w", problem))
	var explained exitError
	if !errors.As(err, &explained) || explained.code != 1 {
		t.Errorf("got %v, want it explained, with exit code 1", err)
	}
	for _, want := range []string{"params.repo", `no such\u001b[2J`, "p-1, p-2", "r-1"} {
		if !strings.Contains(errOut.String(), want) {
			t.Errorf("%q is missing in\n%s", want, errOut.String())
		}
	}
	if out.String() != "" {
		t.Errorf("got %q on standard output, want nothing", out.String())
	}
}
