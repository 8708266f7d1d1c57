package repo_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testLink = regexp.MustCompile(`\]\(([\w/.-]+_test\.go) "(Test\w+)"\)`)

// What the README claims leads to the file of a test, whose name the link shows.
func TestREADMELeadsToTests(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if all := regexp.MustCompile(`_test\.go`).FindAll(text, -1); len(all) != len(testLink.FindAll(text, -1)) || len(all) < 20 {
		t.Errorf("got %d links to tests, of which %d say to which one", len(all), len(testLink.FindAll(text, -1)))
	}
	for _, link := range testLink.FindAllStringSubmatch(string(text), -1) {
		file, err := os.ReadFile(link[1])
		if err != nil {
			t.Error(err)
		}
		if !regexp.MustCompile(`(?m)^func ` + link[2] + `\(t \*testing\.T\)`).Match(file) {
			t.Errorf("%s has no %s", link[1], link[2])
		}
	}
}

// Every link from a document to a file of the repository leads somewhere.
func TestLinksInDocumentsResolve(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#\s:]+)(?:#[^)]*)?\)`)
	seen := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" || strings.HasPrefix(path, ".") || strings.HasPrefix(path, "bin/") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, link := range links.FindAllStringSubmatch(string(text), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), link[1])); err != nil {
				t.Errorf("%s links to %s: %v", path, link[1], err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("got %d links: the documents are not being read", seen)
	}
}
