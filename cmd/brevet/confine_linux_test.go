package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/registries"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

const nobody = 65534

// outsider lets an ordinary user act as the sandbox: it opens the folders of the stack, and returns attributes for that user.
// Tests of an ordinary user have only that one.
func outsider(t *testing.T, folders ...string) *syscall.SysProcAttr {
	t.Helper()
	attr := &syscall.SysProcAttr{Setsid: true}
	if os.Getuid() != 0 {
		return attr
	}
	for _, folder := range folders {
		for dir := folder; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, info.Mode().Perm()|0o111); err != nil {
				t.Fatal(err)
			}
		}
	}
	attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	return attr
}

// TestEgressConfined checks that a confined program works through the gateway with unmodified tools, and reaches nothing else.
func TestEgressConfined(t *testing.T) {
	t.Parallel()
	host := newWebHost(t)
	packages := host.withRegistry(t)
	port := freePort(t)
	more := host.brief(port)
	more["../postgres.port"] = fmt.Sprint(port)
	more["npm.cedar"] = `@id("npm") permit (principal, action == Action::"brief.npm.read", resource);`
	more["npm.yaml"] = `scopes:
  - name: brief.npm.read
    title: Download packages
    authority: read
    resource: packages:npm
    ttl: {default: 1m, max: 5m}
    credential: {kind: none}
    egress: [{hosts: ['` + packages + `'], methods: [GET], paths: ['/*', '/*/-/*', '/*/*/-/*']}]
`
	s := startBriefWith(t, more)
	reach := []string{"--host-ca", host.ca, "--allow-private", "127.0.0.1/32"}
	flags := append([]string{"--egress", "--confine"}, reach...)
	t.Run("tools", func(t *testing.T) { s.confinedTools(t, host, packages, port, flags) })
	t.Run("signals", func(t *testing.T) { s.confinedSignals(t, flags) })
	t.Run("files of the caller", func(t *testing.T) { s.confinedFiles(t, flags) })
	t.Run("terminal", func(t *testing.T) { s.confinedTerminal(t, flags) })
	t.Run("killed", func(t *testing.T) { s.confinedKilled(t, flags) })
	t.Run("connect", func(t *testing.T) { s.egressConnect(t, host, reach) })
	t.Run("exec socket", func(t *testing.T) { s.execSocket(t, host, reach) })
	t.Run("mistakes", s.confinedMistakes)
	s.stop(t, syscall.SIGTERM)
}

