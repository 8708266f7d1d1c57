package repo_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/brevet-dev/brevet/"

// arrows is the whole of who may import whom inside the module. A new arrow is a decision: it belongs in
// docs/architecture.md too.
var arrows = map[string][]string{
	"internal/secret":             {},
	"internal/passkey":            {},
	"internal/audit":              {"internal/passkey"},
	"scopes":                      {},
	"scopes/diff":                 {"scopes"},
	"scopes/egressrule":           {"scopes"},
	"scopes/replay":               {"scopes"},
	"internal/jws":                {},
	"internal/safetext":           {},
	"internal/ratelimit":          {},
	"internal/clientip":           {},
	"internal/refusal":            {},
	"internal/wait":               {},
	"internal/private":            {},
	"internal/quiet":              {},
	"internal/confine":            {},
	"attest":                      {"internal/jws", "internal/quiet", "internal/refusal", "internal/wait"},
	"openapi":                     {},
	"migrations":                  {},
	"internal/devstack":           {"internal/quiet"},
	"internal/devstack/local":     {"examples", "internal/devstack", "internal/mint", "internal/private", "internal/quiet", "internal/secret", "migrations", "resourceserver", "scopes"},
	"internal/demo":               {"client", "internal/audit", "internal/devstack", "internal/devstack/local", "internal/quiet", "internal/wait", "openapi", "resourceserver"},
	"internal/people":             {"internal/jws", "internal/quiet", "internal/refusal"},
	"internal/token":              {"internal/jws", "internal/refusal"},
	"internal/dpop":               {"internal/jws", "internal/refusal"},
	"broker/approval":             {"internal/passkey", "internal/people", "scopes"},
	"broker":                      {"attest", "broker/approval", "internal/dpop", "internal/passkey", "internal/people", "internal/ratelimit", "internal/secret", "internal/token", "internal/wait", "scopes", "scopes/egressrule"},
	"internal/mint":               {"broker", "internal/github", "internal/jws", "internal/quiet", "internal/safetext", "internal/secret", "internal/wait", "scopes"},
	"internal/tokencache":         {"broker"},
	"internal/ledger/leader":      {"broker", "internal/ledger/postgres", "internal/wait", "migrations"},
	"internal/ledger/postgres":    {"broker", "migrations"},
	"internal/ledger/record":      {"attest", "broker", "scopes"},
	"internal/ledger/retention":   {"internal/ledger/postgres", "internal/ledger/record", "internal/wait", "migrations"},
	"internal/ledger/search":      {"broker", "internal/ledger/postgres", "internal/ledger/record"},
	"internal/ledger/snapshot":    {"internal/audit", "internal/ledger/postgres", "migrations"},
	"internal/ledger/tlog":        {"broker", "internal/audit", "internal/ledger/postgres", "internal/ledger/record", "internal/wait"},
	"internal/ledger":             {"broker", "broker/approval", "internal/dpop", "internal/ledger/leader", "internal/ledger/postgres", "internal/ledger/record", "internal/ledger/search", "internal/ledger/tlog", "internal/passkey", "internal/people", "internal/tokencache", "internal/wait", "migrations", "scopes", "scopes/replay"},
	"internal/httpapi":            {"attest", "broker", "broker/approval", "internal/audit", "internal/clientip", "internal/dpop", "internal/jws", "internal/people", "internal/quiet", "internal/ratelimit", "internal/refusal", "internal/secret", "internal/token", "openapi", "scopes", "scopes/egressrule"},
	"internal/console":            {"broker", "broker/approval", "internal/audit", "internal/clientip", "internal/export", "internal/passkey", "internal/people", "internal/quiet", "internal/ratelimit", "internal/refusal", "internal/safetext", "internal/secret", "openapi", "scopes", "scopes/diff", "scopes/replay"},
	"client":                      {"internal/dpop", "internal/quiet", "internal/secret", "internal/wait", "openapi"},
	"resourceserver":              {"internal/dpop", "internal/jws", "internal/quiet", "internal/refusal", "internal/token"},
	"internal/safehttp":           {"internal/quiet", "internal/secret"},
	"internal/github":             {"internal/quiet", "internal/safetext", "internal/secret"},
	"internal/egress":             {"client", "internal/private", "internal/quiet", "internal/ratelimit", "internal/safehttp", "internal/safetext", "internal/secret", "openapi", "scopes", "scopes/egressrule"},
	"internal/notify/webhook":     {"broker", "internal/safehttp", "internal/secret", "internal/wait"},
	"internal/notify/witness":     {"internal/audit", "internal/safehttp", "internal/secret", "internal/wait"},
	"internal/testkit":            {"attest", "broker", "broker/approval", "client", "internal/audit", "internal/clientip", "internal/console", "internal/devstack", "internal/github", "internal/httpapi", "internal/ledger", "internal/ledger/snapshot", "internal/mint", "internal/passkey", "internal/people", "internal/safehttp", "internal/secret", "internal/testkit/githubapi", "migrations", "scopes"},
	"examples":                    {},
	"internal/export":             {},
	"internal/auditsink":          {"client", "internal/audit", "internal/export", "internal/quiet", "internal/safetext", "internal/secret", "internal/wait"},
	"internal/login":              {"internal/people", "internal/quiet", "internal/refusal", "internal/safetext", "internal/secret"},
	"tests/faults":                {},
	"tests/canary":                {},
	"tests/docs":                  {},
	"tests/integrations":          {},
	"tests/history":               {},
	"tests/mutants":               {},
	"tests/neighbours":            {},
	"tests/hostile":               {},
	"tests/upgrade":               {},
	"tests/bench":                 {"internal/devstack"},
	"tests/rotation":              {},
	"tests/tamper":                {},
	"cmd/brevet":                  {"attest", "broker/approval", "client", "internal/app", "internal/audit", "internal/auditsink", "internal/confine", "internal/demo", "internal/devstack", "internal/devstack/local", "internal/dpop", "internal/egress", "internal/execenv", "internal/export", "internal/ledger", "internal/ledger/retention", "internal/ledger/snapshot", "internal/login", "internal/mcpserver", "internal/mint", "internal/private", "internal/probe", "internal/safehttp", "internal/safetext", "internal/secret", "internal/wait", "migrations", "openapi", "scopes", "scopes/diff", "scopes/replay"},
	"internal/testkit/githubapi":  {},
	"internal/testkit/clouds":     {},
	"internal/testkit/federation": {"internal/testkit", "internal/testkit/clouds"},
	"internal/testkit/registries": {"internal/testkit"},
	"internal/testkit/testscopes": {"scopes"},
	"examples/sandbox":            {"client"},
	"examples/resource":           {"resourceserver"},
	"internal/app":                {"attest", "broker", "broker/approval", "client", "internal/clientip", "internal/console", "internal/github", "internal/httpapi", "internal/ledger", "internal/mint", "internal/notify/webhook", "internal/notify/witness", "internal/passkey", "internal/people", "internal/quiet", "internal/safehttp", "internal/secret", "internal/wait", "migrations", "openapi", "scopes"},
	"internal/execenv":            {"client", "internal/private", "internal/secret"},
	"internal/mcpserver":          {"client", "internal/safetext", "internal/secret", "openapi"},
	"internal/probe":              {"client", "internal/quiet", "internal/safetext", "internal/wait"},
}

