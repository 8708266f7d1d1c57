package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// webHost is an external server, which runs on this machine under a name.
type webHost struct {
	name string // includes the port
	ca   string // file with its authority
	seen chan *http.Request

	mu     sync.Mutex
	served []time.Time // when calls arrived
}

// forget forgets the calls so far.
func (h *webHost) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.served = nil
}

// servedUntil counts the calls that arrived until a time, in microseconds.
func (h *webHost) servedUntil(until time.Time) (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.served {
		if !at.Truncate(time.Microsecond).After(until) {
			n++
		}
	}
	return n
}

func newWebHost(t *testing.T) *webHost {
	t.Helper()
	h, listener := newSecuredHost(t)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.served = append(h.served, time.Now())
		h.mu.Unlock()
		h.seen <- r
		_, _ = io.WriteString(w, "served")
	})}
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(func() { _ = srv.Close() })
	return h
}

// newSecuredHost returns a host that does not serve yet, and its listener.
func newSecuredHost(t *testing.T) (*webHost, net.Listener) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	h := &webHost{ca: filepath.Join(t.TempDir(), "host.pem"), seen: make(chan *http.Request, 16)}
	if err := os.WriteFile(h.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	h.name = fmt.Sprintf("localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	return h, tls.NewListener(listener, cfg)
}

// freePort returns a port for the database. The rule must name the port before the stack chooses one.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// brief returns the catalogue's files for the host, and for the database for which the stack's Vault creates logins.
func (h *webHost) brief(database int) map[string]string {
	return map[string]string{"host.cedar": `@id("host") permit (principal, action in [Action::"brief.host.read", Action::"brief.orders.read"], resource);`, "host.yaml": fmt.Sprintf(`scopes:
  - name: brief.host.read
    title: Read from a host
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: brief:{repo}
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://brief.acme.example}
    egress: [{hosts: ['%s'], methods: [GET], paths: ['/repos/{repo}', /fixed]}]
  - name: brief.orders.read
    title: Read the orders
    authority: read
    resource: database:orders
    ttl: {default: 1m, max: 5m}
    credential: {kind: database, mount: database, role: reporting}
    egress: [{hosts: ['localhost:%d'], databases: [target]}]
`, h.name, database)}
}

// TestEgress checks that a program reaches what its sandbox may call, and that it holds no credentials.
func TestEgress(t *testing.T) {
	t.Parallel()
	host := newWebHost(t)
	port := freePort(t)
	more := host.brief(port)
	more["../postgres.port"] = strconv.Itoa(port)
	s := startBriefWith(t, more)
	reach := []string{"--host-ca", host.ca, "--allow-private", "127.0.0.1/32"}
	t.Run("exec", func(t *testing.T) { s.execEgress(t, host, reach) })
	t.Run("serve", func(t *testing.T) { s.egressServe(t, host, reach) })
	t.Run("stopped", func(t *testing.T) { s.egressStopped(t, host, reach) })
	t.Run("killed", func(t *testing.T) { s.egressKilled(t, host, reach) })
	t.Run("mistakes", s.egressMistakes)
	s.stop(t, syscall.SIGTERM)
}

// bearer returns the token that the host received.
func (h *webHost) bearer(t *testing.T) string {
	t.Helper()
	select {
	case r := <-h.seen:
		return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	case <-time.After(patience):
		t.Fatalf("waited %s for a call to the host", patience)
		return ""
	}
}

const curl = `curl -sS --noproxy '' -w '\n%{http_code}\n' `

func (s *session) execEgress(t *testing.T, host *webHost, reach []string) {
	got := s.exec(t, curl+"https://"+host.name+"/repos/acme/api; env; cat $BREVET_DIR/*; "+curl+"https://"+host.name+"/repos/acme/api/more; "+curl+"http://"+host.name+"/repos/acme/api",
		append([]string{"--egress", "--task", "t-egress"}, reach...)...)
	got.want(t, 0)
	token := host.bearer(t)
	if !strings.HasPrefix(got.out, "served\n200\n") || strings.Contains(got.out, token) || token == "" || strings.Contains(got.out, "SPIFFE_ENDPOINT_SOCKET") {
		t.Errorf("got %q", got.out)
	}
	if !strings.Contains(got.out, `"code":"egress_no_rule"`) || !strings.Contains(got.out, `"code":"egress_plaintext"`) {
		t.Errorf("got %q, want two refusals that say why", got.out)
	}
	if record := s.whose(t, token); record["status"] != "released" || record["task"] != "t-egress" || record["resource"] != "brief:acme/api" {
		t.Errorf("got %v, want it released", record)
	}
	calls := s.calls(t, "t-egress")
	wantCalls := map[string]int64{"/repos/{repo}": 1, "egress_no_rule": 1, "egress_plaintext": 1}
	if got := recordedCalls(calls); !calls.Complete || !maps.Equal(got, wantCalls) {
		t.Errorf("got %v, %v calls, want %v", calls.Complete, got, wantCalls)
	}
	usage := brevet(t, s.as("auditor"), "audit", "usage")
	usage.want(t, 0, "SCOPE", "self-reported by the holders of the credentials")
	if !regexp.MustCompile(`(?m)^brief\.host\.read +1 +1 +0 +1 +1 +1 +20`).MatchString(usage.out) {
		t.Errorf("got %s, want one credential that was used once", usage.out)
	}
	s.exec(t, "psql -XAtc 'SELECT count(*) > 0 FROM orders' -d target -U anybody", append([]string{"--egress"}, reach...)...).want(t, 0, "t\n")
	told := object(t, brevet(t, s.as("auditor"), "audit", "usage", "-o", "json").out)
	if scopes, _ := told["scopes"].([]any); len(scopes) != 2 {
		t.Errorf("got %v, want two scopes", told)
	}
	// A parameter that no path supplies comes from the flags after the scope, and no other scope is used.
	flags := append([]string{"--egress", "--scope", "brief.host.read", "--param", "repo=acme/web"}, reach...)
	s.exec(t, curl+"https://"+host.name+"/fixed", flags...).want(t, 0, "served\n200")
	if record := s.whose(t, host.bearer(t)); record["resource"] != "brief:acme/web" || !strings.HasPrefix(record["task"].(string), "exec-") {
		t.Errorf("got %v", record)
	}
	s.exec(t, curl+"https://"+host.name+"/repos/acme/api", append([]string{"--egress", "--scope", "brief.token.read"}, reach...)...).want(t, 0, "egress_no_rule\"", "403")
	// A program may also have a credential.
	s.exec(t, `test -s "$BREVET_DIR/token" && `+curl+"https://"+host.name+"/repos/acme/api",
		append(with(repo, "--file", "token", "--egress", "--scope", "brief.host.read"), reach...)...).want(t, 0, "served\n200")
	host.bearer(t)
	// Only addresses that the flags allow are called.
	s.exec(t, curl+"https://"+host.name+"/repos/acme/api", "--egress", "--host-ca", host.ca).want(t, 0, "egress_address", "403")
}

func (s *session) egressServe(t *testing.T, host *webHost, reach []string) {
	dir, socket := filepath.Join(t.TempDir(), "gateway"), filepath.Join(t.TempDir(), "s")
	proxy := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := launch(t, s.env, append([]string{"egress", "--task", "t-serve", "--listen", "127.0.0.1:0", "--socket", socket, "--dir", dir, "--listen-mtls", proxy}, reach...)...)
	p.waitFor(t, p.err, "serving")
	env := brevet(t, s.env, "egress", "env", "--dir", dir)
	env.want(t, 0, "export HTTPS_PROXY=", "export NODE_EXTRA_CA_CERTS="+filepath.Join(dir, "ca.pem"))
	if object := object(t, brevet(t, s.env, "egress", "env", "--dir", dir, "-o", "json").out); object["SSL_CERT_FILE"] != filepath.Join(dir, "ca.pem") {
		t.Errorf("got %v", object)
	}
	shell(t, env.out+"psql -XAtc 'SELECT count(*) > 0 FROM orders' -d target -U anybody").want(t, 0, "t\n")
	shell(t, env.out+curl+"https://"+host.name+"/repos/acme/api").want(t, 0, "served\n200")
	token := host.bearer(t)
	shell(t, curl+"--unix-socket "+socket+" http://egress/"+host.name+"/repos/acme/api").want(t, 0, "served\n200")
	if again := host.bearer(t); again != token {
		t.Error("another token was asked for")
	}
	// Over mutual TLS, only sandboxes whose identity the gateway holds are served.
	through := curl + "--proxy-insecure --proxy https://" + proxy + " --cacert " + filepath.Join(dir, "ca.pem")
	shell(t, through+svidOf(t, s.env)+" https://"+host.name+"/repos/acme/api").want(t, 0, "served\n200")
	if again := host.bearer(t); again == token {
		t.Error("two listeners share a token")
	}
	shell(t, through+svidOf(t, s.as("support"))+" https://"+host.name+"/repos/acme/api").want(t, 56, "response 403")
	brevet(t, s.env, "task", "end", "t-serve").want(t, 0)
	within(t, patience, "the task has ended", func() bool {
		return strings.Contains(shell(t, env.out+curl+"https://"+host.name+"/repos/acme/api").out, "The task has ended")
	})
	p.signal(t, syscall.SIGTERM)
	got := p.finish(t)
	got.want(t, 0, "scope=brief.host.read", "path=/repos/{repo}", "status=200", "status=403")
	dead := brevet(t, s.env, "egress", "env", "--dir", dir)
	dead.want(t, 1, "no gateway responds", "brevet egress --task TASK --dir "+dir)
	if dead.out != "" {
		t.Errorf("got %q for a gateway that has stopped, want no variables", dead.out)
	}
	if strings.Contains(got.err, token) {
		t.Error("the token is in the log")
	}
}

// egressStopped checks that a gateway releases its credentials and reports their last uses, whichever signal stops it.
func (s *session) egressStopped(t *testing.T, host *webHost, reach []string) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			task, dir, stale := fmt.Sprintf("t-stop-%d", sig), t.TempDir(), filepath.Join(t.TempDir(), "s")
			leaveSocket(t, stale)
			p := launch(t, s.env, append([]string{"egress", "--task", task, "--listen", "127.0.0.1:0", "--socket", stale, "--dir", dir}, reach...)...)
			p.waitFor(t, p.err, "serving")
			before := s.reportedCalls(t)
			env := brevet(t, s.env, "egress", "env", "--dir", dir)
			for len(host.seen) > 0 { // calls from other tests
				<-host.seen
			}
			shell(t, env.out+"psql -XAtc 'SELECT count(*) > 0 FROM orders' -d target -U anybody").want(t, 0, "t\n")
			shell(t, env.out+curl+"https://"+host.name+"/repos/acme/api").want(t, 0, "served\n200")
			token := host.bearer(t)
			p.signal(t, sig)
			p.finish(t).want(t, 0)
			if record := s.whose(t, token); record["status"] != "released" {
				t.Errorf("the token is %v, want it released", record["status"])
			}
			records := s.records(t, "--task", task)
			if len(records) != 2 {
				t.Fatalf("got %d records, want a token and a database login", len(records))
			}
			for _, record := range records {
				if record["status"] != "released" {
					t.Errorf("%v is %v, want it released", record["scope"], record["status"])
				}
			}
			for scope, calls := range s.reportedCalls(t) {
				if calls != before[scope]+1 {
					t.Errorf("%s: %v calls are reported, want one more than %v", scope, calls, before[scope])
				}
			}
		})
	}
}

