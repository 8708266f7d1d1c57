package integrations_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// runsc returns gVisor's runtime, which the first run builds: minutes.
func runsc(t *testing.T) string {
	t.Helper()
	const module = "gvisor"
	var key strings.Builder
	key.WriteString(runtime.Version() + runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			t.Fatal(err)
		}
		key.WriteString(string(text))
	}
	path, err := testkit.Cached("runsc", []byte(key.String()), func(fresh string) error {
		build := exec.CommandContext(t.Context(), "go", "-C", module, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", fresh, "gvisor.dev/gvisor/runsc")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("building gVisor: %v", err)
	}
	return path
}

// podmanEnv has podman keep its state in a folder, and run a container that sees the host's programs at /usr.
func podmanEnv(t *testing.T) []string {
	t.Helper()
	state, image := t.TempDir(), t.TempDir()
	for _, dir := range []string{"usr", "etc", "tmp", "run", "proc", "sys", "dev"} {
		if err := os.Mkdir(filepath.Join(image, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(image, dir)); err != nil {
			t.Fatal(err)
		}
	}
	return []string{
		"PODMAN=podman --root " + state + "/root --runroot " + state + "/run --storage-driver vfs --cgroup-manager cgroupfs --runtime runc",
		"OPTIONS=--ulimit nofile=4096:4096 --ulimit nproc=4096:4096 -v /usr:/usr:ro -v /etc/alternatives:/etc/alternatives:ro -e HOME=/tmp --rootfs",
		"IMAGE=" + image,
	}
}

// gateway runs an egress gateway for sandboxes without a network until the test ends, and returns the folder of its socket.
func (w *world) gateway(t *testing.T, workloads string, flags ...string) string {
	t.Helper()
	folder := testkit.SocketFolder(t)
	args := append([]string{
		"egress", "--listen", "none", "--dir", t.TempDir(), "--socket", filepath.Join(folder, "egress.sock"),
		"--host-ca", w.roots, "--allow-private", "127.0.0.1/32",
	}, flags...)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	gateway := exec.CommandContext(ctx, w.binary, args...)
	gateway.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(),
		"BREVET_SERVER=" + w.stack.URL, "BREVET_SERVER_ID=spiffe://acme.test/brevet", "SPIFFE_ENDPOINT_SOCKET=" + workloads,
	}
	gateway.Cancel = func() error { return gateway.Process.Signal(syscall.SIGTERM) }
	gateway.WaitDelay = 20 * time.Second
	log, err := gateway.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	serving, said, ended := make(chan struct{}), make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		var all strings.Builder
		chunk := make([]byte, 4096)
		for known := false; ; {
			n, err := log.Read(chunk)
			all.Write(chunk[:n])
			if !known && strings.Contains(all.String(), "serving") {
				known = true
				close(serving)
			}
			if err != nil {
				said <- all.String()
				break
			}
		}
		_ = gateway.Wait()
	}()
	t.Cleanup(func() { stop(); <-ended })
	select {
	case <-serving:
	case <-ended:
		t.Fatalf("the gateway ended:\n%s", <-said)
	case <-time.After(patience):
		t.Fatalf("the gateway does not serve within %s", patience)
	}
	return folder
}

// TestRuntimes runs the scripts of examples/runtimes: an agent inside reads an issue of GitHub through the gateway, and reaches nothing
// else.
func TestRuntimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	workloads := w.workloadAPI(t, agents+"runtimes")
	folder := w.gateway(t, workloads, "--task", "runtimes", "--scope", "github.issues.read", "--param", "repo=api")
	udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	issues := w.github() + "/repos/acme/api/issues"
	const curl = "curl -sS --noproxy '' -w '\\n%{http_code}' "
	steps := []struct {
		name, script string
		code         int
		says         string
	}{
		{"allowed", curl + issues, 0, "content of a.txt"},
		{"another path", curl + w.github() + "/user", 0, "egress_no_rule"},
		{"writing", curl + "-X DELETE " + issues, 0, "egress_no_rule"},
		{"another host", curl + "https://example.com/", 0, "egress_no_rule"},
		{"TCP to a port of the host", "curl -sSk --noproxy '*' " + issues, 7, "Failed to connect"},
		{"TCP to the broker", "curl -sSk --noproxy '*' " + w.stack.URL, 7, "Failed to connect"},
		{"TCP", "bash -c 'echo >/dev/tcp/192.0.2.1/443'", 1, "Network is unreachable"},
		{"UDP", "bash -c 'echo >/dev/udp/192.0.2.1/53'", 1, "Network is unreachable"},
		{"UDP to a port of the host", fmt.Sprintf("bash -c 'echo >/dev/udp/%s; true'", strings.Replace(udp.LocalAddr().String(), ":", "/", 1)), 0, ""},
		{"metadata of a cloud", "bash -c 'echo >/dev/tcp/169.254.169.254/80'", 1, "Network is unreachable"},
		{"DNS", "getent ahosts example.com || exit 9", 9, ""},
		{"the Workload API", "curl -sS --unix-socket " + strings.TrimPrefix(workloads, "unix://") + " http://x/", 7, "Failed to connect"},
		{"the gateway's folder", "rm /run/brevet/gateway/ca.pem", 1, "Read-only file system"},
		{"exit code", "exit 7", 7, ""},
	}
	runtimes := map[string]func(*testing.T) []string{
		"bubblewrap": func(*testing.T) []string { return nil }, "runc": func(*testing.T) []string { return nil }, "podman": podmanEnv,
		"gvisor": func(t *testing.T) []string { t.Helper(); return []string{"RUNSC=" + runsc(t)} },
	}
	for name, environ := range runtimes {
		t.Run(name, func(t *testing.T) {
			env := environ(t)
			command := func(script string) *exec.Cmd {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				t.Cleanup(cancel)
				cmd := exec.CommandContext(ctx, "../../examples/runtimes/"+name+".sh", folder, "sh", "-c", script)
				cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + os.TempDir(), "BREVET=" + w.binary}, env...)
				cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setsid: true}, 5*time.Second
				return cmd
			}
			inside := func(script string) (string, int) {
				cmd := command(script)
				var said bytes.Buffer
				cmd.Stdout, cmd.Stderr = io.Writer(&said), io.Writer(&said)
				_ = cmd.Run() // the exit code says more
				return said.String(), cmd.ProcessState.ExitCode()
			}
			t.Run("files of the caller", func(t *testing.T) { noFileOfTheCaller(t, command) })
			for _, step := range steps {
				if got, code := inside(step.script); code != step.code || !strings.Contains(got, step.says) {
					t.Errorf("%s: got %d with %q, want %d with %q", step.name, code, got, step.code, step.says)
				}
			}
			if got, _ := inside("uname -r"); strings.Contains(got, "gvisor") != (name == "gvisor") {
				t.Errorf("the kernel is %q", got)
			}
		})
	}
	// The first datagram that arrives has to be the test's own.
	if _, err := udp.WriteTo([]byte("last"), udp.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	if n, from, err := udp.ReadFrom(got); err != nil || string(got[:n]) != "last" {
		t.Errorf("the host got %q by UDP from %v: %v", got[:n], from, err)
	}
}
