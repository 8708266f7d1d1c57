package main

import (
	"errors"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// gitServer serves the repositories below root with git's own backend, to clients whose user and password are accepted.
func gitServer(t *testing.T, root string, accepts func(user, password string) bool) (address, ca string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, "git"), "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/",
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	}
	return serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || !accepts(user, password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
}

// git runs git with only the given configuration.
func git(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = append(append(os.Environ(), env...), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "HOME="+t.TempDir())
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *session) gitCredential(t *testing.T) {
	root := t.TempDir()
	for _, repository := range []string{"acme/api.git", "evil/api.git"} {
		if out, err := git(t, nil, "init", "--bare", filepath.Join(root, repository)); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
	passwords := make(chan string, 99)
	address, ca := gitServer(t, root, func(user, password string) bool {
		passwords <- password
		return user == "x-access-token" && aToken.MatchString(password+"\n")
	})
	helper := "!" + binary + " git-credential --host " + strings.TrimPrefix(address, "https://") + " --task t-git --scope github.issues.read --param repo={path}"
	configured := []string{"-c", "credential." + address + ".helper=" + helper, "-c", "credential.useHttpPath=true"}
	env := append(s.env, "GIT_SSL_CAINFO="+ca)
	out, err := git(t, env, append(configured, "clone", address+"/acme/api.git", "here")...)
	if err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	token := <-passwords
	if record := s.whose(t, token); record["task"] != "t-git" || record["resource"] != "github:repo/acme/api" {
		t.Errorf("got %v", record)
	}
	// A denial by policy ends git, which then neither prompts nor continues without a credential.
	out, err = git(t, env, append(configured, "clone", address+"/evil/api.git", "there")...)
	if err == nil || !strings.Contains(out, "Denied by policy") || strings.Contains(out, "eyJ") {
		t.Errorf("got %q, %v, want why not", out, err)
	}
	t.Run("erase", func(t *testing.T) { s.gitErases(t, token) })
	t.Run("refused", s.gitRefuses)
}

// helper runs the credential helper with the input that git would send.
func (s *session) helper(t *testing.T, said, operation string, flags ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append(append([]string{"git-credential", "--host", "git.example", "--task", "t-git", "--scope", "github.issues.read", "--param", "repo={path}"}, flags...), operation)...)
	cmd.Env, cmd.Stdin = append(os.Environ(), s.env...), strings.NewReader(said)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), string(out), errOut.String()}
}

// gitErases checks that a credential is released after a host has refused it.
func (s *session) gitErases(t *testing.T, token string) {
	if status := s.whose(t, token)["status"]; status != "issued" {
		t.Fatalf("got it %v, want it alive: this test sees nothing", status)
	}
	const where = "protocol=https\nhost=git.example\npath=acme/api.git\nusername=x-access-token\n"
	if got := s.helper(t, where+"password="+token+"\n", "store"); got.code != 0 || got.out != "" {
		t.Errorf("store: got %+v", got)
	}
	s.helper(t, where, "erase").want(t, 0)
	s.helper(t, where+"password=somebody else's\n", "erase").want(t, 0)
	if status := s.whose(t, token)["status"]; status != "issued" {
		t.Errorf("got it %v, want it alive", status)
	}
	s.helper(t, where+"password="+token+"\n", "erase").want(t, 0)
	if status := s.whose(t, token)["status"]; status != "released" {
		t.Errorf("got it %v, want it released", status)
	}
	got := s.helper(t, where+"\n", "get")
	got.want(t, 0, "username=x-access-token\npassword=eyJ", "password_expiry_utc=")
	if got := s.helper(t, where, "get", "--field", "password"); got.code != 1 || got.out != "quit=1\n" {
		t.Errorf("got %+v", got)
	}
	s.helper(t, "whatever", "invented-later").want(t, 0)
	for _, operation := range []string{"get", "erase"} {
		asked := strings.Replace(where, "git.example", "git.example.evil", 1) + "password=" + token + "\n\n"
		if got := s.helper(t, asked, operation); got.code != 0 || got.out != "" {
			t.Errorf("%s of another host: got %+v, want nothing", operation, got)
		}
	}
}

// gitRefuses checks that malformed URLs, which anybody may write, lead to no credential and to no prompt.
func (s *session) gitRefuses(t *testing.T) {
	for name, said := range map[string]string{
		"plain HTTP":            "protocol=http\nhost=git.example\npath=acme/api\n",
		"no protocol":           "host=git.example\npath=acme/api\n",
		"no path":               "protocol=https\nhost=git.example\n",
		"NUL":                   "protocol=https\nhost=git.example\npath=acme/api\x00\n",
		"CR":                    "protocol=https\nhost=git.example\r\npath=acme/api\n",
		"no UTF-8":              "protocol=https\nhost=git.example\npath=acme/\xff\n",
		"host twice":            "protocol=https\nhost=git.example\nhost=b\npath=acme/api\n",
		"path twice":            "protocol=https\nhost=git.example\npath=acme/api\npath=evil/api\n",
		"a malformed line":      "protocol=https\nhost=git.example\npath=acme/api\nnonsense\n",
		"no name":               "protocol=https\n=h\npath=acme/api\n",
		"half a line":           "protocol=https\nhost=git.example\npath=acme/api",
		"too much":              "protocol=https\nhost=git.example\npath=" + strings.Repeat("a", 64<<10) + "\n",
		"a path that climbs":    "protocol=https\nhost=git.example\npath=acme/api/../../evil/api\n",
		"a path with a newline": "protocol=https\nhost=git.example\npath=acme/api\nevil\n",
		"a path with a query":   "protocol=https\nhost=git.example\npath=acme/api?x=.git\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := s.helper(t, said, "get")
			if got.code == 0 || got.out != "quit=1\n" {
				t.Errorf("got %+v, want that git is told to stop", got)
			}
		})
	}
}

// sdkExample checks that the example of the SDK does what it says.
func (s *session) sdkExample(t *testing.T) {
	built := filepath.Join(t.TempDir(), "sandbox")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", built, "../../examples/sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for range 2 { // the second run is another task
		cmd := exec.CommandContext(t.Context(), built)
		cmd.Env = append(os.Environ(), s.env...)
		out, err := cmd.CombinedOutput()
		found := regexp.MustCompile(`^holds github.issues.read on github:repo/acme/api\ntask (example-\S+) ended; alive at that time: 0\n$`).FindSubmatch(out)
		if err != nil || found == nil {
			t.Fatalf("got %q, %v, want a credential and the end of the task", out, err)
		}
		if n := len(s.records(t, "--task", string(found[1]), "--status", "released")); n != 1 {
			t.Errorf("got %d released credentials, want 1", n)
		}
	}
}