// TestEgressEnvNeedsARunningGateway checks that no variables are printed without a working gateway. The message says
// what happened to the gateway, and what to do.
func TestEgressEnvNeedsARunningGateway(t *testing.T) {
	t.Parallel()
	server := func(handler http.HandlerFunc) string {
		s := httptest.NewServer(handler)
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	unused := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	for _, tc := range []struct {
		name, address string
		want          []string
	}{
		{"no gateway ran here", "", []string{"no gateway was started with the folder ", "--dir"}},
		{"the gateway has stopped", unused, []string{unused + ": no gateway responds: connect: connection refused"}},
		{"another gateway has the port", server(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="brevet egress"`)
			w.WriteHeader(http.StatusUnauthorized)
		}), []string{"another server responds", "--listen"}},
		{"another server has the port", server(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "served")
		}), []string{"another server responds", "--listen"}},
		{"a server that sends elsewhere", server(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+unused+"/elsewhere", http.StatusFound)
		}), []string{"another server responds", "--listen"}},
		{"the address is none", "127.0.0.1:3128\nx", []string{"contains no address"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.address != "" {
				gatewayFiles(t, dir, tc.address)
			}
			for _, output := range []string{"text", "json"} {
				got := inProcess(t, "egress", "env", "--dir", dir, "-o", output)
				got.want(t, 1, append(tc.want, "brevet egress --task TASK --dir "+dir)...)
				if got.out != "" {
					t.Errorf("got %q, want no variables", got.out)
				}
			}
		})
	}
}

// reportedCalls returns the number of calls that gateways have reported, by scope.
func (s *session) reportedCalls(t *testing.T) map[string]float64 {
	t.Helper()
	calls := map[string]float64{"brief.host.read": 0, "brief.orders.read": 0}
	scopes, _ := object(t, brevet(t, s.as("auditor"), "audit", "usage", "-o", "json").out)["scopes"].([]any)
	for _, one := range scopes {
		usage, _ := one.(map[string]any)
		name, _ := usage["scope"].(string)
		if _, ours := calls[name]; ours {
			reported, _ := usage["reported"].(map[string]any)
			calls[name], _ = reported["calls"].(float64)
		}
	}
	return calls
}

// gatewayFiles writes the files of a gateway to dir, which a gateway that ran at address would have left there.
func gatewayFiles(t *testing.T, dir, address string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"address": address, "password": "of-this-gateway", "ca.pem": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEgressEnvIgnoresTheWorkingDirectory checks that a cloned repository cannot become the proxy and the CA of a shell.
func TestEgressEnvIgnoresTheWorkingDirectory(t *testing.T) {
	home, repository := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	t.Chdir(repository)
	unused := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	for _, dir := range []string{".brevet-egress", "brevet/egress", "."} {
		gatewayFiles(t, filepath.Join(repository, dir), unused)
	}
	got := inProcess(t, "egress", "env")
	got.want(t, 1, "no gateway was started with the folder "+home)
	if strings.Contains(got.err, unused) {
		t.Errorf("got %s: the command read a folder of the working directory", got.err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	gatewayFiles(t, filepath.Join(cache, "brevet", "egress"), unused)
	inProcess(t, "egress", "env").want(t, 1, unused+": no gateway responds")
}

// TestEgressEnvRefusesFoldersThatOthersCanWrite checks that no variables come from files that somebody else may have written.
func TestEgressEnvRefusesFoldersThatOthersCanWrite(t *testing.T) {
	t.Parallel()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	gatewayFiles(t, elsewhere, "127.0.0.1:3128")
	link := func(name string) func(string) error {
		return func(dir string) error {
			at := filepath.Join(dir, name)
			return errors.Join(os.RemoveAll(at), os.Symlink(filepath.Join(elsewhere, name), at))
		}
	}
	mode := func(name string, mode os.FileMode) func(string) error {
		return func(dir string) error { return os.Chmod(filepath.Join(dir, name), mode) }
	}
	cases := map[string]func(dir string) error{
		"the folder is writable by a group":     mode("", 0o770),
		"the folder is writable by all":         mode("", 0o777),
		"a folder above is writable by a group": func(dir string) error { return shareAbove(dir, 0o775) },
		"a folder above is writable by all":     func(dir string) error { return shareAbove(dir, 0o777) },
		"the folder is a link":                  link(""),
		"the address is writable by a group":    mode("address", 0o620),
		"the password is writable by all":       mode("password", 0o602),
		"the certificate is writable by all":    mode("ca.pem", 0o666),
		"the address is a link":                 link("address"),
		"the password is a link":                link("password"),
		"the certificate is a link":             link("ca.pem"),
		"the socket of the databases is a link": link(".s.PGSQL.5432"),
	}
	if os.Getuid() == 0 { // only root can give files away
		const nobody = 65534
		cases["the folder is another user's"] = func(dir string) error { return os.Chown(dir, nobody, nobody) }
		cases["the certificate is another user's"] = func(dir string) error { return os.Chown(filepath.Join(dir, "ca.pem"), nobody, nobody) }
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "gateway")
			gatewayFiles(t, dir, "127.0.0.1:3128")
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			got := inProcess(t, "egress", "env", "--dir", dir)
			got.want(t, 1, "is a link, or belongs to another user, or others can write to it")
			if got.out != "" {
				t.Errorf("got %q, want no variables", got.out)
			}
		})
	}
}

// shareAbove lets others write to the folder above, and enter the one above that.
func shareAbove(dir string, mode os.FileMode) error {
	above := filepath.Dir(dir)
	return errors.Join(os.Chmod(above, mode), os.Chmod(filepath.Dir(above), 0o755))
}

// leaveSocket leaves a socket behind, as a killed gateway does.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

// svidOf returns the flags with which curl authenticates to a proxy as the workload of env.
func svidOf(t *testing.T, env []string) string {
	t.Helper()
	for _, pair := range slices.Backward(env) { // the last one wins
		socket, found := strings.CutPrefix(pair, "SPIFFE_ENDPOINT_SOCKET=")
		if !found {
			continue
		}
		svid, err := workloadapi.FetchX509SVID(t.Context(), workloadapi.WithAddr(socket))
		if err != nil {
			t.Fatal(err)
		}
		chain, key, err := svid.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for name, text := range map[string][]byte{"svid.pem": chain, "key.pem": key} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return " --proxy-cert " + dir + "/svid.pem --proxy-key " + dir + "/key.pem"
	}
	t.Fatal("there is no Workload API")
	return ""
}

// shell runs a script as an unrelated program would.
func shell(t *testing.T, script string) result {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return result{code: exit.ExitCode(), out: string(out)}
	}
	return result{out: string(out)}
}

func (s *session) egressMistakes(t *testing.T) {
	for want, flags := range map[string][]string{
		"is not a loopback address":            {"egress", "--task", "t", "--listen", "0.0.0.0:3128"},
		"allow_private_cidrs":                  {"egress", "--task", "t", "--allow-private", "10.0.0.1"},
		"must follow its --scope":              {"egress", "--task", "t", "--param", "a=b", "--scope", "a.b"},
		"set --scope or --egress":              {"exec", "--", "true"},
		"requires X.509-SVIDs":                 {"egress", "--task", "t", "--jwt", "--listen", "127.0.0.1:0", "--listen-mtls", "127.0.0.1:0", "--dir", t.TempDir()},
		"is neither name=text nor name:=JSON":  {"egress", "--task", "t", "--scope", "a.b", "--param", "a"},
		"--host-ca and --allow-private: ca_fi": {"egress", "--task", "t", "--host-ca", filepath.Join(t.TempDir(), "none")},
	} {
		brevet(t, s.env, flags...).want(t, 1, want)
	}
}
