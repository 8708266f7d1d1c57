package repo_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/assurance.md again")

const (
	assuranceDoc = "docs/assurance.md"
	resultsFile  = "docs/results.txt"
)

// claims are what SECURITY.md promises, in a few words. A test that shows one names it in a comment, or in what it says when it
// fails.
var claims = []struct{ name, says string }{
	{"I1", "No credential byte on a socket before its durable record."},
	{"I2", "Every lease, token and certificate maps to one issuance; within 60 seconds of a crash nothing else is alive."},
	{"I3", "A credential lives no longer than the tightest bound on it."},
	{"I4", "What people have approved is issued once at most, and exactly as they were shown it."},
	{"I5", "A quorum is of distinct people who may decide, and none of whom it is for."},
	{"I6", "After a revocation is acknowledged, no replica calls the credential active."},
	{"I7", "What was minted equals the intent, or it is not delivered."},
	{"I8", "Any change of the record is found."},
	{"I9", "No secret in logs, database, errors, traces, metrics or dumps."},
	{"I10", "Any error, timeout or undefined value means no mint."},
	{"I11", "A decision reads one snapshot."},
	{"I12", "Denials and refused calls are recorded, or counted."},
	{"I13", "States only move forward, each with one writer."},
	{"I14", "One trust domain cannot see another's data."},
	{"I15", "The database never goes back, or nothing is issued."},
	{"I16", "Delivered secrets are never at rest."},
	{"T1", "A sandbox that is compromised, or led by what it has read."},
	{"T2", "A scope admin who widens their own reach."},
	{"T3", "A database admin who edits the record, or votes."},
	{"T4", "A stolen Vault token of the broker."},
	{"T5", "Somebody in the middle, towards Vault or Postgres."},
	{"T6", "One trust domain that acts in another."},
	{"T7", "An approval that is forged, or of something else than was seen."},
	{"T8", "Replay."},
	{"T9", "A looping agent."},
	{"T10", "Stolen logs, traces and cores."},
	{"C1", "Before the request commits."},
	{"C2", "The answer to the commit of the intent is lost."},
	{"C3", "The answer with the wrapper token is lost."},
	{"C4", "The answer with the credential is lost."},
	{"C5", "Minted, and not recorded."},
	{"C6", "Recorded, and neither delivered nor renewed."},
	{"C7", "The answer cannot be written."},
	{"C8", "A crash while revoking."},
	{"C9", "Between the quorum and the intent."},
}

// parts are those of the document, by the letter of their claims.
var assuranceParts = []struct{ letter, title, about string }{
	{"I", "Invariants", "What always holds, as [SECURITY.md](../SECURITY.md#what-always-holds) says it in full."},
	{"T", "Threats", "What stops each is in [SECURITY.md](../SECURITY.md#what-brevet-defends-against)."},
	{"C", "Crash points", "A replica is killed, panics, stalls or gets an error there: [faults.md](faults.md) has the results by kind of credential."},
}

// suites are what can be run as a whole, in the order of `make assurance`.
var suites = []struct{ name, does string }{
	{"hostile", "what must not work, sent to two replicas: [hostile-inputs.md](hostile-inputs.md)"},
	{"faults", "everything is broken at every point: [faults.md](faults.md)"},
	{"canary", "secrets are looked for, in every spelling, in all that a broker's work leaves behind: [canary](../tests/canary/canary_test.go)"},
	{"history", "what many callers of two replicas saw while things failed, held to models: [history](../tests/history/models_test.go)"},
	{"soak", "two replicas at work for an hour, while something goes wrong each minute: [soak](../tests/bench/soak_test.go)"},
	{"upgrade", "two replicas under load go from the version before the last migration to this one and back, or from the same version before the first migration is added: [upgrade](../tests/upgrade/upgrade_test.go)"},
	{"tamper", "a ledger is changed as its owner could: [audit.md](audit.md)"},
	{"conformance", "the OAuth surface against its specifications: [oauth.md](oauth.md)"},
	{"egress", "every way around the egress gateway: [egress.md](egress.md)"},
	{"e2e", "a browser in the console: [console.md](console.md)"},
	{"rotation", "long-lived clients at work while SVIDs and authorities rotate: [rotation](../tests/rotation/rotation_test.go)"},
	{"docs-run", "each command of README and docs, twice: [docs](../tests/docs/docs_test.go)"},
}

