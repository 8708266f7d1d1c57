package repo_test

import (
	"os"
	"regexp"
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
