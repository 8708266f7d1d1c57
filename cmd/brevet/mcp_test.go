package main

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/mcpserver"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// model is the client side of `brevet mcp`, with everything that went over standard input, output and error.
type model struct {
	*mcp.ClientSession
	cmd  *exec.Cmd
	wire *stream
}

func (s *session) agent(t *testing.T, flags ...string) *model {
	t.Helper()
	a := &model{cmd: exec.CommandContext(t.Context(), binary, append([]string{"mcp"}, flags...)...), wire: newStream()}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), s.env...), a.wire
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{
		Reader: io.NopCloser(io.TeeReader(out, a.wire)),
		Writer: struct {
			io.Writer
			io.Closer
		}{io.MultiWriter(in, a.wire), in},
	}, nil)
	if err != nil {
		t.Fatalf("connecting: %v\n%s", err, a.wire)
	}
	t.Cleanup(func() { a.leave(t) })
	return a
}

// leave ends the session as a client does: by closing standard input.
func (a *model) leave(t *testing.T) {
	t.Helper()
	if a.cmd.ProcessState != nil {
		return
	}
	_ = a.Close()
	var exit *exec.ExitError
	if err := a.cmd.Wait(); errors.As(err, &exit) {
		t.Errorf("brevet mcp ended with %v\n%s", err, a.wire)
	}
}

// call calls a tool and decodes its result.
func (a *model) call(t *testing.T, tool string, args map[string]any, answer any) (failed bool) {
	t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	result, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, a.wire)
	}
	encoded, err := json.Marshal(result.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(encoded, answer); err != nil {
		t.Fatalf("%s answered %s: %v", tool, encoded, err)
	}
	return result.IsError
}

// issue requests a credential. It returns the result and the content of the credential's file.
func (a *model) issue(t *testing.T, args map[string]any) (mcpserver.Answer, string) {
	t.Helper()
	var got mcpserver.Answer
	if a.call(t, "request", args, &got) || got.Status != "issued" {
		t.Fatalf("got %+v", got)
	}
	info, err := os.Stat(got.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("got %v, %v, want a file of mode 0600", info, err)
	}
	content, err := os.ReadFile(got.File)
	if err != nil {
		t.Fatal(err)
	}
	return got, string(content)
}

// secretsOf returns the parts of a credential that nobody may see.
func secretsOf(t *testing.T, content string) []string {
	t.Helper()
	if !strings.HasPrefix(content, "{") {
		return append(strings.Split(content, "."), content)
	}
	var members map[string]any
	if err := json.Unmarshal([]byte(content), &members); err != nil {
		t.Fatal(err)
	}
	all := []string{content}
	for _, value := range members {
		if text, ok := value.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// shows reports whether text holds a secret as it is, as JSON, in hex, or in base64 at any offset.
func shows(text, secret string) bool {
	quoted, err := json.Marshal(secret)
	if err != nil {
		return true
	}
	forms := []string{
		secret, strings.Trim(string(quoted), `"`), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}
	for shift := range 3 {
		if whole := secret[min(shift, len(secret)):]; len(whole) >= 6 {
			whole = whole[:len(whole)/3*3]
			forms = append(forms, base64.StdEncoding.EncodeToString([]byte(whole)), base64.URLEncoding.EncodeToString([]byte(whole)))
		}
	}
	return slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) })
}

