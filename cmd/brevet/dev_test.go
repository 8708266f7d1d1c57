package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// session is a `brevet dev` that has printed how to use it.
type session struct {
	*process
	dir string
	// env is what `brevet dev env` prints for the research agent.
	env []string
}

var exports = regexp.MustCompile(`(?m)^export (\S+)=(\S+)$`)

func startDev(t *testing.T, dir string) *session {
	t.Helper()
	s := &session{process: launch(t, nil, "dev", "--state", dir, "--verbose"), dir: dir}
	s.waitFor(t, s.out, "brevet catalog apply")
	printed := brevet(t, nil, "dev", "env", "--state", dir)
	printed.want(t, 0)
	for _, pair := range exports.FindAllStringSubmatch(printed.out, -1) {
		if pair[1] == "PATH" {
			continue // tells checks it
		}
		s.env = append(s.env, pair[1]+"="+pair[2])
	}
	// The search that must find nothing afterwards finds something now.
	if found := running(t, dir); len(found) < 3 || !strings.Contains(strings.Join(found, " "), "postgres") {
		t.Errorf("got %q, want brevet, Vault and PostgreSQL", found)
	}
	if len(s.env) != 12 {
		t.Fatalf("got %d variables to export, want 12:\n%s", len(s.env), printed.out)
	}
	return s
}

// as returns the environment of another workload of the stack.
func (s *session) as(workload string) []string {
	return append(s.env[:len(s.env):len(s.env)], "SPIFFE_ENDPOINT_SOCKET=unix://"+s.dir+"/svid/"+workload+".sock")
}

func (s *session) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	s.signal(t, sig)
	s.finish(t).want(t, 0, "stopped; the state stays in "+s.dir)
	nothingRuns(t, s.dir)
}

// TestDev does what a developer does with `brevet dev`, in a typical order.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/state"
	first := startDev(t, dir)
	t.Run("tells what to do next", first.tells)
	t.Run("requests", first.requests)
	t.Run("mistakes", first.mistakes)
	t.Run("audit", first.audit)
	t.Run("types of parameters", first.typesParams)
	t.Run("groups of approvers", first.groups)
	t.Run("applies a catalogue", first.applies)
	t.Run("refuses a second one", func(t *testing.T) {
		brevet(t, nil, "dev", "--state", dir).want(t, 1, "state folder is in use", "runs a stack in "+dir)
		brevet(t, first.env, "request", "github.issues.read", "repo=acme/api", "--task", "still-there").want(t, 0)
	})
	brevet(t, nil, "dev", "env", "nobody", "--state", dir).want(t, 1, "unknown workload nobody: use one of admin, auditor,")
	brevet(t, append(first.env, "HOME="+t.TempDir()), "dev", "login", "mallory").want(t, 1, `it knows nobody named "mallory"`)
	first.stop(t, syscall.SIGTERM)
	brevet(t, nil, "dev", "env", "--state", dir).want(t, 1, "no stack runs in "+dir)
	brevet(t, first.env, "request", "github.issues.read", "repo=acme/api", "--task", "t").want(t, 1, "start the SPIFFE agent or brevet dev")

	second := startDev(t, dir)
	t.Run("resumes", func(t *testing.T) { second.resumes(t, first) })
	second.signal(t, syscall.SIGKILL)
	<-second.ended
	nothingRuns(t, dir)
	brevet(t, nil, "dev", "env", "--state", dir).want(t, 1, "no stack runs in "+dir)

	third := startDev(t, dir)
	t.Run("resumes after a kill", func(t *testing.T) { third.resumes(t, first) })
	third.stop(t, syscall.SIGINT)
}

