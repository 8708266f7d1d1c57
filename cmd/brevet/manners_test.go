package main

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// TestHelpAndVersionInEveryUsualForm checks the forms that people try first.
func TestHelpAndVersionInEveryUsualForm(t *testing.T) {
	t.Parallel()
	whole := brevet(t, nil, "--help")
	whole.want(t, 0, "Usage: brevet <command>", "Sandbox commands:", "Other commands:", "completion")
	if strings.Contains(whole.out, "\n  complete ") || strings.Contains(whole.out, "confined") {
		t.Errorf("the help lists a hidden command:\n%s", whole.out)
	}
	for _, args := range [][]string{{}, {"help"}} {
		if got := brevet(t, nil, args...); got != whole {
			t.Errorf("%v: got %+v, want the help on standard output and exit code 0", args, got)
		}
	}
	for _, command := range [][]string{{"catalog"}, {"catalog", "apply"}, {"exec"}, {"egress", "connect"}, {"help"}} {
		want := brevet(t, nil, append(slices.Clone(command), "--help")...)
		want.want(t, 0, "Usage: brevet "+strings.Join(command, " "))
		if got := brevet(t, nil, append([]string{"help"}, command...)...); got != want {
			t.Errorf("help %v: got %+v, want %+v", command, got, want)
		}
	}
	brevet(t, nil, "help", "nonsense").want(t, 2, "unexpected argument nonsense")
	if version, flag := brevet(t, nil, "version"), brevet(t, nil, "--version"); flag != version || flag.code != 0 || flag.out == "" {
		t.Errorf("got %+v for --version, want %+v", flag, version)
	}
}

// TestInvalidCommandLineNamesTheHelpOfItsCommand checks every place of a command line where a mistake can be.
func TestInvalidCommandLineNamesTheHelpOfItsCommand(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"nonsense":                  "Try: brevet --help\n",
		"--nonsense":                "Try: brevet --help\n",
		"catalog":                   "Try: brevet catalog --help\n",
		"catalog aply":              "Try: brevet catalog --help\n",
		"catalog apply":             "Try: brevet catalog apply --help\n",
		"catalog schema --for x":    "Try: brevet catalog schema --help\n",
		"revoke --nonsense":         "Try: brevet revoke --help\n",
		"audit list --limit x":      "Try: brevet audit list --help\n",
		"quarantine remove --at":    "Try: brevet quarantine remove --help\n",
		"completion tcsh":           "Try: brevet completion --help\n",
		"dev nonsense --state /tmp": "Try: brevet dev",
	} {
		got := brevet(t, nil, strings.Fields(line)...)
		got.want(t, 2, want)
		if !strings.HasPrefix(got.err, "brevet: ") || got.out != "" {
			t.Errorf("%s: got %+v, want the mistake on standard error", line, got)
		}
	}
}

// completions are command lines up to the cursor, and what may stand there.
var completions = []struct {
	line string
	want []string
}{
	{"brevet catalog sch", []string{"schema"}},
	{"brevet cata", []string{"catalog"}},
	{"brevet help cata", []string{"catalog"}},
	{"brevet help catalog sch", []string{"schema"}},
	{"brevet -o json catalog sch", []string{"schema"}},
	{"brevet -o j", []string{"json"}},
	{"brevet --output ", []string{"json", "text"}},
	{"brevet catalog schema --for ex", []string{"examples"}},
	{"brevet catalog explain folder scope --svid x", []string{"x509"}},
	{"brevet completion ", []string{"bash", "fish", "zsh"}},
	{"brevet revoke --trust-d", []string{"--trust-domain"}},
	{"brevet revoke --task t --spiffe", []string{"--spiffe-id"}},
	{"brevet dev --github-ap", []string{"--github-app"}},
	{"brevet conf", nil},             // hidden
	{"brevet completion bash ", nil}, // nothing may follow
}

// TestCandidates checks what the hidden command prints for every shell.
func TestCandidates(t *testing.T) {
	t.Parallel()
	for _, tc := range append(slices.Clone(completions), []struct {
		line string
		want []string
	}{
		{"brevet catalog schema --for=ex", []string{"--for=examples"}},
		{"brevet catalog schema --for = ex", []string{"examples"}}, // as bash splits words
		{"brevet catalog schema --for =", []string{"examples", "policies", "scopes"}},
		{"brevet exec --egress -- ca", nil}, // another program
		{"brevet nonsense -", slices.Sorted(maps.Keys(map[string]bool{"--help": true, "--output": true, "--version": true}))},
	}...) {
		words := strings.Split(tc.line, " ")[1:]
		got := inProcess(t, append([]string{"complete", "--"}, words...)...)
		got.want(t, 0)
		var texts []string
		for line := range strings.Lines(got.out) {
			text, _, _ := strings.Cut(line, "\t")
			texts = append(texts, text)
		}
		if slices.Sort(texts); !slices.Equal(texts, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.line, texts, tc.want)
		}
	}
	if got := inProcess(t, "complete", "--", ""); got.code != 0 || !strings.Contains(got.out, "request\tRequest a credential") {
		t.Errorf("got %+v, want all commands", got)
	}
}