// TestMCP checks that an agent can request, wait, use, release and end, and that no byte of a credential reaches its model.
func TestMCP(t *testing.T) {
	t.Parallel()
	s := startBrief(t)
	var seen []string
	a := s.agent(t)
	t.Run("tools", func(t *testing.T) { a.tools(t) })
	t.Run("scopes", s.scopes)
	t.Run("request", func(t *testing.T) {
		got, token := a.issue(t, map[string]any{"scope": "github.issues.read", "params": map[string]any{"repo": "acme/api"}, "reason": "triage"})
		seen = append(seen, token)
		record := s.whose(t, token)
		if got.Kind != "jwt" || got.ID != record["id"] || got.Task != record["task"] || !strings.HasPrefix(got.Task, "mcp-") || time.Until(*got.Expires) > 6*time.Minute {
			t.Errorf("got %+v for %v", got, record)
		}
		login, content := a.issue(t, map[string]any{"scope": "reports.orders.read", "task": "t-mcp"})
		seen = append(seen, content)
		if login.Kind != "database" || strings.Join(login.Fields, " ") != "password username" || login.Task != "t-mcp" {
			t.Errorf("got %+v", login)
		}
		var ended mcpserver.Ended
		if a.call(t, "release", map[string]any{"id": got.ID}, &ended) || ended.States["released"] != 1 || exists(got.File) {
			t.Errorf("got %+v; the file is there: %v", ended, exists(got.File))
		}
		if a.call(t, "end_task", map[string]any{"task": "t-mcp"}, &ended) || ended.Ended != 1 || exists(login.File) {
			t.Errorf("got %+v; the file is there: %v", ended, exists(login.File))
		}
		if !a.call(t, "release", map[string]any{"id": "nonsense"}, &ended) || ended.Broker.Code != "not_found" {
			t.Errorf("got %+v", ended)
		}
	})
	t.Run("expires", func(t *testing.T) {
		got, content := a.issue(t, map[string]any{"scope": "brief.token.read", "params": map[string]any{"repo": "acme/api"}})
		seen = append(seen, content)
		within(t, patience, "the file of what has ended is gone", func() bool { return !exists(got.File) })
	})
	t.Run("refused", func(t *testing.T) { a.refused(t) })
	t.Run("pending", func(t *testing.T) { seen = append(seen, s.agentWaits(t, a)) })
	t.Run("ends", func(t *testing.T) { seen = append(seen, s.agentLeaves(t, a)) })
	t.Run("abandoned", s.agentIsAbandoned)
	t.Run("limited", func(t *testing.T) { s.agentIsLimited(t) })
	for _, content := range seen {
		for _, part := range secretsOf(t, content) {
			if shows(a.wire.String(), part) {
				t.Errorf("a credential, or a part of one, crossed standard input, output or error: %s", part)
			}
		}
	}
	if !strings.Contains(a.wire.String(), `"release"`) || len(seen) != 5 {
		t.Errorf("saw %d credentials and %d bytes of the wire: this test sees nothing", len(seen), len(a.wire.String()))
	}
	s.stop(t, syscall.SIGTERM)
}

// agentIsAbandoned checks that an agent's credentials end if the client or the terminal goes away.
func (s *session) agentIsAbandoned(t *testing.T) {
	for name, leave := range map[string]func(cmd *exec.Cmd, in io.Writer, out io.Closer) error{
		"nobody reads": func(_ *exec.Cmd, in io.Writer, out io.Closer) error {
			closed := out.Close()
			_, err := io.WriteString(in, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`+"\n")
			return errors.Join(closed, err)
		},
		"hung up": func(cmd *exec.Cmd, _ io.Writer, _ io.Closer) error { return cmd.Process.Signal(syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, "mcp")
			cmd.Env = append(os.Environ(), s.env...)
			in, inErr := cmd.StdinPipe()
			out, outErr := cmd.StdoutPipe()
			if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			answers := bufio.NewReader(out)
			for _, message := range []string{
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
				`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
					`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"request","arguments":{"scope":"github.issues.read","params":{"repo":"acme/api"}}}}`,
			} {
				if _, err := io.WriteString(in, message+"\n"); err != nil {
					t.Fatal(err)
				}
			}
			var got struct {
				Result struct {
					Answer mcpserver.Answer `json:"structuredContent"`
				} `json:"result"`
			}
			for range 2 {
				line, err := answers.ReadBytes('\n')
				if err = errors.Join(err, json.Unmarshal(line, &got)); err != nil {
					t.Fatal(err)
				}
			}
			credential, err := os.ReadFile(got.Result.Answer.File)
			if err = errors.Join(err, leave(cmd, in, out)); err != nil {
				t.Fatal(err)
			}
			within(t, patience, "the file is gone", func() bool { return !exists(got.Result.Answer.File) })
			_ = in.Close()
			_ = cmd.Wait()
			if record := s.whose(t, string(credential)); record["status"] != "released" {
				t.Errorf("got a credential that is %v, want it released", record["status"])
			}
		})
	}
}

