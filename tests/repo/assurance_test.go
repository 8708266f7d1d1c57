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

	"github.com/brevet-dev/brevet/tests/mutants"
)

var update = flag.Bool("update", false, "write docs/assurance.md again")

const (
	assuranceDoc = "docs/assurance.md"
	resultsFile  = "docs/results.txt"
)

// assuranceParts are the parts of the document, by the letter of their claims.
var assuranceParts = []struct{ letter, title, about string }{
	{"I", "Invariants", "[SECURITY.md](../SECURITY.md#what-always-holds) has the full text of each."},
	{"T", "Threats", "[SECURITY.md](../SECURITY.md#what-brevet-defends-against) says what stops each."},
	{"C", "Crash points", "`make faults` kills, panics or stalls a replica at each of them, or makes a call fail there. [faults.md](faults.md) has the results by kind of credential."},
}

// suites are what can be run as a whole, in the order of the document.
var suites = []struct{ name, does string }{
	{"mutants", "breaks each promise below by small changes of the program; the test that is named with each has to fail: [mutants](../tests/mutants/mutants.go)"},
	{"hostile", "sends hostile inputs to two replicas, which must refuse them: [hostile-inputs.md](hostile-inputs.md)"},
	{"faults", "breaks replicas, Vault and PostgreSQL at every crash point, and checks what is left: [faults.md](faults.md)"},
	{"neighbours", "lets one tenant be loud, and measures what others wait: [neighbours](../tests/neighbours/neighbours_test.go)"},
	{"canary", "searches all that a broker's work leaves behind for its secrets, in every spelling: [canary](../tests/canary/canary_test.go)"},
	{"history", "compares what many callers of two replicas saw during failures with models: [history](../tests/history/models_test.go)"},
	{"soak", "runs two replicas for an hour, with a fault each minute: [soak](../tests/bench/soak_test.go)"},
	{"upgrade", "migrates two replicas under load from the version before the last migration to this one and back: [upgrade](../tests/upgrade/upgrade_test.go)"},
	{"tamper", "changes a ledger in every way that the database's owner can, and checks that auditors find each change: [audit.md](audit.md)"},
	{"conformance", "tests the OAuth API against its specifications, with clients and verifiers of other projects: [oauth.md](oauth.md)"},
	{"egress", "tries to get around the egress gateway: [egress.md](egress.md)"},
	{"integrations", "uses GitHub, clouds and model APIs with their official clients, and runs agents and sandboxes: [integrations](../tests/integrations/integrations_test.go)"},
	{"e2e", "uses the console in a browser: [console.md](console.md)"},
	{"rotation", "keeps long-lived clients at work while SVIDs and authorities rotate: [rotation](../tests/rotation/rotation_test.go)"},
	{"docs-run", "runs each command that README and docs show, twice: [docs](../tests/docs/docs_test.go)"},
}

// evidence is where a claim is shown: files, each with its tests by name. A file without a test holds what tests of its package use.
type evidence map[string][]string

