package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exampleCatalogue = "../../examples/catalog"

func TestCatalogCheckAcceptsTheExample(t *testing.T) {
	got := inProcess(t, "catalog", "check", exampleCatalogue)
	got.want(t, 0)
	table, digest, ok := strings.Cut(got.out, "sha256:")
	if want := golden(t, "check.golden"); table != want {
		t.Errorf("got\n%s\nwant\n%s", table, want)
	}
	if !ok || len(strings.TrimSpace(digest)) != 64 {
		t.Errorf("got digest %q, want 64 hex digits", digest)
	}
	report := object(t, inProcess(t, "catalog", "check", exampleCatalogue, "--output", "json").out)
	if report["ok"] != true || report["digest"] != "sha256:"+strings.TrimSpace(digest) || report["scopes"] != 25.0 {
		t.Errorf("got %v, want the same in JSON", report)
	}
}

// TestCatalogCheckReportsEveryProblemAtOnce checks that each problem of a catalogue is reported with its place and with
// what to write instead.
func TestCatalogCheckReportsEveryProblemAtOnce(t *testing.T) {
	got := inProcess(t, "catalog", "check", "testdata/broken")
	got.want(t, 1)
	if _, list, _ := strings.Cut(got.err, "broken: "); list != golden(t, "broken.golden") {
		t.Errorf("got\n%s\nwant\n%s", list, golden(t, "broken.golden"))
	}
	if got.out != "" {
		t.Errorf("got %q on standard output, want nothing", got.out)
	}
	inJSON := inProcess(t, "catalog", "check", "testdata/broken", "--output", "json")
	inJSON.want(t, 1)
	report := object(t, inJSON.out)
	problems, _ := report["problems"].([]any)
	if report["ok"] != false || len(problems) != 7 {
		t.Fatalf("got %v, want ok false and 7 problems", report)
	}
	first, _ := problems[1].(map[string]any)
	if first["file"] != "scopes.yaml" || first["line"] != 5.0 || !strings.Contains(first["what"].(string), `authority "look"`) {
		t.Errorf("got %v, want file, line and what of the first problem", first)
	}
}

// TestCatalogCheckFindsTyposInPolicies checks that a typo in a policy is found by the schema that the scopes imply.
func TestCatalogCheckFindsTyposInPolicies(t *testing.T) {
	for _, tc := range []struct{ name, from, to, want string }{
		{"parameter", "context.params.repo", "context.params.rpo", "sandboxes.cedar:10: policy research-reads-issues: attribute `rpo`"},
		{"scope", `"calendar.events.read"`, `"calendar.event.read"`, "did you mean calendar.events.read?"},
		{"syntax", "permit (", "permitt (", "sandboxes.cedar:"},
		{"value", `context.params.repo like "acme/*"`, `context.params.repo == "acme"`, `no request has params.repo "acme": it must match`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.CopyFS(folder, os.DirFS(exampleCatalogue)); err != nil {
				t.Fatal(err)
			}
			edit(t, filepath.Join(folder, "sandboxes.cedar"), tc.from, tc.to)
			inProcess(t, "catalog", "check", folder).want(t, 1, tc.want, "the catalogue cannot be loaded")
		})
	}
}

func TestCatalogCheckOfAnEmptyFolder(t *testing.T) {
	inProcess(t, "catalog", "check", t.TempDir()).want(t, 1, "no scopes; add a .yaml file", "no policies")
}

func TestCatalogSchema(t *testing.T) {
	inProcess(t, "catalog", "schema", exampleCatalogue).want(t, 0, `action "github.issues.read"`, "entity Sandbox in [Path, TrustDomain]")
	inProcess(t, "catalog", "schema", "testdata/broken").want(t, 1, "testdata/broken", `authority "look"`)
}

func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// edit replaces every occurrence of from in a file. There must be at least one.
func edit(t *testing.T, path, from, to string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(text), from, to)
	if changed == string(text) {
		t.Fatalf("%q is not in %s", from, path)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}
