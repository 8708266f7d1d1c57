package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// served returns a stack with the example catalogue in force, and the flags of two admins who may change it.
func served(t *testing.T, o testkit.Options) (s *testkit.Stack, one, two []string) {
	t.Helper()
	files, err := scopes.ReadFS(os.DirFS(exampleCatalogue))
	if err != nil {
		t.Fatal(err)
	}
	admins := []string{"spiffe://acme.test/admins/one", "spiffe://acme.test/admins/two"}
	o.Catalogue, o.Applied, o.CatalogueAdmins = files, true, admins
	s = testkit.NewStack(t, o)
	as := func(id string) []string {
		endpoint, err := s.Acme.ServeWorkload(filepath.Join(t.TempDir(), "api.sock"), spiffeid.RequireFromString(id))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = endpoint.Close() })
		return []string{"--server", s.URL, "--server-id", "spiffe://acme.test/brevet", "--workload-api", endpoint.Addr()}
	}
	return s, as(admins[0]), as(admins[1])
}

func on(flags []string, args ...string) []string {
	return append(append([]string{"catalog"}, args...), flags...)
}

// digestIn returns the digest of the catalogue in a folder.
func digestIn(t *testing.T, folder string) string {
	t.Helper()
	catalogue, err := loadFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	return catalogue.Digest()
}

// TestCatalogOnTheServer plans, applies, lists and rolls back a change of the catalogue on the server.
func TestCatalogOnTheServer(t *testing.T) {
	s, admin, _ := served(t, testkit.Options{})
	folder := draftOf(t)
	inProcess(t, on(admin, "plan", folder, "--detailed-exitcode")...).want(t, 0, "No changes.")
	edit(t, filepath.Join(folder, "office.yaml"), "quorum: 2", "quorum: 1")
	inProcess(t, on(admin, "plan", folder, "--detailed-exitcode")...).want(t, exitChanges, "WIDENS REACH", "1 widens reach")
	before, after := digestIn(t, exampleCatalogue), digestIn(t, folder)
	inProcess(t, on(admin, "apply", folder, "--reason", "x")...).want(t, 1, "add --yes")
	inProcess(t, on(admin, "apply", folder, "--yes")...).want(t, 2, "--reason")
	inProcess(t, on(admin, "apply", folder, "--reason", "one is enough\x1b[2J", "--yes")...).
		want(t, 0, "WIDENS REACH", after+" is in force as version 2")
	inProcess(t, on(admin, "apply", folder, "--reason", "x", "--yes")...).want(t, 0, "No changes: the catalogue is in force.")
	got := inProcess(t, on(admin, "history")...)
	got.want(t, 0, before, after, `one is enough\u001b[2J`, "spiffe://acme.test/admins/one")
	if strings.Contains(got.out, "\x1b") {
		t.Errorf("got %q, want nothing that moves a cursor", got.out)
	}
	back := object(t, inProcess(t, on(admin, "rollback", before, "--reason", "two after all", "--yes", "--output", "json")...).out)
	if back["digest"] != before || back["version"] != 3.0 || back["state"] != "applied" {
		t.Errorf("got %v, want the first catalogue as version 3", back)
	}
	lines := strings.Split(strings.TrimSpace(inProcess(t, on(admin, "history", "--output", "json", "--limit", "2")...).out), "\n")
	if len(lines) != 2 || object(t, lines[0])["reason"] != "two after all" {
		t.Errorf("got %q, want the two newest", lines)
	}
	short := func(digest string) string { return strings.TrimPrefix(digest, "sha256:")[:8] }
	for i, name := range []string{"2", "1", short(after), short(before), "sha256:" + short(after), before} {
		want := []string{after, before}[i%2]
		inProcess(t, on(admin, "rollback", name, "--reason", "by "+name, "--yes")...).want(t, 0, fmt.Sprintf("%s is in force as version %d", want, 4+i))
	}
	for name, want := range map[string]string{
		"99":                                "no catalogue among the last 500 changes is 99",
		"00000000":                          "no catalogue among the last 500 changes is 00000000",
		"sha256:00":                         "is neither the version of a catalogue nor its digest",
		short(after)[:7]:                    "is neither the version of a catalogue nor its digest",
		"0":                                 "is neither the version of a catalogue nor its digest",
		"sha256:" + strings.Repeat("0", 64): "Not found",
	} {
		inProcess(t, on(admin, "rollback", name, "--reason", "x", "--yes")...).want(t, 1, want)
	}
	s.DB.Check(t)
}

