package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/execenv"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/crypto/ssh"
)

// serveTLS serves on localhost. It returns the address, and a file with the authority that signed its certificate.
func serveTLS(t *testing.T, handler http.Handler) (address, caFile string) {
	t.Helper()
	ca, caKey := testkit.SelfSigned(t)
	leaf, key := testkit.Signed(t, ca, caKey)
	srv := httptest.NewUnstartedServer(handler)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "https://localhost:" + port, caFile
}

// config returns the configuration of the stack's broker.
func (s *session) config(t *testing.T) app.Config {
	t.Helper()
	cfg, err := app.Load(filepath.Join(s.dir, "brevet.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// execPsql checks that each connection of psql uses the latest user and password.
func (s *session) execPsql(t *testing.T) {
	program(t, "psql")
	text, err := secret.ReadFile(filepath.Join(s.dir, "database-url"))
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	got := s.exec(t, `
		ask() { psql -XAt -h 127.0.0.1 -p `+address.Query().Get("port")+` -d target -c "$1"; }
		ask 'SELECT count(*) FROM orders' || exit 1
		first=$(ask 'SELECT current_user') || exit 1
		while now=$(ask 'SELECT current_user') && [ "$now" = "$first" ]; do sleep 0.2; done
		echo "$first"; echo "$now"`, "--scope", "brief.login.read", "--for", "psql")
	got.want(t, 0)
	said := lines(got.out)
	if len(said) != 3 || said[0] != "3" || said[1] == said[2] || !strings.HasPrefix(said[2], "v-") {
		t.Errorf("got %q, want three orders and two users", said)
	}
}

// execCurl checks that curl sends the token without having it among its arguments, and never over plain HTTP.
func (s *session) execCurl(t *testing.T) {
	seen := make(callers, 9)
	address, ca := serveTLS(t, seen)
	out := s.exec(t, `curl -sS --cacert `+ca+` `+address+`/issues`, with(repo, "--for", "curl")...)
	out.want(t, 0)
	if record := s.whose(t, seen.bearer(t)); out.out != "ok" || record["scope"] != "github.issues.read" {
		t.Errorf("got %q and %v", out.out, record)
	}
	if len(seen) != 0 {
		t.Errorf("got %d more calls", len(seen))
	}
	plain := httptest.NewServer(seen)
	t.Cleanup(plain.Close)
	s.exec(t, `curl -sS `+plain.URL, with(repo, "--for", "curl")...).want(t, 1, "not supported")
	if len(seen) != 0 {
		t.Errorf("got %q over plain HTTP", <-seen)
	}
}

// callers are the credentials of all calls.
type callers chan string

func (c callers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c <- r.Header.Get("Authorization")
	_, _ = io.WriteString(w, "ok")
}

// bearer returns the token of the first call.
func (c callers) bearer(t *testing.T) string {
	t.Helper()
	if len(c) == 0 {
		t.Fatal("nobody has called")
	}
	token, ok := strings.CutPrefix(<-c, "Bearer ")
	if !ok {
		t.Error("got no bearer token")
	}
	return token
}

// cluster writes a configuration of kubectl without a user, for a server that records its calls.
func cluster(t *testing.T, seen callers) (kubeconfig string) {
	t.Helper()
	address, ca := serveTLS(t, seen)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
contexts: [{name: c, context: {cluster: c, user: brevet}}]
current-context: c
`, address, ca)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func (s *session) execKubectl(t *testing.T) {
	program(t, "kubectl")
	seen := make(callers, 9)
	env := append(s.env, "KUBECONFIG="+cluster(t, seen))
	startExec(t, env, "kubectl get --raw /healthz", with(repo, "--for", "kubectl")...).finish(t).want(t, 0, "ok")
	if record := s.whose(t, seen.bearer(t)); record["status"] != "released" {
		t.Errorf("got %v, want a token that is released by now", record)
	}
}

// kubeCredential checks that the plugin gives kubectl a token in the requested version, or a certificate with its key.
func (s *session) kubeCredential(t *testing.T) {
	program(t, "kubectl")
	seen := make(callers, 9)
	path := cluster(t, seen)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprintf("users: [{name: brevet, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: %q, args: [%s]}}}]\n",
		binary, "kube-credential, --scope, github.issues.read, --param, repo=acme/api, --task, t-kube")
	if err := os.WriteFile(path, append(text, user...), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := exec.CommandContext(t.Context(), "kubectl", "get", "--raw", "/healthz")
	kubectl.Env = append(append(os.Environ(), s.env...), "KUBECONFIG="+path)
	if out, err := kubectl.CombinedOutput(); err != nil || string(out) != "ok" {
		t.Errorf("got %q, %v", out, err)
	}
	if record := s.whose(t, seen.bearer(t)); record["task"] != "t-kube" {
		t.Errorf("got %v", record)
	}

	plugin := func(env string, flags ...string) result {
		return brevet(t, append(s.env, "KUBERNETES_EXEC_INFO="+env), append([]string{"kube-credential", "--task", "t-kube"}, flags...)...)
	}
	certificate := plugin(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}`, "--scope", "brief.client.read")
	certificate.want(t, 0)
	var said execenv.ExecCredential
	if err := json.Unmarshal([]byte(certificate.out), &said); err != nil || said.APIVersion != execenv.KubeVersions[0] || said.Kind != "ExecCredential" {
		t.Fatalf("got %q, %v", certificate.out, err)
	}
	if _, err := tls.X509KeyPair([]byte(said.Status.ClientCertificateData), []byte(said.Status.ClientKeyData)); err != nil || said.Status.Token != "" {
		t.Errorf("got %v, want a certificate with its key and nothing else", err)
	}
	plugin("nonsense", repo...).want(t, 1, "KUBERNETES_EXEC_INFO")
	plugin("", "--scope", "reports.orders.read").want(t, 1, "use a scope that issues a JWT")
	if got := plugin("", "--scope", "github.repo.delete", "--param", "repo=acme/api", "-o", "json"); got.code != exitDenied || got.out != "" {
		t.Errorf("got %+v, want nothing for kubectl to read", got)
	}
}

var certificateLine = regexp.MustCompile(`(?m)^ssh-ed25519-cert-v01@openssh\.com `)

// execSSH checks that ssh gets a certificate from an agent, for a key that is in no file, and that a host accepts it.
func (s *session) execSSH(t *testing.T) {
	host := sshHost(t, s.config(t).Vault.Address)
	got := s.exec(t, `
		ssh-add -L | tee "$BREVET_DIR/cert.pub"
		ssh-keygen -L -f "$BREVET_DIR/cert.pub"
		ls -A "$BREVET_DIR" | tr '\n' ' '; echo
		ssh -F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -p `+host+` deploy@127.0.0.1 uptime`,
		"--scope", "brief.shell.open", "--param", "user=deploy", "--for", "ssh")
	got.want(t, 0, "user certificate", "deploy", "agent.sock cert.pub \n", "deploy ran uptime")
	if !certificateLine.MatchString(got.out) {
		t.Errorf("got %q, want a certificate", got.out)
	}
}

// sshHost starts a host that trusts Vault's certificates and prints the commands that it receives. It returns the port.
func sshHost(t *testing.T, vault string) (port string) {
	t.Helper()
	resp, err := http.Get(vault + "/v1/ssh/public_key")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	authority, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	checker := &ssh.CertChecker{IsUserAuthority: func(key ssh.PublicKey) bool { return bytes.Equal(key.Marshal(), authority.Marshal()) }}
	cfg := &ssh.ServerConfig{PublicKeyCallback: checker.Authenticate}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg.AddHostKey(signer)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			go func() {
				defer func() { _ = conn.Close() }()
				serveSSH(conn, cfg)
			}()
		}
	}()
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// serveSSH accepts one login and one command, which it only prints.
func serveSSH(conn net.Conn, cfg *ssh.ServerConfig) {
	login, channels, requests, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	defer func() { _ = login.Close() }()
	go ssh.DiscardRequests(requests)
	for wanted := range channels {
		channel, requests, err := wanted.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			_ = r.Reply(true, nil)
			if r.Type != "exec" {
				continue
			}
			var command struct{ Text string }
			_ = ssh.Unmarshal(r.Payload, &command)
			_, _ = fmt.Fprintf(channel, "%s ran %s\n", login.User(), command.Text)
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{}))
			_ = channel.Close()
		}
	}
}
