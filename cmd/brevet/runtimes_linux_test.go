package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// imageFolder returns the root of a container that sees the host's programs at /usr.
func imageFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"usr", "etc", "tmp", "run", "proc", "sys", "dev"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestEgressRuntimes runs the scripts of examples/runtimes: an agent inside reads one host through the gateway, and reaches nothing
// else.
func TestEgressRuntimes(t *testing.T) {
	t.Parallel()
	host := newWebHost(t)
	s := startBriefWith(t, host.brief(freePort(t)))
	socket := filepath.Join(t.TempDir(), "egress.sock")
	gateway := launch(t, s.env, "egress", "--task", "t-runtimes", "--listen", "none", "--dir", t.TempDir(), "--socket", socket, "--host-ca", host.ca, "--allow-private", "127.0.0.1/32")
	gateway.waitFor(t, gateway.err, "serving")
	go func() { // the calls are not of interest
		for range host.seen {
		}
	}()
	state := t.TempDir()
	podman := []string{
		"PODMAN=podman --root " + state + "/root --runroot " + state + "/run --storage-driver vfs --cgroup-manager cgroupfs --runtime runc",
		"OPTIONS=--ulimit nofile=4096:4096 --ulimit nproc=4096:4096 -v /usr:/usr:ro -v /etc/alternatives:/etc/alternatives:ro -e HOME=/tmp --rootfs",
		"IMAGE=" + imageFolder(t),
	}
	scripts, err := filepath.Abs("../../examples/runtimes")
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][]string{"bubblewrap": nil, "runc": nil, "podman": podman} {
		t.Run(name, func(t *testing.T) {
			inside := func(script string) result {
				line := []string{filepath.Join(scripts, name+".sh"), filepath.Dir(socket), "sh", "-c", script}
				return start(t, &syscall.SysProcAttr{Setsid: true}, append(env, "BREVET="+binary), line...).finish(t)
			}
			inside(curl+"https://"+host.name+"/repos/acme/api").want(t, 0, "served\n200")
			inside(curl+"https://"+host.name+"/other").want(t, 0, "egress_no_rule")
			inside("curl -sSk --noproxy '*' https://"+host.name+"/repos/acme/api").want(t, 7, "Failed to connect")
			inside("curl -sSk --noproxy '*' https://192.0.2.1/").want(t, 7, "Failed to connect")
			inside("getent ahosts example.com || exit 9").want(t, 9)
			inside("exit 7").want(t, 7)
			// T12: otherwise an agent could replace ca.pem or the socket, also for the gateway's next start.
			inside("touch /run/brevet/gateway/ca.pem 2>/dev/null || exit 9").want(t, 9)
		})
	}
	gateway.signal(t, syscall.SIGTERM)
	gateway.finish(t).want(t, 0)
	s.stop(t, syscall.SIGTERM)
}