func (a *model) tools(t *testing.T) {
	var names []string
	for tool, err := range a.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	if got := strings.Join(names, " "); got != "end_task list_scopes release request wait" {
		t.Errorf("got the tools %s", got)
	}
	var scopes mcpserver.Scopes
	if a.call(t, "list_scopes", nil, &scopes) || !slices.Contains(scopes.Scopes, "brief.token.read") || slices.Contains(scopes.Scopes, "github.repo.delete") {
		t.Errorf("got %+v", scopes)
	}
	at := slices.Index(scopes.Scopes, "github.issues.write")
	if at < 0 || scopes.Broker.Scopes[at].Approval != "always" || scopes.Broker.Scopes[at].Params["repo"].Type != "string" {
		t.Errorf("got %+v", scopes)
	}
}

// scopes checks that exactly the scopes are listed that the sandbox may request.
func (s *session) scopes(t *testing.T) {
	got := brevet(t, s.env, "scopes")
	got.want(t, 0, "SCOPE", "github.issues.write   write", "repo (string)", "always", "brief.token.read")
	if strings.Contains(got.out, "mail.") || strings.Contains(got.out, "github.repo.delete") {
		t.Errorf("got scopes of others:\n%s", got.out)
	}
	all := objects(t, brevet(t, s.env, "scopes", "-o", "json").out)
	if len(all) != strings.Count(got.out, "\n")-1 || all[0]["name"] == "" || all[0]["ttl_max"] == nil {
		t.Errorf("got %v, want what the table has", all)
	}
	if got := brevet(t, s.as("auditor"), "scopes"); got.code != 0 || strings.Count(got.out, "\n") != 2 || !strings.Contains(got.out, "calendar.events.read") {
		t.Errorf("got %d, %s; want what any workload of the trust domain may ask for", got.code, got.out)
	}
}

// refused checks that the broker's words come as data, in a separate field, and without invisible characters.
func (a *model) refused(t *testing.T) {
	var got mcpserver.Answer
	if !a.call(t, "request", map[string]any{"scope": "github.repo.delete", "params": map[string]any{"repo": "acme/api"}}, &got) {
		t.Error("a refusal is no failure")
	}
	if got.Status != "refused" || got.Broker.Code != "denied" || got.Broker.WouldPass == nil || got.Broker.WouldPass.Scope != "github.issues.write" || got.File != "" {
		t.Errorf("got %+v", got)
	}
	var open mcpserver.Answer
	if !a.call(t, "request", map[string]any{"scope": "brief.hosts.open"}, &open) || open.Status != "refused" || open.File != "" ||
		!strings.Contains(open.Broker.Title, "only opens hosts") {
		t.Errorf("got %+v for a scope without a credential", open)
	}
	for name, args := range map[string]map[string]any{
		"hostile scope":      {"scope": "a\x1b[2J\u202e"},
		"hostile parameters": {"scope": "github.issues.read", "params": map[string]any{"repo": "../\u202e"}},
		"negative":           {"scope": "github.issues.read", "params": map[string]any{"repo": "acme/api"}, "ttl": -1},
		"for ever":           {"scope": "github.issues.read", "params": map[string]any{"repo": "acme/api"}, "ttl": int64(1) << 60},
		"hostile task":       {"scope": "github.issues.read", "params": map[string]any{"repo": "acme/api"}, "task": "../../etc"},
	} {
		var got mcpserver.Answer
		if !a.call(t, "request", args, &got) || got.Status != "refused" || got.File != "" {
			t.Errorf("%s: got %+v", name, got)
		}
		if encoded, _ := json.Marshal(got.Broker); safetext.Text(string(encoded)) != string(encoded) {
			t.Errorf("%s: %s is not inert", name, encoded)
		}
	}
}