// heavy is what a package must not pull in, even through others.
var heavy = map[string][]string{
	"scopes":                  {"net/http", "database/sql", "os/exec"},
	"scopes/diff":             {"net/http", "database/sql", "os/exec"},
	"scopes/egressrule":       {"net/http", "database/sql", "os/exec"},
	"scopes/replay":           {"net/http", "database/sql", "os/exec"},
	"internal/safetext":       {"net/http", "database/sql", "os/exec"},
	"internal/token":          {"net/http", "database/sql", "os/exec"},
	"internal/passkey":        {"os/exec"},
	"internal/dpop":           {"net/http", "database/sql", "os/exec"},
	"broker":                  {"github.com/jackc/pgx", "github.com/hashicorp/vault", "github.com/go-chi"},
	"client":                  {"github.com/jackc/pgx", "github.com/hashicorp/vault", "github.com/go-chi", module + "broker"},
	"internal/tokencache":     {"github.com/jackc/pgx"},
	"internal/httpapi":        {"github.com/jackc/pgx", "github.com/hashicorp/vault"},
	"resourceserver":          {"github.com/jackc/pgx", "github.com/hashicorp/vault", "github.com/go-chi", module + "broker", module + "attest"},
	"internal/egress":         {"github.com/hashicorp/vault", "github.com/go-chi", module + "broker", module + "attest"},
	"internal/notify/webhook": {"github.com/jackc/pgx", "github.com/hashicorp/vault", "github.com/go-chi"},
	"internal/notify/witness": {"github.com/jackc/pgx", "github.com/hashicorp/vault", "github.com/go-chi", module + "broker"},
}