// TestCatalogApplyNeedsPoliciesOfVault checks that a plan names the policies that Vault must have, and that the server refuses the
// catalogue without them, unless the admin forces it.
func TestCatalogApplyNeedsPoliciesOfVault(t *testing.T) {
	s, admin, _ := served(t, testkit.Options{})
	folder := draftOf(t)
	if err := os.WriteFile(filepath.Join(folder, "notes.yaml"), []byte(`scopes:
  - name: notes.read
    title: Read notes
    authority: read
    resource: vault:notes
    ttl: {default: 1m, max: 5m}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [read]}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	inProcess(t, on(admin, "plan", folder)...).want(t, 0, "run brevet bootstrap", "brevet-scope.notes.read.")
	inProcess(t, on(admin, "apply", folder, "--reason", "notes", "--yes")...).
		want(t, exitUnavailable, "Vault is not prepared", "brevet bootstrap", "--force", "scope notes.read needs the policy brevet-scope.notes.read.")
	inProcess(t, on(admin, "apply", folder, "--reason", "notes", "--yes", "--force")...).want(t, 0, "is in force as version 2")
	inProcess(t, on(admin, "history")...).want(t, 0, "applied, forced")
	s.DB.Check(t)
}

// TestCatalogPlanNamesTheFirstNeedOfAKey checks that a plan says what Vault must have before the new scope works, and an apply of
// the next change does not.
func TestCatalogPlanNamesTheFirstNeedOfAKey(t *testing.T) {
	_, admin, _ := served(t, testkit.Options{})
	folder := draftOf(t)
	for _, name := range []string{"cloud.yaml", "models.yaml", "code.yaml", "platform.cedar"} { // what has federation, and what names it
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	inProcess(t, on(admin, "apply", folder, "--reason", "no cloud", "--yes")...).want(t, 0)
	cloud := filepath.Join(folder, "cloud.yaml")
	if err := os.WriteFile(cloud, []byte(`scopes:
  - name: cloud.deploy
    title: Deploy
    authority: write
    resource: cloud:site
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'site:deploy'}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	const says = "run brevet bootstrap first"
	plan := func(key string) {
		t.Helper()
		got := inProcess(t, on(admin, "plan", folder)...)
		if text := got.out + got.err; got.code != 0 || strings.Contains(text, says) != (key != "") || !strings.Contains(text, key) {
			t.Errorf("got %d %s %s, want %q", got.code, got.out, got.err, key)
		}
	}
	inProcess(t, on(admin, "apply", folder, "--reason", "cloud", "--yes")...).want(t, 0, says, "needs the key for RS256", "sts.amazonaws.com")
	edit(t, cloud, "title: Deploy", "title: Deploy the site")
	plan("")
	site := filepath.Join(folder, "site.yaml")
	if err := os.WriteFile(site, []byte(`scopes:
  - name: site.read
    title: Read
    authority: read
    resource: cloud:site
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://site.test, algorithm: ES256}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	plan("")
	edit(t, site, "algorithm: ES256", "algorithm: EdDSA")
	plan("needs the key for EdDSA")
	inProcess(t, on(admin, "apply", folder, "--reason", "faster", "--yes")...).want(t, 0, says)
	edit(t, site, "title: Read", "title: Read the site")
	plan("")
}

// TestCatalogChangeNeedsASecondAdmin checks that one admin proposes a catalogue, and that another sees the changes before
// approving it.
func TestCatalogChangeNeedsASecondAdmin(t *testing.T) {
	s, one, two := served(t, testkit.Options{SecondAdmin: true})
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "office.yaml"), "quorum: 2", "quorum: 1")
	digest := digestIn(t, folder)
	inProcess(t, on(one, "apply", folder, "--reason", "x", "--yes")...).want(t, exitPending, "brevet catalog approve "+digest)
	inProcess(t, on(one, "approve", digest, "--reason", "x", "--yes")...).want(t, 1, "You cannot approve your own proposal")
	inProcess(t, on(two, "approve", digest[:len("sha256:")+8], "--reason", "looked", "--yes")...).want(t, 0, "WIDENS REACH", "is in force as version 2")
	inProcess(t, on(two, "apply", exampleCatalogue, "--reason", "back", "--yes")...).want(t, exitPending)
	inProcess(t, on(one, "reject", digestIn(t, exampleCatalogue), "--reason", "no", "--yes")...).want(t, 0, "is rejected")
	inProcess(t, on(one, "history")...).want(t, 0, "rejected", "applied", "spiffe://acme.test/admins/two")
	s.DB.Check(t)
}

func TestCatalogOnNoServer(t *testing.T) {
	folder := draftOf(t)
	for _, name := range []string{"BREVET_SERVER", "SPIFFE_ENDPOINT_SOCKET"} {
		t.Setenv(name, "") // so that the test restores it
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	inProcess(t, "catalog", "plan", folder).want(t, 1, "BREVET_SERVER")
	inProcess(t, "catalog", "history").want(t, 2, "--server")
	inProcess(t, "catalog", "apply", "testdata/broken", "--reason", "x", "--server", "https://localhost:1").want(t, 1, "testdata/broken:\n")
}

// TestBeginningOfTwoDigestsIsAmbiguous checks that the error names both catalogues. Digests with an equal beginning are made here,
// because nobody finds files that have them.
func TestBeginningOfTwoDigestsIsAmbiguous(t *testing.T) {
	one, two := "sha256:"+strings.Repeat("ab", 32), "sha256:"+strings.Repeat("ab", 31)+"cd"
	change := func(version int64, digest string) openapi.CatalogueChange {
		return openapi.CatalogueChange{Version: version, Digest: digest, State: openapi.CatalogueApplied}
	}
	all := []openapi.CatalogueChange{change(3, one), change(2, two), change(1, one)}
	if _, err := chooseCatalogue(all, "abababab"); err == nil || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), two) {
		t.Errorf("got %v, want both digests", err)
	}
	if got, err := chooseCatalogue(all, strings.Repeat("ab", 31)+"c"); got != two || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	if got, err := chooseCatalogue(all, "3"); got != one || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestPlanCountsRequestsThatBecomeVoid checks that a plan says how many open requests a change makes void, and that the same catalogue
// makes none void.
func TestPlanCountsRequestsThatBecomeVoid(t *testing.T) {
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "office.yaml"), "quorum: 2", "quorum: 1")
	from, err := loadFolder(exampleCatalogue)
	if err != nil {
		t.Fatal(err)
	}
	to, err := loadFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		to   *scopes.Catalogue
		open int
		says bool
	}{{to, 3, true}, {to, 0, false}, {from, 3, false}} {
		var out strings.Builder
		if err := printDiff(&console{out: &out}, diff.Compare(from, tc.to), tc.open); err != nil {
			t.Fatal(err)
		}
		if says := strings.Contains(out.String(), "Open requests that become void: 3. People can no longer approve them"); says != tc.says {
			t.Errorf("with %d open: got %q", tc.open, out.String())
		}
	}
}