func (s *session) tells(t *testing.T) {
	for _, want := range []string{
		`eval "$(` + binary + ` dev env --state ` + s.dir + `)"`, `eval "$(` + binary + ` dev env auditor --state ` + s.dir + `)"`,
		"brevet audit list", "Ctrl-C",
	} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, s.out)
		}
	}
	// After the first line, the name alone starts this program.
	printed := brevet(t, nil, "dev", "env", "--state", s.dir)
	for _, want := range []string{
		"export PATH=" + filepath.Dir(binary) + ":$PATH\n", "BREVET_SERVER=https://localhost:", "BREVET_SERVER_ID=spiffe://acme.example/brevet",
	} {
		if !strings.Contains(printed.out, want) {
			t.Errorf("%q is missing in\n%s", want, printed.out)
		}
	}
	// Each printed command works as printed, or is refused for the reason that it is meant to show.
	codes := map[string]int{"github.issues.read": 0, "github.issues.write": exitPending, "github.repo.delete": exitDenied}
	ran := 0
	for line := range strings.Lines(s.out.String()) {
		words := strings.Fields(line)
		if len(words) > 2 && words[0] == "brevet" && words[1] == "request" {
			brevet(t, s.env, words[1:]...).want(t, codes[words[2]])
			ran++
		}
	}
	if ran != len(codes) {
		t.Errorf("ran %d of the printed commands, want %d", ran, len(codes))
	}
}

