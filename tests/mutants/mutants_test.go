package mutants_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/tests/mutants"
)

var (
	kill = flag.Bool("kill", false, "make each change and run the test that must find it (half an hour)")
	only = flag.String("claims", "", "the claims whose mutants run, as a regular expression; empty: all")
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A mutant whose line has changed, or whose test has another name, would show nothing.
func TestMutantsFitTheSource(t *testing.T) {
	for _, m := range mutants.All() {
		t.Run(m.Claim+" "+m.Breaks, func(t *testing.T) {
			if m.Old == m.New {
				t.Error("the change changes nothing")
			}
			changed(t, m)
			name, _, _ := strings.Cut(strings.Trim(m.Test, "^$()"), "/")
			if !hasTest(t, m.Package, name) {
				t.Errorf("%s has no %s", m.Package, name)
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
		t.Run(m.Claim+" "+m.Breaks, func(t *testing.T) {
			t.Parallel()
			once, _ := sound.LoadOrStore(m.Package+" "+m.Test+" "+strings.Join(m.Args, " "), sync.OnceValues(func() (string, error) { return run(t, m, "") }))
			if said, err := once.(func() (string, error))(); err != nil {
				t.Fatalf("%s fails without the change: %v\n%s", m.Test, err, tail(said))
			}
			said, err := run(t, m, overlay(t, m))
			switch {
			case err == nil:
				t.Errorf("survives: %s passes although the program %s", m.Test, m.Breaks)
			case !strings.Contains(said, "--- FAIL"):
				t.Errorf("%s did not fail but did not run to its end either: %v\n%s", m.Test, err, tail(said))
			}
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
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err == nil && !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("go %s ran no test:\n%s", strings.Join(args, " "), tail(string(out)))
	}
	return string(out), err
}

func tail(said string) string {
	return said[max(0, len(said)-4000):]
}

// hasTest tells whether a package has a test of that name.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(source), "\nfunc "+name+"(t *testing.T)")
	})
}
