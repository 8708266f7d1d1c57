package mutants_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/tests/mutants"
)

var (
	kill = flag.Bool("kill", false, "make each change and run the test that must find it")
	only = flag.String("claims", "", "the claims whose mutants run, as a regular expression; empty: all")
)

// killed and survived count mutants, and chosen is how many of them run.
var killed, survived, chosen atomic.Int64

func TestMain(m *testing.M) {
	flag.Parse()
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	code := m.Run()
	if *kill {
		code = testkit.Ended(code, int(killed.Load()), int(survived.Load()))
	}
	os.Exit(code)
}

// A claim without a mutant would be shown by tests that perhaps notice nothing.
func TestEveryClaimHasAMutant(t *testing.T) {
	t.Parallel()
	known := map[string]int{}
	for _, c := range mutants.Claims {
		known[c.Name] = 0
	}
	for _, m := range mutants.All() {
		if _, is := known[m.Claim]; !is {
			t.Errorf("the mutant that %s is of %q, which is no claim", m.Breaks, m.Claim)
		}
		known[m.Claim]++
	}
	for name, n := range known {
		if n == 0 {
			t.Errorf("%s has no mutant", name)
		}
	}
}

// A mutant whose line has changed, or whose test has another name, would show nothing.
func TestMutantsFitTheSource(t *testing.T) {
	for _, m := range mutants.All() {
		t.Run(m.Claim+" "+m.Breaks, func(t *testing.T) {
			if m.Old == m.New {
				t.Error("the change changes nothing")
			}
			changed(t, m)
			if !hasTest(t, m.Package, m.TestName()) {
				t.Errorf("%s has no %s", m.Package, m.TestName())
			}
		})
	}
}

// TestMutantsAreKilled needs -kill, which `make mutants` gives: each test passes as the code is, and fails with the change.
func TestMutantsAreKilled(t *testing.T) {
	if !*kill {
		t.Log("make mutants runs it; here only the mutants' texts are checked")
		return
	}
	claims := regexp.MustCompile("^(?:" + *only + ")$")
	var sound sync.Map // test → func() string: what it says of the code as it is, once
	for _, m := range mutants.All() {
		if *only != "" && !claims.MatchString(m.Claim) {
			continue
		}
		chosen.Add(1)
		t.Run(m.Claim+" "+m.Breaks, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			once, _ := sound.LoadOrStore(m.Package+" "+m.Test+" "+strings.Join(m.Args, " "), sync.OnceValues(func() (string, error) { return run(t, m, "") }))
			if said, err := once.(func() (string, error))(); err != nil {
				survived.Add(1)
				t.Fatalf("%s fails without the change: %v\n%s", m.Test, err, tail(said))
			}
			said, err := run(t, m, overlay(t, m))
			switch {
			case err == nil:
				t.Errorf("survives: %s passes although the program %s", m.Test, m.Breaks)
			case !strings.Contains(said, "--- FAIL") || strings.Contains(said, "\npanic: "):
				t.Errorf("%s did not fail but did not run to its end either: %v\n%s", m.Test, err, tail(said))
			default:
				t.Logf("killed by %s in %s:\n%s", m.Test, m.Package, reasons(said))
			}
			how := "killed"
			if t.Failed() {
				how = "SURVIVES"
				survived.Add(1)
			} else {
				killed.Add(1)
			}
			fmt.Fprintf(os.Stderr, "%d of %d %s: %s %s (%s)\n",
				killed.Load()+survived.Load(), chosen.Load(), how, m.Claim, m.Breaks, time.Since(began).Round(time.Second))
		})
	}
}

// changed returns the file of a mutant with its change.
func changed(t *testing.T, m mutants.Mutant) string {
	t.Helper()
	source, err := os.ReadFile(m.File)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.Old); n != 1 {
		t.Fatalf("%s has %d of %q, want 1", m.File, n, m.Old)
	}
	return strings.Replace(string(source), m.Old, m.New, 1)
}

// overlay returns a file that makes the go command see the change, and nothing else of the tree changed.
func overlay(t *testing.T, m mutants.Mutant) string {
	t.Helper()
	folder := t.TempDir()
	file, list := filepath.Join(folder, filepath.Base(m.File)), filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(file, []byte(changed(t, m)), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.File): file}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}

// run runs the test of a mutant. A test that matches nothing is an error.
func run(t *testing.T, m mutants.Mutant, overlay string) (string, error) {
	t.Helper()
	args := []string{"test", "-v", "-count=1", "-timeout=5m", "-run", m.Test}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	args = append(append(args, "./"+m.Package), m.Args...)
	if hasText(t, m.Package, `"pgregory.net/rapid"`) { // it must write nothing to the tree, and need not find the smallest example
		args = append(args, "-rapid.nofailfile", "-rapid.shrinktime=0s")
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err == nil && !strings.Contains(string(out), "--- PASS") {
		err = errors.New("no test ran")
	}
	return string(out), err
}

func tail(said string) string {
	return said[max(0, len(said)-4000):]
}

// failure is a line of a test's output that says what failed.
var failure = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: .*(?:\n {8}.*){0,8}`)

// reasons returns what a test that failed said first.
func reasons(said string) string {
	found := failure.FindAllString(said, 6)
	return strings.Join(found, "\n")
}

// hasTest tells whether a package has a test of that name.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	return hasText(t, folder, "\nfunc "+name+"(t *testing.T)")
}

// hasText tells whether a text is in the tests of a package.
func hasText(t *testing.T, folder, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(source), text)
	})
}
