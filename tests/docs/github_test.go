package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

const githubGuide = "docs/github.md"

// The commands of "From nothing to your first GitHub token" work as they stand in the document, in its order, against the double of
// GitHub. Only what a reader gets from GitHub is replaced: the client id, the private key, and the address with its authority.
func TestGitHubGuideRuns(t *testing.T) {
	hub := testkit.StartGitHub(t)
	hub.AddIssue("acme/api", "The build is flaky", "")
	text, err := os.ReadFile(filepath.Join(root, githubGuide))
	if err != nil {
		t.Fatal(err)
	}
	blocks, skipped, err := parse(string(text))
	if err != nil || skipped != 0 {
		t.Fatalf("%d blocks do not run: %v", skipped, err)
	}
	folder, home := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "app.pem"), []byte(hub.KeyPEM.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	// "brevet dev" runs until the shell ends, because the next block is for another terminal. The user's home has a Vault that is built.
	origin := strings.Replace(hub.URL(), "127.0.0.1", "localhost", 1)
	host := strings.TrimPrefix(origin, "https://")
	reach := "--host-ca " + hub.CAFile() + " --allow-private 127.0.0.1/32 -- env NO_PROXY= no_proxy="
	replace := strings.NewReplacer(
		"https://api.github.com", origin, "https://github.com", origin,
		"[api.github.com]", "['"+host+"']", "[github.com]", "['"+host+"']",
		"Iv23liExample", hub.App().ClientID,
		"--for gh ", "--for gh="+host+" ",
		"exec --egress --confine --", "exec --egress --confine "+reach, "exec --egress --", "exec --egress "+reach,
	)
	var b strings.Builder
	b.WriteString("trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n")
	await := "for i in $(seq 900); do brevet dev env >/dev/null 2>&1 && break; sleep 0.1; done\n"
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	vault := "XDG_CACHE_HOME='" + cache + "' "
	started := false
	for _, each := range blocks {
		command := replace.Replace(each.text)
		if strings.HasPrefix(command, "brevet dev ") {
			started = true
			command = vault + command + " --github-url " + origin + " --github-ca " + hub.CAFile() + " &\nDEV=$!; trap 'kill -TERM $DEV; wait || true' EXIT\n" + await
		}
		fmt.Fprintf(&b, "echo '== %s:%d' >&2\n%s\n", githubGuide, each.line, expecting(command))
	}
	if !started || len(blocks) < 8 {
		t.Fatalf("read %d blocks: they are not being read", len(blocks))
	}
	// "Later, brevet dev is enough": the stack keeps the App, and says so when it gets a catalogue that it would ignore.
	b.WriteString("kill -TERM $DEV; wait $DEV\nsed -i.bak 's/max: 30m/max: 20m/' catalog/code.yaml\n" +
		"got=0; " + vault + "brevet dev --catalogue catalog 2>refused || got=$?; test $got = 1; grep -q 'already has a catalogue' refused\n" +
		vault + "brevet dev &\nDEV=$!\n" + await + "eval \"$(brevet dev env)\"\n" +
		"brevet request code.read repo=api --task later; brevet task end later\n")
	bin := buildBrevet(t)
	out := runShell(t, startWithin+documentWithin, b.String(), home, folder, append(clean(home, bin+":"+os.Getenv("PATH")),
		"SSL_CERT_FILE="+hub.CAFile(), "CURL_CA_BUNDLE="+hub.CAFile(), "GIT_SSL_CAINFO="+hub.CAFile(), "GIT_TERMINAL_PROMPT=0"))
	if got := strings.Count(out, "The build is flaky"); got != 4 {
		t.Errorf("curl, gh, curl through the gateway and curl in the box printed the issue %d times:\n%s", got, last(out, 3000))
	}
	for _, clone := range []string{"by-token", "by-gateway"} {
		if _, err := os.Stat(filepath.Join(folder, clone, ".git", "HEAD")); err != nil {
			t.Errorf("git did not clone: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "app.pem")); err == nil {
		t.Error("the guide leaves the App's key in the folder")
	}
	if live := hub.Live(); len(live) > 0 {
		t.Errorf("tokens live after the end of the guide: %v", live)
	}
	for _, violation := range hub.Violations() {
		t.Error(violation)
	}
}