// withRegistry starts a registry of npm whose authority is in the file of the host's, and returns its name with the port.
func (h *webHost) withRegistry(t *testing.T) string {
	t.Helper()
	r := registries.Start(t)
	file, err := os.OpenFile(h.ca, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		err = errors.Join(pem.Encode(file, &pem.Block{Type: "CERTIFICATE", Bytes: r.Authority.Raw}), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(r.At(registries.NPM))
	return "localhost:" + port
}

// confinedTools runs tools as root and as an ordinary user, if this test may.
func (s *session) confinedTools(t *testing.T, host *webHost, packages string, port int, flags []string) {
	url := "https://" + host.name + "/repos/acme/api"
	go func() { // the calls are not of interest
		for range host.seen {
		}
	}()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	registries.WriteProject(t, dir)
	other := outsider(t, dir, filepath.Dir(binary), filepath.Dir(host.ca), filepath.Join(s.dir, "svid"))
	opened := []string{host.ca, strings.TrimPrefix(variable(s.env, "SPIFFE_ENDPOINT_SOCKET"), "unix://")}
	if ca := variable(s.env, "BREVET_CA_FILE"); ca != "" {
		opened = append(opened, ca)
	}
	for _, path := range opened { // for another user, as in a deployment
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const noProxy = "export NO_PROXY= no_proxy=; " // the host is on localhost
	tools := map[string]struct{ script, want string }{
		"curl":               {`curl -sSf --noproxy '' ` + url, "served"},
		"git":                {`git ls-remote ` + url + ` 2>&1 || true`, "error: 403"}, // git asks for another path, which no rule has; TestUnmodifiedToolsWork clones
		"psql":               {`psql -XAtc 'SELECT count(*) > 0 FROM orders' -d target -U anybody`, "t"},
		"python":             {`python3 -c 'import urllib.request as r; print(r.urlopen("` + url + `").read().decode())'`, "served"},
		"base URL from Node": {`node -e 'fetch(process.env.BREVET_EGRESS_URL + "/` + host.name + `/repos/acme/api").then(r => r.text()).then(console.log)'`, "served"},
		"refused by rule":    {`curl -sS --noproxy '' https://` + host.name + `/other`, "egress_no_rule"},
		"around the gateway": {`curl -sS --noproxy '*' -k ` + url + ` 2>&1 || true`, "Failed to connect"},
		"database around it": {fmt.Sprintf(`psql -XAtc 'SELECT 1' 'host=127.0.0.1 port=%d dbname=target user=postgres' 2>&1 || true`, port), "Connection refused"},
		"the broker":         {`curl -sSk --noproxy '*' "$SERVER" 2>&1 || true`, "Failed to connect"},
		"the Workload API":   {`curl -sS --max-time 9 --http0.9 --unix-socket "${WORKLOADS#unix://}" http://x/ 2>&1 || true`, "ouldn't open socket|ailed to connect|Couldn't connect"},
		"the keys of the stack and the login": {`for f in "$STATE/vault/keys.json" "$STATE/svid/research/svid_key.pem" "$STATE/owner-url" "$STATE/made-here" "${WORKLOADS#unix://}" ` +
			`"$HOME/.config/brevet/login.json" "$XDG_STATE_HOME/brevet/dev.key"; do ! test -e "$f" || { echo "sees $f"; exit 1; }; done; echo sees none`, "sees none"},
		"npm": {
			`project=$(mktemp -d -p .); cp package*.json "$project"; cd "$project"; npm ci --registry https://` + packages + `/ --cache cache >npm.log 2>&1 || { cat npm.log; exit 1; }
			node -p 'require("greeter")("world")'`, registries.NPMGreeting,
		},
	}
	login := filepath.Join(dir, ".config", "brevet", "login.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(login), 0o755), os.WriteFile(login, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	users := map[string]*syscall.SysProcAttr{"own user": {Setsid: true}}
	if os.Getuid() == 0 {
		users["ordinary user"] = other
	}
	for user, attr := range users {
		for name, tool := range tools {
			t.Run(user+"/"+name, func(t *testing.T) {
				env := append(s.env[:len(s.env):len(s.env)], "HOME="+dir, "PATH=/usr/bin:/bin", "SERVER="+variable(s.env, "BREVET_SERVER"), "WORKLOADS="+variable(s.env, "SPIFFE_ENDPOINT_SOCKET"), "STATE="+s.dir)
				got := unlimited(t, func() result {
					return launchIn(t, dir, attr, env, append(append([]string{"exec"}, flags...), "--", "sh", "-c", noProxy+tool.script)...).finish(t)
				})
				if got.code != 0 || !containsAny(got.out, tool.want) {
					t.Errorf("got %+v, want %q", got, tool.want)
				}
			})
		}
	}
}

// unlimited repeats a program that the broker turned away because this test calls it often.
func unlimited(t *testing.T, run func() result) (got result) {
	t.Helper()
	within(t, patience, "the broker accepts calls again", func() bool {
		got = run()
		return !strings.Contains(got.out+got.err, "rate_limited") && !strings.Contains(got.err, "Rate limit exceeded")
	})
	return got
}

func containsAny(text, alternatives string) bool {
	for one := range strings.SplitSeq(alternatives, "|") {
		if strings.Contains(text, one) {
			return true
		}
	}
	return false
}

func variable(env []string, name string) string {
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// launchIn is launchWith in a folder.
func launchIn(t *testing.T, dir string, attr *syscall.SysProcAttr, env []string, args ...string) *process {
	t.Helper()
	return start(t, attr, env, append([]string{"env", "-C", dir, binary}, args...)...)
}

func (s *session) confinedSignals(t *testing.T, flags []string) {
	for sig, want := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"} {
		p := startExec(t, s.env, `trap 'echo got `+want+`; exit 9' `+want+`; echo ready; while :; do sleep 0.05; done`, flags...)
		p.waitFor(t, p.out, "ready\n")
		p.signal(t, sig)
		p.finish(t).want(t, 9, "got "+want)
	}
	s.exec(t, "kill -KILL $$", flags...).want(t, 137)
	s.exec(t, "exit 7", flags...).want(t, 7)
}

// confinedFiles checks that a shell that reads its script from a pipe runs nothing that a confined program wrote there, and that the program
// gets no credential of the caller's environment.
func (s *session) confinedFiles(t *testing.T, flags []string) {
	script := fmt.Sprintf(`"$BREVET" exec %s -- sh -c 'echo "echo EVIL" >/proc/self/fd/0; printenv GH_TOKEN AWS_PROFILE KEPT_TOKEN; true'
echo after
"$BREVET" egress relay -- sh -c 'echo "echo EVIL" >/proc/self/fd/0; exit 7' || echo $?
`, strings.Join(append(flags, "--keep-env", "KEPT_TOKEN"), " "))
	env := append(s.env[:len(s.env):len(s.env)], "BREVET="+binary, "SCRIPT="+script, "GH_TOKEN=of-the-caller", "AWS_PROFILE=of-the-caller", "KEPT_TOKEN=kept")
	got := start(t, &syscall.SysProcAttr{Setsid: true}, env, "sh", "-c", `printf '%s' "$SCRIPT" | sh`).finish(t)
	got.want(t, 0)
	if got.out != "kept\nafter\n7\n" {
		t.Errorf("got %q", got.out)
	}
	if !strings.Contains(got.err, "the program does not get your ") || !strings.Contains(got.err, "AWS_PROFILE, ") || !strings.Contains(got.err, "GH_TOKEN") {
		t.Errorf("got %q, want the names of what the program does not get", got.err)
	}
}

// confinedTerminal checks that Ctrl-C reaches a confined program once.
func (s *session) confinedTerminal(t *testing.T, flags []string) {
	keyboard, screen := terminal(t)
	out := newStream()
	cmd := exec.CommandContext(t.Context(), binary, append(append([]string{"exec"}, flags...), "--", "sh", "-c", `
		n=0
		trap 'n=$((n+1)); echo "got $n"' INT
		trap 'echo "in all $n"; kill $!; exit 0' USR1
		sleep 60 &
		echo ready
		while :; do wait; done`)...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), s.env...), screen, out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, out: out, err: newStream(), ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	p.waitFor(t, out, "ready\n")
	const often = 10
	for range often {
		before := strings.Count(out.String(), "got ")
		if _, err := io.WriteString(keyboard, "\x03"); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, out, fmt.Sprintf("got %d\n", before+1))
	}
	p.signal(t, syscall.SIGUSR1)
	p.finish(t).want(t, 0, fmt.Sprintf("in all %d\n", often))
}

// confinedKilled checks that the program and all that it started die if brevet is killed.
func (s *session) confinedKilled(t *testing.T, flags []string) {
	mark := fmt.Sprintf("31%d", os.Getpid()) // seconds, which no other process sleeps
	p := startExec(t, s.env, "setsid sleep "+mark+" & echo ready; wait", flags...)
	p.waitFor(t, p.out, "ready\n")
	within(t, patience, "the program runs", func() bool { return len(running(t, "sleep\x00"+mark)) > 0 })
	p.signal(t, syscall.SIGKILL)
	within(t, patience, "the program dies with brevet", func() bool { return len(running(t, "sleep\x00"+mark)) == 0 })
}

// egressConnect checks the forwarder: in a network of its own, for another user than the gateway's.
func (s *session) egressConnect(t *testing.T, host *webHost, reach []string) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "for-sandbox")
	attr := outsider(t, filepath.Dir(binary), dir)
	socket := filepath.Join(folder, "egress.sock")
	args := []string{"egress", "--task", "t-connect", "--listen", "none", "--dir", filepath.Join(dir, "own"), "--socket", socket}
	if attr.Credential != nil {
		args = append(args, "--socket-owner", fmt.Sprint(nobody), "--socket-mode", "0600")
	}
	p := launch(t, s.env, append(args, reach...)...)
	p.waitFor(t, p.err, "serving")
	inside := func(script string, more ...string) result {
		attr := *attr
		attr.Setsid = true
		line := append(append([]string{"env", "-C", "/", "unshare", "-Urn", "sh", "-ec", `ip link set lo up; exec "$@"`, "sh", binary, "egress", "connect"}, more...), "--", "sh", "-c", script)
		return start(t, &attr, []string{"HOME=/tmp", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, line...).finish(t)
	}
	inside(curl+"https://"+host.name+"/repos/acme/api", "--socket", socket).want(t, 0, "served\n200")
	inside(curl+"https://"+host.name+"/other", "--socket", socket).want(t, 0, "egress_no_rule")
	inside("psql -XAtc 'SELECT count(*) > 0 FROM orders' -d target -U anybody", "--socket", socket).want(t, 0, "t\n")
	inside("curl -sSk --noproxy '*' https://"+host.name+"/repos/acme/api", "--socket", socket).want(t, 7, "Failed to connect")
	inside("exit 7", "--socket", socket).want(t, 7)
	inside("true", "--socket", filepath.Join(dir, "none")).want(t, 1, "give the sandbox the folder of the socket")
	p.signal(t, syscall.SIGTERM)
	p.finish(t).want(t, 0)
	inside("true", "--socket", socket).want(t, 1, "responds")
}

// execSocket checks a gateway for one program that starts a sandbox without a network itself.
func (s *session) execSocket(t *testing.T, host *webHost, reach []string) {
	script := `env | grep -i _proxy=; exec unshare -Urn sh -ec 'ip link set lo up; exec "$@"' sh ` + binary + ` egress connect -- ` + curl + "https://" + host.name + "/repos/acme/api"
	unlimited(t, func() result {
		return s.exec(t, script, append([]string{"--egress", "--socket", "egress.sock"}, reach...)...)
	}).want(t, 0, "served\n200")
}

func (s *session) confinedMistakes(t *testing.T) {
	for want, flags := range map[string][]string{
		"--confine requires --egress":                   {"exec", "--confine", "--scope", "a.b", "--", "true"},
		"--keep-env requires --confine":                 {"exec", "--egress", "--keep-env", "X", "--", "true"},
		"--unix-sockets requires --confine":             {"exec", "--egress", "--unix-sockets", "--", "true"},
		"excludes a --socket of the gateway":            {"exec", "--egress", "--confine", "--socket", "s", "--", "true"},
		"must follow its --scope":                       {"exec", "--egress", "--file", "s", "--", "true"},
		"requires --socket or --listen-mtls":            {"egress", "--task", "t", "--listen", "none"},
		"is not a mode such as 0660":                    {"egress", "--task", "t", "--socket", "/tmp/none/s", "--socket-mode", "0777"},
		"is not UID or UID:GID":                         {"egress", "--task", "t", "--socket", "/tmp/none/s", "--socket-owner", "somebody"},
		"--socket-mode and --socket-owner require":      {"egress", "--task", "t", "--socket-mode", "0660"},
		"other users can change /tmp: use a folder":     {"egress", "--task", "t", "--listen", "none", "--dir", t.TempDir(), "--socket", "/tmp/brevet-s", "--socket-mode", "0666"},
		"of no use otherwise":                           {"confined", "run"},
		"brevet exec --egress --confine runs this comm": {"confined", "set-up", "{}"},
		"no program to run: name it after --":           {"egress", "connect", "--socket", "/tmp/none/s", "--"},
	} {
		brevet(t, s.env, flags...).want(t, 1, want)
	}
}

// T12: a confined program does not see the socket of the Workload API, however its caller spells the address, nor the folder in which an agent
// makes it again.
func TestWorkloadAPIIsHiddenHoweverItIsSpelt(t *testing.T) {
	home(t)
	folder := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(folder, "a b.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"unix://" + folder + "/a b.sock", "unix:" + folder + "/a%20b.sock", "UNIX://" + folder + "/a%20b.sock", "Unix:///" + folder + "/./a%20%62.sock"} {
		if err := workloadapi.ValidateAddress(address); err != nil { // which this command would use
			t.Errorf("%s: %v", address, err)
		}
		hidden := ConfineFlags{workloadAPI: address}.hidden()
		if !slices.Contains(hidden, filepath.Join(folder, "a b.sock")) || !slices.Contains(hidden, folder) {
			t.Errorf("%s: got %q", address, hidden)
		}
		if err := checkSocket(address + "2"); err == nil || !strings.Contains(err.Error(), "no Workload API at") {
			t.Errorf("%s2: got %v", address, err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if hidden := (ConfineFlags{workloadAPI: "unix:" + folder + "/a%20b.sock"}).hidden(); slices.Contains(hidden, folder) {
		t.Errorf("got %q, want a folder with other files left", hidden)
	}
}
