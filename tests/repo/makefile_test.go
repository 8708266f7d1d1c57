package repo_test

import (
	"os"
	"regexp"
	"testing"
)

// An undefined name in the Makefile is empty. In a pattern of tests to skip, that skips every test.
func TestMakefileDefinesItsNames(t *testing.T) {
	source, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	// The last four are for those who call make.
	defined := map[string]bool{"MAKE": true, "MAKEFILE_LIST": true, "CURDIR": true, "FROM": true, "SOAK": true, "SEED": true, "CLAIMS": true}
	for _, d := range regexp.MustCompile(`(?m)^(?:[a-z-]+: )?([A-Z]+) *[:?]?=`).FindAllSubmatch(source, -1) {
		defined[string(d[1])] = true
	}
	uses := regexp.MustCompile(`\$\(([A-Z_]+)\)`).FindAllSubmatch(source, -1)
	if len(uses) < 20 {
		t.Fatalf("saw %d names: they are not being read", len(uses))
	}
	for _, use := range uses {
		if name := string(use[1]); !defined[name] {
			t.Errorf("the Makefile uses %s, which it does not define", name)
		}
	}
}
