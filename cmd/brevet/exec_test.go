package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/examples"
	"github.com/brevet-dev/brevet/internal/secret"
)

// startBrief returns a stack whose catalogue also has credentials that live for seconds.
func startBrief(t *testing.T) *session {
	t.Helper()
	return startBriefWith(t, nil)
}

// claimed returns a state folder that a test may fill before the stack starts.
func claimed(t *testing.T, dir string) string {
	t.Helper()
	home, err := stateHome()
	if err == nil {
		dir, err = home.Claim(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// startBriefWith is startBrief with more files in the catalogue.
func startBriefWith(t *testing.T, more map[string]string) *session {
	t.Helper()
	dir := claimed(t, t.TempDir()+"/state")
	if err := os.CopyFS(dir, examples.Catalog); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"exec.yaml", "exec.cedar"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "catalog", name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range more {
		if err := os.WriteFile(filepath.Join(dir, "catalog", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return startDev(t, dir)
}

// TestExec runs programs that know nothing of Brevet as a sandbox does.
func TestExec(t *testing.T) {
	t.Parallel()
	s := startBrief(t)
	t.Run("places", s.places)
	t.Run("renewed", s.renewed)
	t.Run("several", s.several)
	t.Run("endings", s.execEndings)
	t.Run("terminal", s.execAtTerminal)
	t.Run("killed", s.execKilled)
	t.Run("refused", s.execRefused)
	t.Run("waits", s.execWaits)
	t.Run("longest", s.execLongest)
	t.Run("mistakes", s.execMistakes)
	t.Run("psql", s.execPsql)
	t.Run("curl", s.execCurl)
	t.Run("kubectl", s.execKubectl)
	t.Run("ssh", s.execSSH)
	t.Run("git", s.gitCredential)
	t.Run("kube-credential", s.kubeCredential)
	t.Run("sdk", s.sdkExample)
	t.Run("dpop", s.bindsToKey)
	s.stop(t, syscall.SIGTERM)
}

// exec runs a shell script with the given flags.
func (s *session) exec(t *testing.T, script string, flags ...string) result {
	t.Helper()
	return startExec(t, s.env, script, flags...).finish(t)
}

func startExec(t *testing.T, env []string, script string, flags ...string) *process {
	t.Helper()
	// Run away from the tests' terminal, if there is one: brevet does not forward keyboard signals.
	alone := &syscall.SysProcAttr{Setsid: true}
	return launchWith(t, alone, env, append(append([]string{"exec"}, flags...), "--", "sh", "-c", script)...)
}

// records returns what the auditor sees with the given filters.
func (s *session) records(t *testing.T, filters ...string) []map[string]any {
	t.Helper()
	got := brevet(t, s.as("auditor"), append([]string{"audit", "list", "-o", "json"}, filters...)...)
	got.want(t, 0)
	return objects(t, got.out)
}

// whose returns the record of an issued credential.
func (s *session) whose(t *testing.T, credential string) map[string]any {
	t.Helper()
	got := brevet(t, s.as("auditor"), "audit", "whose", client.DigestOf(secret.New(credential)), "-o", "json")
	got.want(t, 0)
	return object(t, got.out)
}

// lines splits the output of a script.
func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

var repo = []string{"--scope", "github.issues.read", "--param", "repo=acme/api"}

func with(flags []string, more ...string) []string {
	return append(flags[:len(flags):len(flags)], more...)
}

func (s *session) places(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "token")
	got := s.exec(t, `
		umask
		cat "$BREVET_DIR/inside"; echo
		cat "`+outside+`"; echo
		curl -s --max-time 9 --http0.9 --unix-socket "$BREVET_DIR/answers" http://brevet/; echo
		stat -c %a "$BREVET_DIR" "$BREVET_DIR/inside" "`+outside+`" "$BREVET_DIR/answers"
		ls -A "$BREVET_DIR" | tr '\n' ' '; echo
		echo "$BREVET_TASK" "$BREVET_DIR"
		tr '\0' ' ' <"/proc/$PPID/cmdline" && tr '\0' ' ' <"/proc/$$/cmdline"
		echo "on standard error" >&2`,
		with(repo, "--file", "inside", "--file", outside, "--socket", "answers")...)
	got.want(t, 0)
	said := lines(got.out)
	if len(said) < 10 {
		t.Fatalf("got %q", got.out)
	}
	token := said[1]
	if !aToken.MatchString(token + "\n") {
		t.Errorf("got %q, want a token", token)
	}
	for _, again := range said[2:4] {
		if again != token {
			t.Errorf("got %q, want %q in every place", again, token)
		}
	}
	if modes := strings.Join(said[4:8], " "); modes != "700 600 600 600" {
		t.Errorf("got the modes %s, want a folder of 700 and files of 600", modes)
	}
	if said[8] != "answers inside " {
		t.Errorf("got the files %q, want the two that were asked for", said[8])
	}
	task, folder, _ := strings.Cut(said[9], " ")
	if !strings.HasPrefix(folder, "/dev/shm/brevet-") || exists(folder) || exists(outside) {
		t.Errorf("the folder is %s; it or %s is still there", folder, outside)
	}
	if strings.Contains(strings.Join(said[10:], ""), token) {
		t.Error("the token is in the arguments of a program")
	}
	if got.err != "on standard error\n" {
		t.Errorf("got %q on standard error, want the program's own words", got.err)
	}
	record := s.whose(t, token)
	if record["status"] != "released" || record["task"] != task || !strings.HasPrefix(task, "exec-") {
		t.Errorf("got %v, want it released, of the task %s", record, task)
	}
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", task).want(t, exitDenied, "The task has ended")
}

func (s *session) renewed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	p := startExec(t, s.env, `
		first=$(cat "$BREVET_DIR/token"); echo "$first"
		n=0
		while [ $n -lt 2 ]; do
			now=$(cat "$BREVET_DIR/token") || exit 1
			if [ "$now" != "$first" ]; then echo "$now"; first=$now; n=$((n+1)); fi
			sleep 0.05
		done
		echo wait; while :; do sleep 0.05; done`, "--task", "t-renewed", "--scope", "brief.token.read", "--param", "repo=acme/api",
		"--file", "token", "--socket", socket)
	p.waitFor(t, p.out, "wait\n")
	said := lines(p.out.String())
	if len(said) != 4 || said[0] == said[1] || said[1] == said[2] {
		t.Fatalf("got %q, want three tokens", said)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !aToken.Match(append(answer, '\n')) || string(answer) == said[0] || string(answer) == said[1] {
		t.Errorf("got %q, %v of the socket, want a token that is as new as the file's", answer, err)
	}
	p.signal(t, syscall.SIGTERM)
	p.finish(t).want(t, 128+int(syscall.SIGTERM))
	if exists(socket) {
		t.Error("the socket is still there")
	}
	for _, record := range s.records(t, "--task", "t-renewed") {
		if record["status"] == "issued" {
			t.Errorf("still alive: %v", record)
		}
	}
	// The task was given by name, so it continues.
	brevet(t, s.env, "request", "github.issues.read", "repo=acme/api", "--task", "t-renewed").want(t, 0)
}

func (s *session) several(t *testing.T) {
	got := s.exec(t, `echo "$A"; echo "$B"; echo "$USER_NAME $PASSWORD"; cat "$BREVET_DIR/whole"`,
		"--task", "t-several",
		"--scope", "github.issues.read", "--param", "repo=acme/api", "--env", "A", "--ttl", "1m",
		"--scope", "github.issues.read", "--env", "B", "--param=repo=acme/web",
		"--scope", "reports.orders.read", "--env", "USER_NAME=username", "--env", "PASSWORD=password",
		"--scope", "brief.login.read", "--file", "whole")
	got.want(t, 0, "github.issues.read expires at", "cannot be renewed")
	said := lines(got.out)
	if len(said) != 4 {
		t.Fatalf("got %q", got.out)
	}
	a, b := s.whose(t, said[0]), s.whose(t, said[1])
	if a["resource"] != "github:repo/acme/api" || a["ttl"] != 60.0 || b["resource"] != "github:repo/acme/web" || b["ttl"] != 900.0 {
		t.Errorf("got %v and %v, want each flag with its own scope", a, b)
	}
	if user, password, _ := strings.Cut(said[2], " "); !strings.HasPrefix(user, "v-") || password == "" {
		t.Errorf("got %q, want a user and a password", said[2])
	}
	if login := object(t, said[3]); login["username"] == "" || login["password"] == "" {
		t.Errorf("got %v, want a whole login", login)
	}
	if n := len(s.records(t, "--task", "t-several", "--status", "issued")); n != 0 {
		t.Errorf("%d credentials are alive", n)
	}
}

func (s *session) execEndings(t *testing.T) {
	flags := with(repo, "--file", "token")
	s.exec(t, "exit 7", flags...).want(t, 7)
	s.exec(t, "kill -KILL $$", flags...).want(t, 137)
	for sig, want := range map[syscall.Signal]string{
		syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1", syscall.SIGQUIT: "QUIT",
	} {
		p := startExec(t, s.env, `trap 'echo got `+want+`; echo "$BREVET_DIR"; exit 9' `+want+`; echo ready; while :; do sleep 0.05; done`, flags...)
		p.waitFor(t, p.out, "ready\n")
		p.signal(t, sig)
		got := p.finish(t)
		got.want(t, 9, "got "+want)
		if folder := lines(got.out)[2]; exists(folder) {
			t.Errorf("%s: %s is still there", want, folder)
		}
	}
	s.execUnheard(t)
	got := launch(t, append(s.env, "BREVET_TASK=t-input"), append(append([]string{"exec"}, flags...), "--", "cat", "/dev/null")...).finish(t)
	got.want(t, 0)
	if got.out != "" || got.err != "" {
		t.Errorf("got %+v, want nothing that the program did not print", got)
	}
}

// execUnheard checks that the program runs and its credentials end although nobody reads standard error.
func (s *session) execUnheard(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"exec", "--task", "t-unheard"},
		with(repo, "--env", "TOKEN", "--", "sh", "-c", "exit 7")...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), s.env...), writer
	err = cmd.Run()
	_ = writer.Close()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("got %v, want the program's own exit code", err)
	}
	if got := s.records(t, "--task", "t-unheard"); len(got) != 1 || got[0]["status"] != "released" {
		t.Errorf("got %v, want one credential that was released", got)
	}
}

// execKilled checks that the program dies if brevet is killed, and that the next brevet removes the folder that it left.
func (s *session) execKilled(t *testing.T) {
	p := startExec(t, s.env, `echo "$BREVET_DIR"; echo $$; echo ready; while :; do sleep 0.05; done`,
		"--task", "t-killed", "--scope", "brief.token.read", "--param", "repo=acme/api", "--file", "token")
	p.waitFor(t, p.out, "ready\n")
	said := lines(p.out.String())
	p.signal(t, syscall.SIGKILL)
	within(t, patience, "the program dies with brevet", func() bool { return !exists("/proc/" + said[1] + "/cmdline") })
	if !exists(said[0]) {
		t.Fatalf("%s is gone: this test sees nothing", said[0])
	}
	old := time.Now().Add(-2 * time.Minute)
	if err := os.Chtimes(said[0], old, old); err != nil {
		t.Fatal(err)
	}
	s.exec(t, ":", with(repo, "--file", "token")...).want(t, 0)
	if exists(said[0]) {
		t.Errorf("%s is still there", said[0])
	}
	within(t, patience, "the credential has ended", func() bool {
		return len(s.records(t, "--task", "t-killed", "--status", "issued")) == 0
	})
}

func (s *session) execRefused(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	got := s.exec(t, "touch "+ran, with(repo, "--file", "a", "--scope", "github.repo.delete", "--param", "repo=acme/api", "--file", "b")...)
	got.want(t, exitDenied, "Denied by policy")
	if got.out != "" || exists(ran) {
		t.Errorf("got %q on standard output; the program ran: %v", got.out, exists(ran))
	}
	// A program gets nothing from a scope that only opens hosts.
	s.exec(t, "touch "+ran, "--scope", "brief.hosts.open", "--env", "KEY").want(t, 1, "the scope has no credential and only opens hosts")
	records := s.records(t, "--scope", "brief.hosts.open")
	if len(records) != 1 || records[0]["status"] != "released" || exists(ran) {
		t.Errorf("got %v; the program ran: %v", records, exists(ran))
	}
	printed := brevet(t, s.env, "request", "brief.hosts.open", "--task", "t-open")
	printed.want(t, 0, "brief.hosts.open on brief:hosts until ", "The scope has no credential: it only opens hosts.")
	if printed.out != "" {
		t.Errorf("got %q on standard output", printed.out)
	}
	document := object(t, brevet(t, s.env, "request", "brief.hosts.open", "--task", "t-open", "-o", "json").out)
	if document["kind"] != "none" || document["id"] == "" || document["token"] != nil || document["credential"] != nil {
		t.Errorf("got %v", document)
	}
	// With JSON output, too, standard output belongs to the program.
	if got := s.exec(t, ":", "-o", "json", "--scope", "github.repo.delete", "--param", "repo=acme/api", "--file", "b"); got.code != exitDenied || got.out != "" {
		t.Errorf("got %+v", got)
	}
	for _, record := range s.records(t, "--scope", "github.issues.read", "--status", "issued") {
		if strings.HasPrefix(record["task"].(string), "exec-") {
			t.Errorf("still alive: %v", record)
		}
	}
}

var waitingFor = regexp.MustCompile(`; request ([^\s;]+)`)

func (s *session) execWaits(t *testing.T) {
	alice := s.person(t, "alice")
	flags := []string{"--scope", "github.issues.write", "--param", "repo=acme/api", "--file", "token"}
	p := startExec(t, s.env, `cat "$BREVET_DIR/token"`, flags...)
	p.waitFor(t, p.err, "\n")
	brevet(t, alice, "approvals", "approve", waitingFor.FindStringSubmatch(p.err.String())[1], "--yes").want(t, 0)
	got := p.finish(t)
	got.want(t, 0, "github.issues.write is pending approval: 1 of oncall")
	if !aToken.MatchString(got.out + "\n") {
		t.Errorf("got %q, want the token alone", got.out)
	}
	p = startExec(t, s.env, ":", flags...)
	p.waitFor(t, p.err, "\n")
	p.signal(t, syscall.SIGINT)
	p.finish(t).want(t, 1)
	if got := s.records(t, "--scope", "github.issues.write", "--status", "pending"); len(got) != 0 {
		t.Errorf("got %v, want what nobody waits for withdrawn", got)
	}
}

// execLongest checks that a credential that cannot be renewed is requested with the longest TTL.
func (s *session) execLongest(t *testing.T) {
	got := s.exec(t, `echo "$A"; echo "$B"`, with(repo, "--env", "A", "--scope", "brief.token.read", "--param", "repo=acme/api", "--env", "B")...)
	got.want(t, 0)
	if a, b := s.whose(t, lines(got.out)[0]), s.whose(t, lines(got.out)[1]); a["ttl"] != 900.0 || b["ttl"] != 60.0 {
		t.Errorf("got %v and %v, want the scope's longest and what policy lets pass", a["ttl"], b["ttl"])
	}
}

// othersFolder returns a folder to which only another user, apart from root, can write.
func othersFolder(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		return "/usr"
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *session) execMistakes(t *testing.T) {
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		flags []string
		code  int
		want  string
	}{
		{"no place", repo, 1, "requires --env, --file, --socket or --for"},
		{"before its scope", []string{"--param", "a=b", "--scope", "a.b"}, 1, "must follow its --scope"},
		{"in the environment and elsewhere", with(repo, "--env", "A", "--file", "a"), 1, "a separate --scope"},
		{"no variable", with(repo, "--env", "A-B"), 1, "neither NAME nor NAME=FIELD"},
		{"no field", with(repo, "--env", "A=password"), 1, "has no field"},
		{"other field", []string{"--scope", "reports.orders.read", "--env", "A=pass"}, 1, `no field "pass": use one of password, username`},
		{"no name", with(repo, "--file", ".."), 1, "not a file name"},
		{"a folder of everybody", with(repo, "--file", "/tmp/token"), 1, "other users can write"},
		{"a folder of somebody else", with(repo, "--file", othersFolder(t)+"/token"), 1, "other users can write"},
		{"no folder", with(repo, "--file", "/nonexistent/token"), 1, "no such file"},
		{"a file that is there", with(repo, "--file", there), 1, "already exists"},
		{"unknown program", with(repo, "--for", "emacs"), 1, "use psql, curl, kubectl, ssh, aws"},
		{"a token for psql", with(repo, "--for", "psql"), 1, "not a database login"},
		{"a login for curl", []string{"--scope", "reports.orders.read", "--for", "curl"}, 1, "use a scope that issues a JWT"},
		{"a socket's name that is too long", with(repo, "--socket", strings.Repeat("x", 120)), 1, "too long for a socket"},
		{"a malformed TTL", with(repo, "--ttl", "soon"), 1, "--ttl"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := s.exec(t, "echo ran", tc.flags...)
			got.want(t, tc.code, tc.want)
			if got.out != "" {
				t.Errorf("got %q on standard output, want nothing", got.out)
			}
		})
	}
	if text, err := os.ReadFile(there); err != nil || string(text) != "mine" {
		t.Errorf("got %q, %v of a file that was there", text, err)
	}
	brevet(t, s.env, append(append([]string{"exec"}, with(repo, "--file", "a")...), "--", "/nonexistent/program")...).want(t, exitNotFound, "program not found")
	brevet(t, s.env, append(append([]string{"exec"}, with(repo, "--file", "a")...), "--", there)...).want(t, exitNotExecutable, "cannot be run")
	brevet(t, s.env, append([]string{"exec"}, with(repo, "--file", "a", "--")...)...).want(t, 1, "no program to run")
	if err := os.Chmod(there, 0o700); err != nil {
		t.Fatal(err)
	}
	brevet(t, s.env, append(append([]string{"exec"}, with(repo, "--file", "a")...), "--", there)...).want(t, exitNotExecutable, "starting")
}

// program returns the path of a program that a test needs. If it is missing, the test fails.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