// evidence is where a claim is shown: files, each with its tests by name. A file without a test holds what tests of its package use.
type evidence map[string][]string

// Every claim is shown by a test, and the document leads to where it is.
func TestAssurance(t *testing.T) {
	shown := namedInTests(t)
	for _, c := range claims {
		tests := slices.Concat(slices.Collect(maps.Values(shown[c.name]))...)
		if len(shown[c.name]) == 0 || c.name[0] != 'C' && len(tests) == 0 {
			t.Errorf("no test names %s: %s", c.name, c.says)
		}
	}
	if *update {
		if err := os.WriteFile(assuranceDoc, []byte(assurance(t, shown)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(assuranceDoc)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range stale(string(text), shown) {
		t.Errorf("%s %s: run go test ./tests/repo -run TestAssurance -update", assuranceDoc, fault)
	}
	if !strings.Contains(string(text), resultsTable(t)) {
		t.Errorf("%s has other results than %s", assuranceDoc, resultsFile)
	}
	security, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`(?m)^(?:- \*\*|\| )([IT]\d+)\b`).FindAllStringSubmatch(string(security), -1) {
		if !slices.ContainsFunc(claims, func(c struct{ name, says string }) bool { return c.name == name[1] }) {
			t.Errorf("SECURITY.md promises %s, which is not among the claims", name[1])
		}
	}
}

// A document that leads to nothing, or leaves a claim out, is found.
func TestStaleAssurance(t *testing.T) {
	shown := map[string]evidence{}
	var whole strings.Builder
	for _, c := range claims {
		shown[c.name] = evidence{"a_test.go": {"TestA", "TestB"}}
		whole.WriteString("### " + c.name + "\n\n- [a_test.go](../a_test.go): TestA, TestB\n\n")
	}
	if faults := stale(whole.String(), shown); len(faults) != 0 {
		t.Errorf("got %v of a document that is right", faults)
	}
	for name, text := range map[string]string{
		"a file that is gone":      strings.Replace(whole.String(), "a_test.go", "b_test.go", 2),
		"a test that is gone":      strings.Replace(whole.String(), "TestA", "TestGone", 1),
		"a claim without a test":   strings.Replace(whole.String(), "- [a_test.go](../a_test.go): TestA, TestB\n", "", 1),
		"a claim that is left out": strings.Replace(whole.String(), "### I1\n", "", 1),
	} {
		if len(stale(text, shown)) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}

var claimName = regexp.MustCompile(`\b(I(?:[1-9]|1[0-6])|T(?:[1-9]|10)|C[1-9])\b`)

// otherC is what only looks like a crash point: bytes of UTF-8 in a URL, and control characters.
var otherC = regexp.MustCompile(`%C\d|\bC1 controls?|OSC 52, C1`)

// namedInTests finds the claims that comments and texts of tests name.
func namedInTests(t *testing.T) map[string]evidence {
	t.Helper()
	shown := map[string]evidence{}
	files := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "tools" || path == "internal/devstack/vaultd" || path != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go") || path == "tests/repo/assurance_test.go":
			return nil
		}
		files++
		return namedIn(path, shown)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Fatalf("saw %d files with tests: they are not being read", files)
	}
	return shown
}

func namedIn(path string, shown map[string]evidence) error {
	source, err := os.ReadFile(path)
	if err != nil || !claimName.Match(source) {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		return err
	}
	note := func(text string, at token.Pos) {
		for _, name := range claimName.FindAllString(otherC.ReplaceAllString(text, ""), -1) {
			if shown[name] == nil {
				shown[name] = evidence{}
			}
			tests := shown[name][path]
			if test := testAt(file, at); test != "" && !slices.Contains(tests, test) {
				tests = append(tests, test)
			}
			shown[name][path] = tests
		}
	}
	for _, group := range file.Comments {
		note(group.Text(), group.Pos())
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
			note(text.Value, text.Pos())
		}
		return true
	})
	return nil
}

