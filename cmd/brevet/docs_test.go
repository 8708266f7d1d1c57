package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/brevet-dev/brevet/scopes"
)

const root = "../.."

// documents returns the documents that people read first.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found[path] = string(text)
		}
	}
	if len(found) < 5 {
		t.Fatalf("found %d documents: they are not being read", len(found))
	}
	return found
}

var (
	blocks     = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	inlineCode = regexp.MustCompile("`([^`\n]+)`")
	// A command of brevet, in a line of shell or after the name of a container.
	commands = regexp.MustCompile(`(?:^|[\s/])brevet +((?:serve|ready|probe|dev|demo|scopes|request|exec|egress|git-credential|kube-credential|mcp|audit|catalog|ledger|migrate|bootstrap|version)\b[^|&;#]*)`)
	// Comments and redirections are not arguments.
	shellNoise = regexp.MustCompile(`(?m)\s+#.*$|\s+[0-9]?>\s*[^\s;]+`)
	links      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	targets    = regexp.MustCompile("(?m)(?:^|`)make ([a-z0-9]+(?:-[a-z0-9]+)*)")
)

// TestDocumentedCommandsParse checks that this binary accepts every command that the documents show.
func TestDocumentedCommandsParse(t *testing.T) {
	t.Setenv("BREVET_SERVER", "https://localhost:8443")
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///run/agent.sock")
	count := 0
	for path, text := range documents(t) {
		var code []string
		for _, block := range blocks.FindAllStringSubmatch(text, -1) {
			if block[1] == "sh" || block[1] == "console" {
				text := shellNoise.ReplaceAllString(strings.ReplaceAll(block[2], "\\\n", " "), "")
				code = append(code, strings.Split(text, "\n")...)
			}
		}
		for _, inline := range inlineCode.FindAllStringSubmatch(blocks.ReplaceAllString(text, ""), -1) {
			code = append(code, inline[1])
		}
		for _, line := range code {
			if match := commands.FindStringSubmatch(line); match != nil {
				count++
				parses(t, path, strings.Fields(match[1]))
			}
		}
	}
	if count < 6 {
		t.Errorf("found %d commands: they are not being read", count)
	}
}

func parses(t *testing.T, path string, args []string) {
	t.Helper()
	typed := strings.Join(args, " ")
	if len(args) > 2 && args[0] == "catalog" {
		args[2] = exampleCatalogue // a folder on the reader's machine
	}
	if len(args) == 1 && args[0] != "serve" && args[0] != "ready" && args[0] != "dev" && args[0] != "demo" && args[0] != "version" {
		return // the name of a command in prose
	}
	if _, err := newParser(t.Context(), new(CLI), io.Discard, io.Discard).Parse(args); err != nil {
		t.Errorf("%s: brevet %s: %v", path, typed, err)
	}
}

// TestREADMECatalogueLoads checks that the scope and the policy in the README form a catalogue that a server would
// load.
func TestREADMECatalogueLoads(t *testing.T) {
	files := fstest.MapFS{}
	for _, block := range blocks.FindAllStringSubmatch(documents(t)[filepath.Join(root, "README.md")], -1) {
		if block[1] == "yaml" || block[1] == "cedar" {
			files["readme."+block[1]] = &fstest.MapFile{Data: []byte(block[2])}
		}
	}
	catalogue, err := scopes.LoadFS(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(catalogue.Scopes()) == 0 || len(catalogue.Policies()) == 0 {
		t.Error("the README shows no scope, or no policy")
	}
}

// TestLinksInDocuments checks that links have a target, including the section.
func TestLinksInDocuments(t *testing.T) {
	count := 0
	for path, text := range documents(t) {
		for _, link := range links.FindAllStringSubmatch(blocks.ReplaceAllString(text, ""), -1) {
			file, section, _ := strings.Cut(link[1], "#")
			if strings.Contains(file, "://") || strings.HasPrefix(file, "mailto:") {
				continue
			}
			count++
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if !exists(target) {
				t.Errorf("%s links to %s, which is not there", path, link[1])
			} else if section != "" && !hasSection(t, target, section) {
				t.Errorf("%s links to %s, and there is no such section", path, link[1])
			}
		}
	}
	if count < 10 {
		t.Errorf("found %d links: they are not being read", count)
	}
}

// hasSection reports whether a heading has the anchor that GitHub derives from it.
func hasSection(t *testing.T, path, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		heading := strings.TrimSpace(strings.TrimLeft(line, "#"))
		heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading), "")
		if strings.HasPrefix(line, "#") && strings.ReplaceAll(heading, " ", "-") == anchor {
			return true
		}
	}
	return false
}

// TestDocumentedTargetsExist checks that each `make X` in a document is a target of the Makefile.
func TestDocumentedTargetsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for path, text := range documents(t) {
		for _, match := range targets.FindAllStringSubmatch(text, -1) {
			count++
			if !strings.Contains(string(makefile), "\n"+match[1]+":") {
				t.Errorf("%s says make %s, which the Makefile does not have", path, match[1])
			}
		}
	}
	if count < 3 {
		t.Errorf("found %d targets: they are not being read", count)
	}
}
