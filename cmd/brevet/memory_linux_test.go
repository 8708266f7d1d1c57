package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/secret"
)

// peer returns a command line for a process of this user without extra privileges. As root, a process could otherwise read
// everything.
func peer(line ...string) []string {
	if os.Geteuid() != 0 {
		return line
	}
	return append([]string{"setpriv", "--bounding-set", "-sys_ptrace,-perfmon,-sys_admin"}, line...)
}

// TestServerMemoryIsUnreadable checks that processes of the same user cannot read the memory of a broker or a gateway (T10), and
// that neither leaves a core dump.
func TestServerMemoryIsUnreadable(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	metrics := free(t)
	config := d.configure(t, func(cfg *app.Config) {
		cfg.Listen, cfg.MetricsListen, cfg.Console, cfg.Hosts = "127.0.0.1:0", metrics, nil, append(cfg.Hosts, "localhost")
	})
	broker := start(t, nil, nil, peer(binary, "serve", "--config", config)...)
	broker.waitFor(t, broker.err, `"msg":"serving"`)
	gateway := start(t, nil, d.env("research"), peer(binary, "egress", "--task", "t-memory", "--listen", "127.0.0.1:0", "--dir", t.TempDir()+"/way")...)
	gateway.waitFor(t, gateway.err, "serving;")
	open := start(t, nil, nil, peer("sleep", "60")...) // an ordinary process
	for _, file := range []string{"mem", "maps", "environ"} {
		for name, p := range map[string]*process{"broker": broker, "gateway": gateway} {
			if out, err := peek(t.Context(), p, file); err == nil || !strings.Contains(out, "ermission denied") {
				t.Errorf("%s of the %s: got %q, %v", file, name, out, err)
			}
		}
		if out, err := peek(t.Context(), open, file); err != nil {
			t.Errorf("%s of any process cannot be read either, so nothing is shown: %s, %v", file, out, err)
		}
	}
	for name, p := range map[string]*process{"broker": broker, "gateway": gateway} {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.cmd.Process.Pid))
		if err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
			t.Errorf("%s: got the limits %s, %v", name, limits, err)
		}
	}
	_, port, _ := strings.Cut(listening.FindStringSubmatch(broker.err.String())[1], ":")
	at := "https://localhost:" + port
	d.profiles(t, "http://"+metrics, at)
	d.dumps(t, broker, at)
}

// peek opens a file of a process in /proc.
func peek(ctx context.Context, p *process, file string) (string, error) {
	line := peer("sh", "-c", `exec 3<"$0"`, fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
	out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// profiles checks that no port serves what the Go runtime could reveal of the memory.
func (d *deployment) profiles(t *testing.T, metrics, api string) {
	t.Helper()
	for _, at := range []string{metrics, api, d.cfg.Console.URL} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/vars"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := anyServer().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if answered := resp.StatusCode == http.StatusOK && !strings.HasPrefix(string(body), "# HELP"); answered || strings.Contains(string(body), "brevet serve") {
				t.Errorf("%s%s: got %d %.80q", at, path, resp.StatusCode, body)
			}
		}
	}
}

// anyServer returns a client that accepts any certificate and follows no redirects.
func anyServer() *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// dumps makes a broker that has issued a token print all stacks with their arguments, as in a panic. They must hold no
// secret (I9).
func (d *deployment) dumps(t *testing.T, broker *process, at string) {
	t.Helper()
	secrets := map[string]string{}
	for name, path := range map[string]string{"database URL": "database-url", "secret id": "approle/secret_id"} {
		text, err := secret.ReadFile(d.Path(path))
		if err != nil {
			t.Fatal(err)
		}
		secrets[name] = text
	}
	secrets["token"] = strings.TrimSpace(d.request(t, "t-dump", "--server", at).out)
	broker.signal(t, syscall.SIGQUIT)
	got := broker.finish(t)
	if !strings.Contains(got.err, "goroutine ") || !strings.Contains(got.err, "main.serve") {
		t.Fatalf("it said no stacks: %s", got.err)
	}
	for name, text := range secrets {
		if text == "" || strings.Contains(got.err, text) {
			t.Errorf("the stacks show the %s", name)
		}
	}
}