var aToken = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\n$`)

func (s *session) requests(t *testing.T) {
	t.Run("token alone on standard output", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-1", "--ttl", "2h")
		got.want(t, 0, "github.issues.read on github:repo/acme/api until", "shortened from 2h to 15m")
		if !aToken.MatchString(got.out) {
			t.Errorf("got %q, want a token and nothing else", got.out)
		}
		if strings.Contains(got.err, strings.TrimSpace(got.out)) {
			t.Error("the token is on standard error too")
		}
	})
	t.Run("JSON", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-1", "--output", "json")
		got.want(t, 0)
		answer := object(t, got.out)
		if answer["task"] != "t-1" || answer["ttl"] != 300.0 || !aToken.MatchString(answer["token"].(string)+"\n") {
			t.Errorf("got %s, want the token and what it is good for", got.out)
		}
		if got.err != "" {
			t.Errorf("got %q on standard error, want nothing", got.err)
		}
	})
	t.Run("JWT-SVID", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-jwt", "--jwt")
		got.want(t, 0)
		if !aToken.MatchString(got.out) {
			t.Errorf("got %q, want a token and nothing else", got.out)
		}
	})
	t.Run("denied", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.repo.delete", "repo=acme/api", "--task", "t-1")
		got.want(t, exitDenied, "Denied by policy", "would pass brevet request github.issues.write repo=acme/api --task t-1")
		if got.out != "" {
			t.Errorf("got %q on standard output, want nothing", got.out)
		}
		_, hint, _ := strings.Cut(got.err, "would pass brevet ")
		hint, _, _ = strings.Cut(hint, "\n")
		brevet(t, s.env, strings.Fields(hint)...).want(t, exitPending)
	})
	t.Run("denied, in JSON", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.repo.delete", "repo=acme/api", "--task", "t-1", "--output", "json")
		got.want(t, exitDenied)
		if problem := object(t, got.out); problem["code"] != "denied" || problem["narrowest"] == nil {
			t.Errorf("got %s, want the problem with the narrowest ask", got.out)
		}
	})
	t.Run("pending", func(t *testing.T) {
		got := brevet(t, s.env, "request", "github.issues.write", "repo=acme/api", "--task", "t-1")
		got.want(t, exitPending, "Approval required: 1 of oncall, or 2 of security in an emergency, until")
		if got.out != "" {
			t.Errorf("got %q on standard output, want nothing", got.out)
		}
		got = brevet(t, s.env, "request", "github.issues.write", "repo=acme/api", "--task", "t-1", "--output", "json")
		got.want(t, exitPending)
		if answer := object(t, got.out); answer["status"] != "pending" || answer["group"] != "oncall" {
			t.Errorf("got %s, want what it waits for", got.out)
		}
	})
	t.Run("idempotency key", func(t *testing.T) {
		args := []string{"request", "github.issues.read", "repo=acme/api", "--task", "t-key", "--idempotency-key", "once"}
		brevet(t, s.env, args...).want(t, 0)
		again := brevet(t, s.env, args...)
		again.want(t, 1, "Credential already issued")
		if again.out != "" {
			t.Errorf("got %q on standard output, want nothing", again.out)
		}
		brevet(t, s.env, append(args, "--ttl", "1m")...).want(t, 1, "Idempotency key already used")
	})
}

// mistakes checks that errors name what is wrong with the call, that nothing printed looks like a token, and that no secret
// is printed.
func (s *session) mistakes(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		args string
		code int
		want string
	}{
		{"unknown parameter", s.env, "github.issues.read repo=acme/api branch=main", 1, "branch"},
		{"missing parameter", s.env, "github.issues.read", 1, "repo"},
		{"malformed parameter", s.env, "github.issues.read repo=../sys/seal", 1, "repo"},
		{"array for text", s.env, `github.issues.read repo:=["acme/api"]`, 1, "field      params"},
		{"unknown scope", s.env, "github.issues.raed repo=acme/api", exitDenied, "github.issues.raed"},
		{"TTL of half a second", s.env, "github.issues.read repo=acme/api --ttl 500ms", 1, "whole seconds"},
		{"negative TTL", s.env, "github.issues.read repo=acme/api --ttl=-1s", 1, "whole seconds"},
		{"TTL of nothing", s.env, "github.issues.read repo=acme/api --ttl 0s", 0, ""},
		{"parameter without value", s.env, "github.issues.read repo", 1, `"repo" is neither name=text nor name:=JSON`},
		{"other server identity", append(s.env[:3:3], "BREVET_SERVER_ID=spiffe://acme.example/other"), "github.issues.read repo=acme/api", 1, "unexpected ID"},
		{"malformed server identity", append(s.env[:3:3], "BREVET_SERVER_ID=brevet"), "github.issues.read repo=acme/api", 1, "--server-id"},
		{"server checked by the web's authorities", append(s.env[:3:3], "BREVET_SERVER_ID="), "github.issues.read repo=acme/api", 1, "BREVET_SERVER_ID"},
		{"server without TLS", append(s.env[:3:3], "BREVET_SERVER=http://localhost:1"), "github.issues.read repo=acme/api", 1, "https://host[:port]"},
		{"nothing listens", append(s.env[:3:3], "BREVET_SERVER=https://localhost:1"), "github.issues.read repo=acme/api", 1, "connection refused"},
		{"wrong audience", append(s.env[:3:3], "BREVET_AUDIENCE=https://other.example"), "github.issues.read repo=acme/api --jwt", 1, "Authentication required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := brevet(t, tc.env, append(append([]string{"request"}, strings.Fields(tc.args)...), "--task", "mistakes")...)
			got.want(t, tc.code, tc.want)
			if tc.code != 0 && got.out != "" {
				t.Errorf("got %q on standard output, want nothing", got.out)
			}
			if strings.Contains(got.err, "eyJ") || strings.Contains(got.err, "goroutine ") {
				t.Errorf("standard error shows too much: %s", got.err)
			}
		})
	}
}

// groups checks that a check with the server's configuration warns about the groups that no role names.
func (s *session) groups(t *testing.T) {
	folder, config := draftOf(t), s.dir+"/brevet.yaml"
	if got := brevet(t, nil, "catalog", "check", folder, "--config", config); got.code != 0 || strings.Contains(got.err, "warning") {
		t.Errorf("got %+v, want no warning", got)
	}
	edit(t, filepath.Join(folder, "office.yaml"), "group: finance", "group: finanse")
	brevet(t, nil, "catalog", "check", folder, "--config", config).want(t, 0, "warning: scope payments.refund: approval.group: no role", "the group finanse: check its name")
	if got := object(t, brevet(t, nil, "catalog", "check", folder, "--config", config, "-o", "json").out); got["ok"] != true || len(got["warnings"].([]any)) != 1 {
		t.Errorf("got %v, want one warning", got)
	}
	brevet(t, nil, "catalog", "check", folder).want(t, 0)
}

// typesParams checks that every command sends a value as the type that the scope declares.
func (s *session) typesParams(t *testing.T) {
	refund := []string{"order=ord_123456", "amount_cents=900", "currency=EUR"}
	brevet(t, s.as("support"), append([]string{"request", "payments.refund", "--task", "t-typed"}, refund...)...).want(t, exitPending, "2 of finance")
	brevet(t, s.as("support"), "request", "payments.refund", "--task", "t-typed", "order=ord_123456", `amount_cents:="900"`, "currency=EUR").
		want(t, 1, "field      params.amount_cents")
	brevet(t, s.as("support"), "request", "payments.refund", "--task", "t-typed", "order=123456", "amount_cents=900", "currency=EUR").
		want(t, 1, "field      params.order")
	// Each command that takes parameters reads them so. None of these scopes can be had without an approval or a denial.
	for _, args := range [][]string{
		{"exec", "--task", "t-typed", "--scope", "payments.refund", "--env", "TOKEN"},
		{"git-credential", "--task", "t-typed", "--scope", "payments.refund", "--host", "git.test"},
	} {
		for _, param := range refund[1:] {
			args = append(args, "--param", param)
		}
		args = append(args, map[string][]string{"exec": {"--param", "order=none", "--", "true"}, "git-credential": {"--param", "order=none", "get"}}[args[0]]...)
		cmd := append([]string{"sh", "-c", `printf 'protocol=https\nhost=git.test\n\n' | "$0" "$@"`, binary}, args...)
		start(t, nil, s.as("support"), cmd...).finish(t).want(t, 1, "field      params.order")
	}
}

// applies checks that a scope with a new policy in Vault works as soon as its catalogue is in force.
func (s *session) applies(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(s.dir+"/catalog")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"more.yaml": `scopes:
  - name: more.orders.read
    title: Read the orders
    authority: read
    resource: database:orders
    ttl: {default: 1m, max: 5m}
    credential: {kind: database, mount: database, role: reporting}