// testAt is the test that a place in a file belongs to, its comment included.
func testAt(file *ast.File, at token.Pos) string {
	for _, decl := range file.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok || function.Recv != nil || !strings.HasPrefix(function.Name.Name, "Test") || function.Name.Name == "TestMain" {
			continue
		}
		from := function.Pos()
		if function.Doc != nil {
			from = function.Doc.Pos()
		}
		if from <= at && at < function.End() {
			return function.Name.Name
		}
	}
	return ""
}

var shownLine = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(\.\./([^)]+)\)(?:: (.+))?$`)

// stale tells what a document says that is not so. That it lacks a test which came later is no fault.
func stale(text string, shown map[string]evidence) (faults []string) {
	sections := map[string]string{}
	for section := range strings.SplitSeq(text, "\n### ") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(section, "### "), "\n")
		sections[name] = rest
	}
	for _, c := range claims {
		lines := shownLine.FindAllStringSubmatch(sections[c.name], -1)
		if len(lines) == 0 {
			faults = append(faults, "shows nothing for "+c.name)
		}
		for _, line := range lines {
			tests, found := shown[c.name][line[2]]
			if !found || line[1] != line[2] {
				faults = append(faults, fmt.Sprintf("leads from %s to %s", c.name, line[2]))
			}
			for test := range strings.SplitSeq(line[3], ", ") {
				if test != "" && !slices.Contains(tests, test) {
					faults = append(faults, fmt.Sprintf("leads from %s to %s in %s", c.name, test, line[2]))
				}
			}
		}
	}
	return faults
}

// assurance is the document.
func assurance(t *testing.T, shown map[string]evidence) string {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`# Assurance

What is promised, and the tests that show it: those that name it in their comments, or in what they say when they fail. Written by
` + "`go test ./tests/repo -run TestAssurance -update`" + `; without ` + "`-update`" + ` that fails when a promise has no test, or when a line below leads to none.

## Last results

` + "`make assurance`" + ` runs all of these, keeps what they end with, and the commit that it was, in [results.txt](results.txt). Each can be run alone.

` + resultsTable(t))
	for _, part := range assuranceParts {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", part.title, part.about)
		for _, c := range claims {
			if !strings.HasPrefix(c.name, part.letter) {
				continue
			}
			fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", c.name, c.says)
			for _, path := range slices.Sorted(maps.Keys(shown[c.name])) {
				fmt.Fprintf(&b, "- [%s](../%s)", path, path)
				if tests := shown[c.name][path]; len(tests) > 0 {
					fmt.Fprintf(&b, ": %s", strings.Join(tests, ", "))
				}
				b.WriteByte('\n')
			}
		}
	}
	b.WriteString("\n## Hostile inputs\n\nH1 and on are in [hostile-inputs.md](hostile-inputs.md), each with the file of its test; `go test ./tests/repo` holds that list to the tests.\n")
	return b.String()
}

var resultLine = regexp.MustCompile(`^([a-z0-9-]+) (\d{4}-\d\d-\d\d) ([0-9a-f]{7,40}) ([1-9]\d* passed, 0 failed)$`)

// resultsTable is what was kept of each suite.
func resultsTable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(resultsFile)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]string{}
	for line := range strings.Lines(string(text)) {
		said := resultLine.FindStringSubmatch(strings.TrimSpace(line))
		if said == nil {
			t.Fatalf("%s: %q is not a suite, a day, a commit without changes and how many passed, none failed", resultsFile, line)
		}
		kept[said[1]] = fmt.Sprintf("%s, at %s on %s", said[4], said[3], said[2])
	}
	var b strings.Builder
	b.WriteString("| | what it does | last result |\n| --- | --- | --- |\n")
	for _, s := range suites {
		result := kept[s.name]
		if result == "" {
			result = "none kept yet"
		}
		fmt.Fprintf(&b, "| `make %s` | %s | %s |\n", s.name, s.does, result)
	}
	return b.String()
}