// Every claim is shown by a test, and the document leads to where it is.
func TestAssurance(t *testing.T) {
	shown := namedInTests(t)
	for _, c := range mutants.Claims {
		tests := slices.Concat(slices.Collect(maps.Values(shown[c.Name]))...)
		if len(shown[c.Name]) == 0 || c.Name[0] != 'C' && len(tests) == 0 {
			t.Errorf("no test names %s: %s", c.Name, c.Says)
		}
	}
	for _, m := range mutants.All() {
		if test := m.TestName(); !names(shown[m.Claim], m.Package, test) {
			t.Errorf("%s in %s finds the mutant that %s, but does not name %s", test, m.Package, m.Breaks, m.Claim)
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
		if !slices.ContainsFunc(mutants.Claims, func(c mutants.Claim) bool { return c.Name == name[1] }) {
			t.Errorf("SECURITY.md promises %s, which is not among the claims", name[1])
		}
	}
}

// names tells whether a test is among the evidence. A file of its package without a test of its own has what the package's tests use.
func names(shown evidence, folder, test string) bool {
	for path, tests := range shown {
		if filepath.Dir(path) == folder && (len(tests) == 0 || slices.Contains(tests, test)) {
			return true
		}
	}
	return false
}

// mutantLines are the lines of the document about the mutants of a claim.
func mutantLines(claim string) (lines []string) {
	for _, m := range mutants.All() {
		if m.Claim == claim {
			lines = append(lines, fmt.Sprintf("- Mutant of [%s](../%s): %s. Found by %s in [%s](../%s).", m.File, m.File, m.Breaks, m.TestName(), m.Package, m.Package))
		}
	}
	return lines
}

// A document that leads to nothing, or leaves a claim out, is found.
func TestStaleAssurance(t *testing.T) {
	shown := map[string]evidence{}
	var whole strings.Builder
	for _, c := range mutants.Claims {
		shown[c.Name] = evidence{"a_test.go": {"TestA", "TestB"}}
		whole.WriteString("### " + c.Name + "\n\n- [a_test.go](../a_test.go): TestA, TestB\n" + strings.Join(mutantLines(c.Name), "\n") + "\n\n")
	}
	if faults := stale(whole.String(), shown); len(faults) != 0 {
		t.Errorf("got %v of a document that is right", faults)
	}
	for name, text := range map[string]string{
		"a file that is gone":      strings.Replace(whole.String(), "a_test.go", "b_test.go", 2),
		"a test that is gone":      strings.Replace(whole.String(), "TestA", "TestGone", 1),
		"a claim without a test":   strings.Replace(whole.String(), "- [a_test.go](../a_test.go): TestA, TestB\n", "", 1),
		"a mutant that is gone":    strings.Replace(whole.String(), "\n- Mutant of", "\n- Mutant of [gone.go](../gone.go): does much. Found by TestA in [a](../a).\n- Mutant of", 1),
		"a mutant left out":        strings.Replace(whole.String(), "\n- Mutant of", "\n- Other of", 1),
		"a claim that is left out": strings.Replace(whole.String(), "### I1\n", "", 1),
	} {
		if len(stale(text, shown)) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}

var claimName = regexp.MustCompile(`\b(I(?:[1-9]|1[0-6])|T(?:[1-9]|1[0-2])|C[1-9])\b`)

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

var mutantLine = regexp.MustCompile(`(?m)^- Mutant .+$`)

var shownLine = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(\.\./([^)]+)\)(?:: (.+))?$`)

// stale tells what a document says that is not so. That it lacks a test which came later is no fault.
func stale(text string, shown map[string]evidence) (faults []string) {
	sections := map[string]string{}
	for section := range strings.SplitSeq(text, "\n### ") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(section, "### "), "\n")
		sections[name] = rest
	}
	for _, c := range mutants.Claims {
		lines := shownLine.FindAllStringSubmatch(sections[c.Name], -1)
		if len(lines) == 0 {
			faults = append(faults, "shows nothing for "+c.Name)
		}
		if !slices.Equal(mutantLine.FindAllString(sections[c.Name], -1), mutantLines(c.Name)) {
			faults = append(faults, "has other mutants of "+c.Name)
		}
		for _, line := range lines {
			tests, found := shown[c.Name][line[2]]
			if !found || line[1] != line[2] {
				faults = append(faults, fmt.Sprintf("leads from %s to %s", c.Name, line[2]))
			}
			for test := range strings.SplitSeq(line[3], ", ") {
				if test != "" && !slices.Contains(tests, test) {
					faults = append(faults, fmt.Sprintf("leads from %s to %s in %s", c.Name, test, line[2]))
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

This document is for people who ask whether Brevet does what it promises. It links each promise of [SECURITY.md](../SECURITY.md) to
the tests that show it, and says how we know that these tests would notice if Brevet broke the promise:

- A test that shows a promise names it, in its comment or in the message of its failure.
- Each promise has mutants: small changes of the program that break it, such as a programmer could make by mistake. ` + "`make mutants`" + `
  makes them one by one. The test that is named with a mutant passes without the change, and has to fail with it.
- Suites test whole deployments. A suite with a result below passed completely at the commit in its row.

` + "`make test`" + ` fails if a promise has no test or no mutant, if a mutant no longer fits the source, if its test does not name the promise, or
if a line below leads to nothing. A mutant shows that a test notices one way to break a promise. It does not show that the test notices
every way. Where two layers keep a promise, such as the broker and the database, a mutant breaks one layer, and the test of this layer
finds it.

Do not edit this file: ` + "`make generate`" + ` writes it.

## Last results

` + "`make assurance`" + ` runs all suites, and writes their results and the commit to [results.txt](results.txt). You can run each suite alone.

` + resultsTable(t))
	for _, part := range assuranceParts {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", part.title, part.about)
		for _, c := range mutants.Claims {
			if !strings.HasPrefix(c.Name, part.letter) {
				continue
			}
			fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", c.Name, c.Says)
			for _, path := range slices.Sorted(maps.Keys(shown[c.Name])) {
				fmt.Fprintf(&b, "- [%s](../%s)", path, path)
				if tests := shown[c.Name][path]; len(tests) > 0 {
					fmt.Fprintf(&b, ": %s", strings.Join(tests, ", "))
				}
				b.WriteByte('\n')
			}
			for _, line := range mutantLines(c.Name) {
				b.WriteString(line + "\n")
			}
		}
	}
	b.WriteString("\n## Hostile inputs\n\n[hostile-inputs.md](hostile-inputs.md) lists H1 and on, each with the file of its test. `make hostile` fails if the list differs from the tests.\n")
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