`,
		"more.cedar": `@id("more") permit (principal, action == Action::"more.orders.read", resource);`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := brevet(t, s.as("admin"), "catalog", "apply", folder, "--reason", "more", "--yes")
	got.want(t, 0, "is in force as version 2")
	if strings.Contains(got.out+got.err, "bootstrap") {
		t.Errorf("got %+v, want no advice: the stack prepares Vault itself", got)
	}
	brevet(t, s.env, "request", "more.orders.read", "--task", "t-more", "-o", "json").want(t, 0, "password")
}

func (s *session) audit(t *testing.T) {
	brevet(t, s.as("support"), "request", "calendar.events.read", "calendar=team@acme.example", "--task", "t-support",
		"--reason", "find a slot\x1b[2J\u202eevil").want(t, 0)
	auditor := s.as("auditor")
	list := func(env []string, filters string) []map[string]any {
		got := brevet(t, env, append([]string{"audit", "list", "--output", "json"}, strings.Fields(filters)...)...)
		got.want(t, 0)
		return objects(t, got.out)
	}
	const research, support = "spiffe://acme.example/research/agent-7", "spiffe://acme.example/support/agent-1"
	if all := list(auditor, ""); len(all) < 10 || !holds(all, "spiffe_id", research) || !holds(all, "spiffe_id", support) {
		t.Errorf("the auditor sees %d records, want those of both sandboxes", len(all))
	}
	if own := list(s.as("support"), ""); len(own) != 1 || own[0]["spiffe_id"] != support {
		t.Errorf("the support agent sees %v, want its own record only", own)
	}
	if foreign := list(s.as("support"), "--spiffe-id "+research); len(foreign) != 0 {
		t.Errorf("the support agent sees %v of another sandbox", foreign)
	}
	for _, tc := range []struct{ filter, field, value string }{
		{"--task t-jwt", "task", "t-jwt"},
		{"--scope github.issues.write", "scope", "github.issues.write"},
		{"--decision deny", "decision", "deny"},
		{"--decision pending", "status", "pending"},
		{"--status denied", "status", "denied"},
		{"--spiffe-id " + support, "spiffe_id", support},
		{"--prefix spiffe://acme.example/support", "spiffe_id", support},
		{"--trust-domain acme.example --task t-1 --status issued", "task", "t-1"},
		{"--since 1h --task t-support", "task", "t-support"},
	} {
		found := list(auditor, tc.filter)
		if len(found) == 0 {
			t.Errorf("%s: nothing found", tc.filter)
		}
		for _, record := range found {
			if record[tc.field] != tc.value {
				t.Errorf("%s: got %s %v, want %s", tc.filter, tc.field, record[tc.field], tc.value)
			}
		}
	}
	if got := list(auditor, "--limit 3"); len(got) != 3 {
		t.Errorf("--limit 3: got %d records", len(got))
	}
	for _, nothing := range []string{"--task none", "--trust-domain other.example", "--prefix spiffe://acme.example/sup"} {
		if got := list(auditor, nothing); len(got) != 0 {
			t.Errorf("%s: got %v, want nothing", nothing, got)
		}
	}
	table := brevet(t, auditor, "audit", "list", "--task", "t-support")
	table.want(t, 0, "TIME", "SANDBOX", support, `find a slot\u001b[2J\u202eevil`)
	if strings.ContainsAny(table.out, "\x1b\u202e") {
		t.Error("the table obeys what a sandbox wrote")
	}
	brevet(t, auditor, "audit", "list", "--task", "none").want(t, 0, "no matching records")
	brevet(t, auditor, "audit", "list", "--limit", "0").want(t, 1, "--limit")
	brevet(t, auditor, "audit", "list", "--spiffe-id", "agent-7").want(t, 1, "Invalid parameter", "spiffe_id")
}

func holds(records []map[string]any, field, value string) bool {
	for _, record := range records {
		if record[field] == value {
			return true
		}
	}
	return false
}

// resumes checks that the stack in the earlier session's folder is the same one.
func (s *session) resumes(t *testing.T, earlier *session) {
	if got, want := strings.Join(s.env, " "), strings.Join(earlier.env, " "); got != want {
		t.Errorf("got %s, want %s: clients have it in their environment", got, want)
	}
	brevet(t, earlier.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-resumed").want(t, 0)
	found := brevet(t, s.as("auditor"), "audit", "list", "--task", "t-jwt", "--output", "json")
	found.want(t, 0)
	if records := objects(t, found.out); len(records) != 1 {
		t.Errorf("got %d of the earlier session's records, want 1", len(records))
	}
}

func TestDevPrepareStartsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	brevet(t, nil, "dev", "--prepare", "--state", dir+"/state").want(t, 0)
	if exists(dir + "/state") {
		t.Error("--prepare made a state folder")
	}
	nothingRuns(t, dir)
}

// A GitHub App that cannot be used is refused before anything starts.
func TestDevRefusesIncompleteGitHubApps(t *testing.T) {
	t.Parallel()
	state := t.TempDir() + "/state"
	for want, args := range map[string][]string{
		"write NAME=CLIENT_ID:KEY_FILE":                {"--github-app", "acme=Iv23liExample"},
		"write NAME=CLIENT_ID:KEY_FILE, with a name":   {"--github-app", "../acme=Iv23liExample:app.pem"},
		"reading a secret":                             {"--github-app", "acme=Iv23liExample:" + state + "/none.pem"},
		"--github-url and --github-ca need --github-a": {"--github-url", "https://github.acme.example/api/v3"},
	} {
		inProcess(t, append([]string{"dev", "--state", state}, args...)...).want(t, 1, want)
	}
	if found := running(t, state); len(found) > 0 {
		t.Errorf("runs %q", found)
	}
}
