package rotation_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/examples"
	"github.com/brevet-dev/brevet/internal/devstack"
)

// patience is how long anything but the load itself may take.
const patience = 2 * time.Minute

// stack is a `brevet dev` whose SVIDs and authorities rotate all the time.
type stack struct {
	binary, state string
	env           map[string]string // of a sandbox
}

func startStack(t *testing.T, h *webHost) *stack {
	t.Helper()
	s := &stack{binary: filepath.Join(t.TempDir(), "brevet"), state: filepath.Join(t.TempDir(), "state")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", s.binary, "../../cmd/brevet").CombinedOutput(); err != nil {
		t.Fatalf("building brevet: %v\n%s", err, out)
	}
	s.seed(t, h)
	dev := s.start(t, "dev", "--state", s.state, "--svid-ttl", svidTTL.String(), "--authority-ttl", authorityTTL.String())
	t.Cleanup(func() { dev.stop(t) })
	s.await(t, "brevet dev", func() bool {
		return exec.CommandContext(t.Context(), s.binary, "dev", "env", "--state", s.state).Run() == nil
	})
	s.env = s.variables(t, "")
	return s
}

// seed writes a catalogue whose scopes open the host, and the database that Vault creates logins for.
func (s *stack) seed(t *testing.T, h *webHost) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	if _, err := (devstack.Home{Dir: filepath.Join(home, "brevet")}).Claim(s.state); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.state, examples.Catalog); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	for name, text := range map[string]string{
		"postgres.port":          strconv.Itoa(port),
		"catalog/rotation.cedar": `@id("rotation") permit (principal, action in [Action::"rotation.host.read", Action::"rotation.orders.read"], resource);`,
		"catalog/rotation.yaml": fmt.Sprintf(`scopes:
  - name: rotation.host.read
    title: Read from a host
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: rotation:{repo}
    ttl: {default: 8s, max: 1m}
    credential: {kind: jwt, audience: https://rotation.acme.example}
    egress: [{hosts: ['%s'], methods: [GET], paths: ['/repos/{repo}']}]
  - name: rotation.orders.read
    title: Read the orders
    authority: read
    resource: database:orders
    ttl: {default: 40s, max: 1m}
    credential: {kind: database, mount: database, role: reporting}
    egress: [{hosts: ['localhost:%d'], databases: [target]}]
`, h.name, port),
	} {
		if err := os.WriteFile(filepath.Join(s.state, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// variables returns what `brevet dev env` exports for a workload; "" stands for a sandbox.
func (s *stack) variables(t *testing.T, workload string) map[string]string {
	t.Helper()
	args := []string{"dev", "env", "--state", s.state, "-o", "json"}
	if workload != "" {
		args = append(args, workload)
	}
	out, err := exec.CommandContext(t.Context(), s.binary, args...).Output()
	if err != nil {
		t.Fatalf("brevet dev env: %v", err)
	}
	found := map[string]string{}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("brevet dev env printed %s: %v", out, err)
	}
	return found
}

func (s *stack) environ() []string { return environ(s.env) }

func environ(variables map[string]string) []string {
	all := os.Environ()
	for name := range maps.Keys(variables) {
		all = append(all, name+"="+variables[name])
	}
	return all
}

// run runs brevet as the sandbox until it exits, and fails the test on an error.
func (s *stack) run(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *load+patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Env = append(s.environ(), "ERRORS="+filepath.Join(t.TempDir(), "errors"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("brevet %s: %v\n%s", args[0], err, out)
	}
	t.Logf("%s", out)
}

// nothingLeft fails the test if a credential of a task stays alive. A credential that a newer one replaced may live on for its
// few seconds.
func (s *stack) nothingLeft(t *testing.T, task string) {
	t.Helper()
	auditor := environ(s.variables(t, "auditor"))
	s.await(t, "the end of every credential of "+task, func() bool {
		cmd := exec.CommandContext(t.Context(), s.binary, "audit", "list", "--task", task, "--status", "issued", "--limit", "100", "-o", "json")
		cmd.Env = auditor
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("brevet audit list: %v\n%s", err, &said)
		}
		left := strings.TrimSpace(string(out))
		return left == "" || left == "[]"
	})
}

// process is a brevet that runs until it is signalled to stop.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error

	mu  sync.Mutex
	out bytes.Buffer
}

// Write implements io.Writer.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(text)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (s *stack) start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(s.binary, args...), ended: make(chan struct{})}
	p.cmd.Env = s.environ()
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		if p.err != nil {
			t.Errorf("%s ended with %v:\n%s", p.cmd.Args[1], p.err, p.said())
		}
	case <-time.After(patience):
		t.Errorf("%s does not end:\n%s", p.cmd.Args[1], p.said())
	}
}

func (s *stack) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// selfSigned returns the TLS configuration of a host named localhost, and its certificate.
func selfSigned(t *testing.T) (*tls.Config, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rotation"}, DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