// TestShellsComplete checks the scripts in the shells themselves: bash, which every developer of Brevet has, and fish, if the
// machine has it. The script for zsh is at least read by zsh.
func TestShellsComplete(t *testing.T) {
	t.Parallel()
	env := append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
	run := func(t *testing.T, shell, script string) []string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), shell, "-c", script)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", shell, err, out)
		}
		var words []string
		for line := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words = append(words, word)
		}
		return words
	}
	for _, tc := range append(slices.Clone(completions), struct {
		line string
		want []string
	}{"brevet catalog schema --for = ex", []string{"examples"}}) {
		words := "'" + strings.ReplaceAll(tc.line, " ", "' '") + "'"
		got := run(t, "bash", "set -u; source <(brevet completion bash); COMP_WORDS=("+words+"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _brevet; printf '%s\\n' \"${COMPREPLY[@]-}\"")
		got = slices.DeleteFunc(got, func(word string) bool { return word == "" })
		if slices.Sort(got); !slices.Equal(got, tc.want) {
			t.Errorf("bash: %s: got %q, want %q", tc.line, got, tc.want)
		}
	}
	if _, err := exec.LookPath("fish"); err == nil {
		for _, tc := range completions {
			if tc.want == nil {
				continue // fish offers file names
			}
			got := run(t, "fish", "brevet completion fish | source; complete -C '"+tc.line+"'")
			if slices.Sort(got); !slices.Equal(got, tc.want) {
				t.Errorf("fish: %s: got %q, want %q", tc.line, got, tc.want)
			}
		}
	}
	if _, err := exec.LookPath("zsh"); err == nil {
		run(t, "zsh", "autoload -U compinit; compinit -u -D; source <(brevet completion zsh); [[ $_comps[brevet] = _brevet ]]")
	}
}

// TestLooseParametersTakeTheTypeOfTheScope checks every text that could be something else, for every type.
func TestLooseParametersTakeTheTypeOfTheScope(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		arg      string
		declared scopes.ParamType
		want     any
	}{
		{"p=5", scopes.ParamInt, json.Number("5")},
		{"p=-5", scopes.ParamInt, json.Number("-5")},
		{"p=9007199254740993", scopes.ParamInt, json.Number("9007199254740993")},
		{"p=5", scopes.ParamString, "5"},
		{"p=5", scopes.ParamEnum, "5"},
		{"p=5", scopes.ParamBool, "5"},
		{"p=5", "", "5"}, // no such parameter
		{"p=true", scopes.ParamBool, true},
		{"p=false", scopes.ParamBool, false},
		{"p=true", scopes.ParamString, "true"},
		{"p=true", scopes.ParamInt, "true"},
		{"p=True", scopes.ParamBool, "True"},
		{"p=05", scopes.ParamInt, "05"},
		{"p=5.0", scopes.ParamInt, "5.0"},
		{"p=5e1", scopes.ParamInt, "5e1"},
		{"p= 5", scopes.ParamInt, " 5"},
		{"p=", scopes.ParamInt, ""},
		{`p:="5"`, scopes.ParamInt, "5"}, // JSON stays as it is written
		{"p:=5", scopes.ParamString, json.Number("5")},
	} {
		params, err := parseParams([]string{tc.arg})
		if err != nil {
			t.Fatal(err)
		}
		if settle(params, func(string) scopes.ParamType { return tc.declared }); params["p"] != tc.want {
			t.Errorf("%s for %s: got %#v, want %#v", tc.arg, tc.declared, params["p"], tc.want)
		}
	}
}

// TestRefusalBeginsWithReasonAndWayOut checks the order: what happened, why, what would pass, and the prose at the end.
func TestRefusalBeginsWithReasonAndWayOut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		problem openapi.Problem
		want    string
	}{
		{
			openapi.Problem{
				Title: "Denied by policy", Detail: "Policy denies.", Code: openapi.CodeDenied, Explanation: "No policy permits.", ID: "i-1",
				Narrowest: openapi.NarrowestAsk{Scope: "a.b", Params: map[string]any{"n": json.Number("5")}},
			},
			"Denied by policy\n  why        No policy permits.\n  would pass brevet request a.b n:=5\n  record     i-1\n  request    r\nPolicy denies.\n",
		},
		{
			openapi.Problem{Title: "Not found", Detail: "It does not exist.", Code: openapi.CodeNotFound},
			"Not found\nIt does not exist.\n  request    r\n",
		},
	} {
		var out, errOut strings.Builder
		_ = explain(&console{out: &out, err: &errOut}, &client.Problem{Problem: tc.problem, RequestID: "r"})
		if errOut.String() != tc.want {
			t.Errorf("got\n%s\nwant\n%s", errOut.String(), tc.want)
		}
	}
}
