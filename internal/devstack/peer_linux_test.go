package devstack_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// Another user of the machine must not log in as an admin of somebody's stack.
func TestProviderLogsInItsOwnUserOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("an ordinary user cannot act as another one: only the own user is tried")
	}
	provider, err := devstack.NewProvider(devstack.ProviderConfig{
		Address: "127.0.0.1:0", ClientID: "brevet", People: []devstack.DevPerson{{Username: "bob", Groups: []string{"platform"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	host := strings.TrimPrefix(provider.Issuer(), "http://")
	for name, tc := range map[string]struct {
		uid  uint32
		url  string
		want string
	}{
		"own user":                {uint32(os.Geteuid()), provider.Issuer(), "No login waits for that code"},
		"own user by IPv6":        {uint32(os.Geteuid()), "http://[::ffff:127.0.0.1]" + host[strings.LastIndex(host, ":"):], "No login waits for that code"},
		"another user":            {54321, provider.Issuer(), "belongs to another user"},
		"another user, authorize": {54321, provider.Issuer(), "belongs to another user"},
	} {
		if tc.uid != uint32(os.Geteuid()) && os.Geteuid() != 0 {
			continue
		}
		path := "/device"
		if strings.Contains(name, "authorize") {
			path = "/authorize"
		}
		cmd := exec.CommandContext(t.Context(), "curl", "-sS", "--noproxy", "*", "-H", "Host: "+host, "-d", "user_code=AAAA-BBBB&username=bob", tc.url+path)
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tc.uid, Gid: tc.uid}}, "/"
		if tc.uid == uint32(os.Geteuid()) {
			cmd.SysProcAttr = nil
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), tc.want) {
			t.Errorf("%s: got %q, %v, want %q", name, out, err, tc.want)
		}
	}
	// A client that has closed its socket already is nobody.
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	remote, local := conn.LocalAddr().String(), conn.RemoteAddr().String()
	if !devstack.OwnUser(remote, local) {
		t.Error("an open connection of the own user is another's")
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if devstack.OwnUser(remote, local) {
		t.Error("a closed connection has an owner")
	}
}
