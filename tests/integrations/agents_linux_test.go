package integrations_test

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/federation"
)

// agent is a coding agent, as npm has it.
type agent struct {
	name, system string
	// run has the command for a prompt in $PROMPT. It reads the origin of the API from $API and its key from $KEY.
	run string
}

func codingAgents(t *testing.T) []agent {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	folder := testkit.Agents(t)
	codex, err := filepath.Glob(filepath.Join(folder, "@openai", "codex-linux-"+arch, "vendor", "*", "bin", "codex"))
	if err != nil || len(codex) != 1 {
		t.Fatalf("Codex is in %v: %v", codex, err)
	}
	return []agent{
		{"claude code", "anthropic", `ANTHROPIC_BASE_URL=$API ANTHROPIC_AUTH_TOKEN=$KEY ` + filepath.Join(folder, "@anthropic-ai", "claude-code-linux-"+arch, "claude") +
			` -p "$PROMPT" --model ` + federation.Model + ` --allowedTools Bash </dev/null`},
		{"codex", "openai", codex[0] + ` exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --model site -c model_provider=gateway ` +
			`-c "model_providers.gateway={name='gateway', base_url='$API/openai/v1', env_key='KEY'}" "$PROMPT" </dev/null`},
	}
}

// TestCodingAgents runs Claude Code and Codex, which their models tell what to do. Confined, they use their model and read an issue of
// GitHub through the gateway, and reach nothing else. They hold no credential.
func TestCodingAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ways := map[string]string{
		"by the proxy":    `unset NO_PROXY no_proxy; export KEY=unused API=$RESOURCES; `, // the API is on localhost
		"by the base URL": `export KEY=$BREVET_EGRESS_PASSWORD API=$BREVET_EGRESS_URL/${RESOURCES#https://}; `,
	}
	// What the model has the agent run, and what the shell says.
	try := "Run this: " + strings.Join([]string{
		"curl -sS --noproxy '' " + w.github() + "/repos/acme/api/issues",
		"curl -sS --noproxy '' -X DELETE " + w.github() + "/repos/acme/api",
		"curl -sSk --noproxy '*' " + w.github() + " 2>&1",
		"getent hosts example.com || echo no-dns",
	}, "; ")
	said := []string{federation.ToolSaid, `"title":"content of a.txt"`, "egress_no_rule", "Failed to connect", "no-dns"}
	for _, a := range codingAgents(t) {
		for way, begin := range ways {
			t.Run(a.name+" "+way, func(t *testing.T) {
				id := strings.ReplaceAll(a.name+"-"+way, " ", "-")
				socket := w.workloadAPI(t, agents+id)
				ask := func(scope, prompt, then string) result {
					flags := []string{
						"--egress", "--confine", "--host-ca", w.roots, "--allow-private", "127.0.0.1/32",
						"--scope", scope, "--scope", "github.issues.read", "--param", "repo=api",
					}
					return w.exec(t, socket, id, []string{"PROMPT=" + prompt}, flags, begin+a.run+then)
				}
				for prompt, want := range map[string][]string{"Hello": {federation.Said}, try: said} {
					got := ask("agents."+a.system, prompt, "")
					for _, text := range want {
						if got.failed != nil || !strings.Contains(got.out, text) {
							t.Errorf("%q: got %v with %q and %q, want %q", prompt, got.failed, got.out, got.err, text)
						}
					}
				}
				got := ask("agents."+a.system, "Hello", "; env; find $BREVET_DIR $HOME -type f -exec cat {} +")
				if !strings.Contains(got.out, "BREVET_EGRESS_PASSWORD") || !strings.Contains(got.out, federation.Said) {
					t.Errorf("the environment and the files of the agent are not read: got %q", got.out)
				}
				tokens, gave := w.clouds.Secrets()
				for _, secret := range slices.Concat(tokens, gave) {
					if strings.Contains(got.out+got.err, secret) {
						t.Error("the agent finds a secret")
					}
				}
				// The rule has to name the headers of the agent.
				got = ask("cloud."+a.system+".use", "Hello", "")
				if !strings.Contains(got.out+got.err, "egress_header") {
					t.Errorf("without headers: got %q and %q", got.out, got.err)
				}
			})
		}
	}
}