func (s *session) agentWaits(t *testing.T, a *model) string {
	alice := s.person(t, "alice")
	var got mcpserver.Answer
	if a.call(t, "request", map[string]any{"scope": "github.issues.write", "params": map[string]any{"repo": "acme/api"}}, &got) ||
		got.Status != "pending" || got.Waits == nil || got.Waits.Group != "oncall" {
		t.Fatalf("got %+v", got)
	}
	var voted sync.WaitGroup
	voted.Go(func() { brevet(t, alice, "approvals", "approve", got.ID, "--yes") })
	var after mcpserver.Answer
	failed := a.call(t, "wait", map[string]any{"id": got.ID}, &after)
	voted.Wait()
	if failed || after.Status != "issued" {
		t.Fatalf("got %+v", after)
	}
	content, err := os.ReadFile(after.File)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// agentLeaves checks that all credentials of a session end with it.
func (s *session) agentLeaves(t *testing.T, a *model) string {
	got, content := a.issue(t, map[string]any{"scope": "github.issues.read", "params": map[string]any{"repo": "acme/api"}})
	a.leave(t)
	if folder := filepath.Dir(got.File); exists(folder) {
		t.Errorf("%s is still there", folder)
	}
	if alive := s.records(t, "--task", got.Task, "--status", "issued"); len(alive) != 0 {
		t.Errorf("still alive: %v", alive)
	}
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", got.Task).want(t, exitDenied, "The task has ended")
	return content
}

// agentIsLimited checks that flags limit the scopes, and set the task and the folder.
func (s *session) agentIsLimited(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	a := s.agent(t, "--scope", "github.issues.read", "--scope", "reports.orders.read", "--task", "t-limited", "--dir", dir)
	var scopes mcpserver.Scopes
	if a.call(t, "list_scopes", nil, &scopes) || strings.Join(scopes.Scopes, " ") != "github.issues.read reports.orders.read" {
		t.Errorf("got %+v", scopes)
	}
	var got mcpserver.Answer
	if !a.call(t, "request", map[string]any{"scope": "brief.login.read"}, &got) || got.Status != "refused" {
		t.Errorf("got %+v", got)
	}
	s.agentWaitsForOthers(t, a)
	got, _ = a.issue(t, map[string]any{"scope": "reports.orders.read"})
	if filepath.Dir(got.File) != dir || got.Task != "t-limited" {
		t.Errorf("got %+v", got)
	}
	a.leave(t)
	if exists(got.File) || len(s.records(t, "--task", "t-limited", "--status", "issued")) != 0 {
		t.Error("the credential, or its file, is still there")
	}
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-limited").want(t, 0)
	brevet(t, s.env, "mcp", "--dir", "/tmp").want(t, 1, "other users can read")
}

// agentWaitsForOthers checks that a limited agent gets no credential for a request of its sandbox for another scope.
func (s *session) agentWaitsForOthers(t *testing.T, limited *model) {
	t.Helper()
	other := s.agent(t)
	var waiting, got mcpserver.Answer
	if other.call(t, "request", map[string]any{"scope": "github.issues.write", "params": map[string]any{"repo": "acme/limited"}}, &waiting) ||
		waiting.Status != "pending" {
		t.Fatalf("got %+v", waiting)
	}
	brevet(t, s.person(t, "alice"), "approvals", "approve", waiting.ID, "--yes").want(t, 0)
	if !limited.call(t, "wait", map[string]any{"id": waiting.ID}, &got) || got.Status != "refused" || got.File != "" {
		t.Errorf("got %+v for a request whose scope --scope does not name, want a refusal", got)
	}
	if other.call(t, "wait", map[string]any{"id": waiting.ID}, &got) || got.Status != "issued" {
		t.Errorf("got %+v, want the request still redeemable by the agent without --scope", got)
	}
	other.leave(t)
}

// TestShows checks that shows finds credentials in all encodings.
func TestShows(t *testing.T) {
	const secret = "s3cr3t-credential"
	for _, text := range []string{
		secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)),
		base64.StdEncoding.EncodeToString([]byte("x" + secret + "y")), base64.RawURLEncoding.EncodeToString([]byte("xy" + secret)),
	} {
		if !shows("before "+text+" after", secret) {
			t.Errorf("%s: not found", text)
		}
	}
	if shows("nothing of it: "+strings.ToUpper(secret), secret) {
		t.Error("found what is not there")
	}
}