// Every hostile input that the documentation claims is in the test that it links to.
func TestHostileInputsAreTested(t *testing.T) {
	doc, err := os.ReadFile("docs/hostile-inputs.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (H\d+) \| .* \| \[([^\]]+)\]\(\.\./([^)]+)\) \|$`).FindAllStringSubmatch(string(doc), -1)
	if len(rows) < 60 {
		t.Fatalf("got %d rows: the table is not being read", len(rows))
	}
	for _, row := range rows {
		test, err := os.ReadFile(row[3])
		if err != nil {
			t.Errorf("%s: %v", row[1], err)
			continue
		}
		if row[2] != row[3] || !regexp.MustCompile(row[1]+`\b`).Match(test) {
			t.Errorf("%s is not in %s", row[1], row[3])
		}
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsFlowOneWay(t *testing.T) {
	seen := 0
	for _, pkg := range list(t, "./...") {
		name := strings.TrimPrefix(pkg.ImportPath, module)
		if name == "tests/repo" {
			continue // this test's own package
		}
		allowed, known := arrows[name]
		if !known && name != "deploy" {
			t.Errorf("package %s is not in the picture: add it to arrows and to docs/architecture.md", name)
		}
		seen++
		for _, imported := range pkg.Imports {
			if target, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(allowed, target) {
				t.Errorf("%s imports %s: not one of its arrows %v", name, target, allowed)
			}
		}
		for _, banned := range heavy[name] {
			for _, dep := range pkg.Deps {
				if strings.HasPrefix(dep, banned) {
					t.Errorf("%s pulls in %s", name, dep)
				}
			}
		}
	}
	if seen < 8 {
		t.Fatalf("saw %d packages: the list is not being read", seen)
	}
}

// The list of imports in the document is the one that the code is held to.
func TestImportsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	short := func(name string) string { return strings.TrimPrefix(name, "internal/") }
	_, section, _ := strings.Cut(string(doc), "\n## Imports\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string][]string{}
	for _, line := range regexp.MustCompile(`(?m)^([a-z/]+) +─▶ ([a-z/ ]+)$`).FindAllStringSubmatch(section, -1) {
		documented[line[1]] = slices.Sorted(slices.Values(strings.Fields(line[2])))
	}
	for name, imports := range arrows {
		if len(imports) == 0 || name == "cmd/brevet" || strings.HasPrefix(name, "internal/testkit") || strings.Contains(name, "examples") || strings.Contains(name, "tests/") {
			continue
		}
		var want []string
		for _, target := range imports {
			want = append(want, short(target))
		}
		slices.Sort(want)
		if got := documented[short(name)]; !slices.Equal(got, want) {
			t.Errorf("docs/architecture.md says that %s imports %v, want %v", short(name), got, want)
		}
		delete(documented, short(name))
	}
	for name := range documented {
		t.Errorf("docs/architecture.md has imports of %s, which has none", name)
	}
}

// Each function of the main path is declared in a file that its row names. The path of a JWT stays short enough to be read in one
// sitting.
func TestMainPathIsDocumented(t *testing.T) {
	const maxFunctions, maxFiles = 30, 12
	others := []string{"12", "13", "14"} // rows for other kinds of credential
	doc, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (.+?) \| (\[.+?) \| `).FindAllStringSubmatch(string(doc), -1)
	functions, files := 0, map[string]bool{}
	for _, row := range rows {
		var source []byte
		jwt := !slices.Contains(others, row[1])
		for _, link := range regexp.MustCompile(`\]\(\.\./([^)]+\.go)\)`).FindAllStringSubmatch(row[3], -1) {
			text, err := os.ReadFile(link[1])
			if err != nil {
				t.Error(err)
			}
			source = append(source, text...)
			if jwt {
				files[link[1]] = true
			}
		}
		for _, function := range regexp.MustCompile("`(?:\\w+\\.)?(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			if jwt {
				functions++
			}
			if !regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?` + function[1] + `[\[(]`).Match(source) {
				t.Errorf("%s: there is no function %s, which docs/architecture.md names", row[3], function[1])
			}
		}
	}
	if functions < 20 || functions > maxFunctions || len(files) > maxFiles {
		t.Errorf("the main path has %d functions in %d files, want at most %d in %d", functions, len(files), maxFunctions, maxFiles)
	}
}

// The binary is distributed: nothing under a licence that forbids that may be linked into it.
func TestBinaryLinksNoServerOfVault(t *testing.T) {
	for _, pkg := range list(t, "./cmd/brevet") {
		for _, dep := range pkg.Deps {
			if strings.HasPrefix(dep, "github.com/hashicorp/vault/") && !strings.HasPrefix(dep, "github.com/hashicorp/vault/api") {
				t.Errorf("the binary links %s, which is under the Business Source License", dep)
			}
		}
	}
}

func list(t *testing.T, pattern string) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", pattern).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pattern, err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg goPackage
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("reading go list: %v", err)
		}
		all = append(all, pkg)
	}
}
