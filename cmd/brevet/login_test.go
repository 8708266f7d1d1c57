package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/login"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// networkVariables are those with which a login is bound.
var networkVariables = []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// home gives the test a separate place for logins, and returns the path of the login. No variable of the developer chooses a network.
func home(t *testing.T) string {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, name := range networkVariables {
		t.Setenv(name, "")
	}
	return stored(t).Path
}

// stored returns the login of the test.
func stored(t *testing.T) *login.Store {
	t.Helper()
	store, err := loginStore()
	if err != nil {
		t.Fatal(err)
	}
	store.Server = login.Server{URL: aServer.Server}
	return store
}

// logIn runs brevet login, with answer in the role of the person at the browser. It returns the last document that is
// printed.
func logIn(t *testing.T, cmd *LoginCmd, answer func(verificationURI string)) (map[string]any, error) {
	t.Helper()
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Run(t.Context(), &console{out: writer, err: io.Discard, json: true})
		_ = writer.Close()
		ended <- err
	}()
	var device, done map[string]any
	lines := json.NewDecoder(reader)
	if err := lines.Decode(&device); err != nil {
		t.Fatalf("reading where to log in: %v; %v", err, <-ended)
	}
	for _, name := range []string{"server", "verification_uri", "user_code", "expires_at"} {
		if device[name] == "" || device[name] == nil {
			t.Errorf("%s is missing in %v", name, device)
		}
	}
	answer(fmt.Sprint(device["verification_uri_complete"]))
	if err := lines.Decode(&done); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("reading who is logged in: %v", err)
	}
	return done, <-ended
}

// TestLoginAtCertifiedProvider takes a login at a certified provider through the device flow, renewal, use and logout.
func TestLoginAtCertifiedProvider(t *testing.T) {
	provider := testkit.Provider(t) // before home moves its cache
	path := home(t)
	broker, flags := tokenEater(t)
	who, err := logIn(t, &LoginCmd{PersonFlags: flags, Issuer: provider.Issuer, ClientID: provider.BriefClientID}, func(uri string) { provider.Approve(t, uri, "alice") })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(who["id"], who["name"], who["groups"], who["renewable"]), provider.Issuer+"#alice Alice Archer [engineers oncall] true"; !sameWords(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	before, err := stored(t).Read()
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v", before, before, before); strings.Contains(text, before.IDToken.Reveal()) {
		t.Errorf("a login prints its token: %s", text)
	}
	verifier, err := people.New(people.Config{Issuer: provider.Issuer, ClientID: provider.BriefClientID, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	// The ID tokens of this client live for twenty seconds, so each use renews them.
	refreshed := map[string]bool{before.RefreshToken.Reveal(): true}
	for range 2 {
		c, done, err := flags.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Issuance(t.Context(), "x"); !errors.Is(err, client.ErrAnswer) {
			t.Errorf("got %v, want that a teapot is not understood", err)
		}
		done()
		person, err := verifier.Identify(t.Context(), <-broker)
		if err != nil || person.Subject() != "alice" {
			t.Errorf("got %q and %v, want alice", person.Subject(), err)
		}
		l, err := stored(t).Read()
		if err != nil || refreshed[l.RefreshToken.Reveal()] {
			t.Errorf("got the same refresh token or %v after a use, want a renewal", err)
		}
		refreshed[l.RefreshToken.Reveal()] = true
	}
	after, err := stored(t).Read()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v and %v, want 0600", info.Mode(), err)
	}
	if err := new(LogoutCmd).Run(t.Context(), &console{out: io.Discard, err: io.Discard}); err != nil {
		t.Fatal(err)
	}
	if exists(path) {
		t.Error("the login is there after logout")
	}
	if _, err := stored(t).Renew(t.Context(), after); !errors.Is(err, login.ErrEnded) {
		t.Errorf("got %v for a refresh token that was revoked, want %v", err, login.ErrEnded)
	}
	if _, _, err := flags.open(t.Context()); !errors.Is(err, login.ErrEnded) {
		t.Errorf("got %v after logout, want %v", err, login.ErrEnded)
	}
}

// sameWords compares texts without spaces, because Sprint adds them only between some operands.
func sameWords(a, b string) bool {
	return strings.ReplaceAll(a, " ", "") == strings.ReplaceAll(b, " ", "")
}

// tokenEater starts a server that passes the bearer tokens it receives to the test, and returns the flags to call it.
func tokenEater(t *testing.T) (<-chan string, PersonFlags) {
	t.Helper()
	got := make(chan string, 10)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(srv.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return got, PersonFlags{Server: srv.URL, CAFile: ca}
}

func devProvider(t *testing.T) *devstack.Provider {
	t.Helper()
	provider, err := devstack.NewProvider(devstack.ProviderConfig{
		Address: "127.0.0.1:0", ClientID: "brevet",
		People: []devstack.DevPerson{{Username: "alice", Name: "Alice\x1b[2J", Groups: []string{"oncall"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	return provider
}

// press submits the form of devstack's login page.
func press(t *testing.T, uri string, button url.Values) {
	t.Helper()
	page, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	button.Set("user_code", page.Query().Get("user_code"))
	page.RawQuery = ""
	resp, err := http.PostForm(page.String(), button)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %d from the page, want 200", resp.StatusCode)
	}
}

// aServer is the server of logins that are not used.
var aServer = PersonFlags{Server: "https://brevet.acme.test"}

func TestLoginAtDevProvider(t *testing.T) {
	path, provider := home(t), devProvider(t)
	broker, flags := tokenEater(t)
	cmd := &LoginCmd{PersonFlags: flags, Issuer: provider.Issuer(), ClientID: "brevet"}
	if _, err := logIn(t, cmd, func(uri string) { press(t, uri, url.Values{"deny": {"yes"}}) }); err == nil || !strings.Contains(err.Error(), "declined") {
		t.Errorf("got %v, want that the login was declined", err)
	}
	if exists(path) {
		t.Error("a login that was declined left a file")
	}
	if _, err := logIn(t, cmd, func(uri string) { press(t, uri, url.Values{"username": {"alice"}}) }); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	con := &console{out: &out, err: io.Discard}
	if err := new(WhoamiCmd).Run(t.Context(), con); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{provider.Issuer() + "#alice", "Alice [2J", "oncall", "server   " + flags.Server, "until"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
	if strings.ContainsAny(out.String(), "\x1b") {
		t.Error("a name moves the cursor")
	}
	c, done, err := flags.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	_, _ = c.Issuance(t.Context(), "x")
	if l, err := stored(t).Read(); err != nil || l.IDToken.Reveal() != <-broker {
		t.Errorf("got another token than the one that is kept, or %v", err)
	}
	for _, want := range []string{"logged out", "you were not logged in"} {
		out.Reset()
		if err := new(LogoutCmd).Run(t.Context(), con); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("got %q and %v, want %q", out.String(), err, want)
		}
	}
}

// TestLoginPrintsAddressCodeAndDeadline checks what a person reads without a terminal: an address, a code, and the deadline.
func TestLoginPrintsAddressCodeAndDeadline(t *testing.T) {
	home(t)
	provider := devProvider(t)
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		cmd := &LoginCmd{PersonFlags: aServer, Issuer: provider.Issuer(), ClientID: "brevet"}
		ended <- cmd.Run(ctx, &console{out: io.Discard, err: writer})
		_ = writer.Close()
	}()
	var text strings.Builder
	lines := bufio.NewScanner(reader)
	for !strings.Contains(text.String(), "waiting for you until") && lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a login that was interrupted", err)
	}
	if !strings.Contains(text.String(), "This login is for the server "+aServer.Server+".") {
		t.Errorf("got %q, want the server named", text.String())
	}
	if !strings.Contains(text.String(), "  "+provider.Issuer()+"/device?user_code=") || strings.Contains(text.String(), "\x1b") {
		t.Errorf("got %q", text.String())
	}
}

func TestLoginRefusesProviders(t *testing.T) {
	home(t)
	var issuer, document string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.ReplaceAll(document, "%ISS", issuer))
	}))
	t.Cleanup(srv.Close)
	issuer = srv.URL
	for name, tc := range map[string]struct{ issuer, document, want string }{
		"in the clear":                     {"http://login.acme.test", "", "neither https nor on this machine"},
		"another issuer":                   {issuer, `{"issuer":"https://evil.test"}`, "did not match"},
		"does not support the device flow": {issuer, `{"issuer":"%ISS","token_endpoint":"%ISS/token"}`, "does not support the device flow"},
		"tokens in clear":                  {issuer, `{"issuer":"%ISS","device_authorization_endpoint":"%ISS/d","token_endpoint":"http://evil.test/token"}`, "not https"},
		"device in clear":                  {issuer, `{"issuer":"%ISS","device_authorization_endpoint":"http://evil.test/","token_endpoint":"%ISS/token"}`, "not https"},
		"revoked in clear":                 {issuer, `{"issuer":"%ISS","device_authorization_endpoint":"%ISS/d","token_endpoint":"%ISS/t","revocation_endpoint":"http://evil.test/"}`, "not https"},
		"no document":                      {issuer, strings.Repeat("\x1b[2J\n", 1000), "reading the configuration of the provider"},
		"host with a suffix":               {issuer, `{"issuer":"%ISS","device_authorization_endpoint":"%ISS.evil.test/d","token_endpoint":"%ISS/t"}`, "not https"},
	} {
		t.Run(name, func(t *testing.T) {
			document = tc.document
			err := (&LoginCmd{PersonFlags: aServer, Issuer: tc.issuer, ClientID: "brevet"}).Run(t.Context(), &console{out: io.Discard, err: io.Discard})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && (len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\x1b\n")) {
				t.Errorf("got an error of %d bytes, want a line that is safe to print: %.300q", len(err.Error()), err)
			}
		})
	}
}

// TestExpiredOrExposedLoginsAreNotUsed checks that a login is not used if it has expired or if others may have read it.
func TestExpiredOrExposedLoginsAreNotUsed(t *testing.T) {
	path := home(t)
	good := login.Login{Server: login.Server{URL: aServer.Server}, Issuer: "http://127.0.0.1:1", ClientID: "brevet", ID: "i#a", Expires: time.Now().Add(time.Hour), IDToken: secret.New("token")}
	use := func(want string) {
		t.Helper()
		token, err := stored(t).IDToken(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || token != "" {
			t.Errorf("got %q and %v, want %q", token, err, want)
		}
	}
	use("run brevet login")
	if err := stored(t).Write(good); err != nil {
		t.Fatal(err)
	}
	if token, err := stored(t).IDToken(t.Context()); err != nil || token != "token" {
		t.Errorf("got %q and %v, want the token", token, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	use("other users can read")
	over := good
	over.Expires = time.Now().Add(-time.Second)
	if err := stored(t).Write(over); err != nil {
		t.Fatal(err)
	}
	use("run brevet login")
	if err := new(WhoamiCmd).Run(t.Context(), &console{out: io.Discard}); !errors.Is(err, login.ErrEnded) {
		t.Errorf("got %v, want %v", err, login.ErrEnded)
	}
	// The provider is unavailable: the token can be used until it expires, and no longer.
	over.RefreshToken = secret.New("refresh")
	if err := stored(t).Write(over); err != nil {
		t.Fatal(err)
	}
	use("reading the configuration of the provider")
	near := over
	near.Expires = time.Now().Add(30 * time.Second)
	if err := stored(t).Write(near); err != nil {
		t.Fatal(err)
	}
	if token, err := stored(t).IDToken(t.Context()); err != nil || token != "token" {
		t.Errorf("got %q and %v while the provider is away, want the token", token, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	use("has the format of another version")
	// Logging out still works.
	var out, news bytes.Buffer
	if err := new(LogoutCmd).Run(t.Context(), &console{out: &out, err: &news, json: true}); err != nil || out.String() != "{\"logged_in\":false}\n" || exists(path) {
		t.Errorf("got %q and %v", out.String(), err)
	}
	if err := stored(t).Write(near); err != nil {
		t.Fatal(err)
	}
	if err := new(LogoutCmd).Run(t.Context(), &console{out: &out, err: &news}); err != nil || !strings.Contains(news.String(), "not revoked at the provider") || exists(path) {
		t.Errorf("got %q and %v with the provider away, want that the token was not revoked", news.String(), err)
	}
}

// TestPersonVerifiesTheBrokersSVID checks that a person verifies a broker with an SVID by its trust domain's authorities, and
// presents no certificate.
func TestPersonVerifiesTheBrokersSVID(t *testing.T) {
	home(t)
	live := login.Login{Issuer: "http://127.0.0.1:1", ClientID: "brevet", ID: "i#a", Expires: time.Now().Add(time.Hour), IDToken: secret.New("token")}
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString("acme.test")})
	if err != nil {
		t.Fatal(err)
	}
	svid, err := issuer.X509SVID(spiffeid.RequireFromString("spiffe://acme.test/brevet"))
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan int, 10)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- len(r.TLS.PeerCertificates)
		w.WriteHeader(http.StatusTeapot)
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{{
		Certificate: [][]byte{svid.Certificates[0].Raw}, PrivateKey: svid.PrivateKey,
	}}}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	endpoint, err := issuer.ServeWorkload(filepath.Join(dir, "api.sock"), spiffeid.RequireFromString("spiffe://acme.test/laptop"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	ca, _ := issuer.CA()
	caFile := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	const id = "spiffe://acme.test/brevet"
	for name, tc := range map[string]struct {
		flags PersonFlags
		want  string // empty: the call arrives
	}{
		"by a file":         {PersonFlags{ServerID: id, CAFile: caFile}, ""},
		"by a Workload API": {PersonFlags{ServerID: id, WorkloadAPI: endpoint.Addr()}, ""},
		"another broker":    {PersonFlags{ServerID: "spiffe://acme.test/other", CAFile: caFile}, "unexpected ID"},
		"the web's":         {PersonFlags{}, "--server-id"},
		"no authorities":    {PersonFlags{ServerID: id}, "--ca-file"},
		"no such file":      {PersonFlags{ServerID: id, CAFile: dir + "/none"}, "--ca-file"},
		"no ID":             {PersonFlags{ServerID: "acme"}, "--server-id"},
		"no certificate":    {PersonFlags{CAFile: os.DevNull}, "--ca-file"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.flags.Server = srv.URL
			var err error
			if live.Server, err = tc.flags.loginServer(); err != nil {
				t.Fatal(err)
			}
			if err := stored(t).Write(live); err != nil {
				t.Fatal(err)
			}
			c, done, err := tc.flags.open(t.Context())
			if err == nil {
				defer done()
				_, err = c.Issuance(t.Context(), "x")
				err = tc.flags.hint(err)
			}
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(calls) > 0 {
					t.Errorf("got %v and %d calls, want %q", err, len(calls), tc.want)
				}
				return
			}
			if !errors.Is(err, client.ErrAnswer) || len(calls) != 1 || <-calls != 0 {
				t.Errorf("got %v, want one call without a certificate", err)
			}
		})
	}
}

// T5: whoever chooses the server of a command, such as a repository with variables for a shell, must not get the token of a login.
func TestLoginIsForOneServer(t *testing.T) {
	home(t)
	folder := t.TempDir()
	calls := make(chan string, 10)
	srv := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { calls <- r.Header.Get("Authorization") }))
	t.Cleanup(srv.Close)
	ca := filepath.Join(folder, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	const id = "spiffe://acme.test/brevet"
	at := func(f PersonFlags) PersonFlags {
		f.Server = cmp.Or(f.Server, "https://brevet.acme.test:8443")
		return f
	}
	for name, tc := range map[string]struct {
		own, other PersonFlags
		same       bool
	}{
		"another server":                  {PersonFlags{}, PersonFlags{Server: srv.URL, CAFile: ca}, false},
		"another port":                    {PersonFlags{}, PersonFlags{Server: "https://brevet.acme.test:8444"}, false},
		"without TLS":                     {PersonFlags{}, PersonFlags{Server: "http://brevet.acme.test:8443"}, false},
		"own roots":                       {PersonFlags{}, PersonFlags{CAFile: ca}, false},
		"other roots":                     {PersonFlags{CAFile: "/etc/brevet/ca.pem"}, PersonFlags{CAFile: ca}, false},
		"the system's roots":              {PersonFlags{CAFile: ca}, PersonFlags{}, false},
		"other roots after a link":        {PersonFlags{CAFile: "/etc/ca.pem"}, PersonFlags{CAFile: folder + "/link/../../../etc/ca.pem"}, false},
		"another SPIFFE ID":               {PersonFlags{ServerID: id, CAFile: ca}, PersonFlags{ServerID: id + "2", CAFile: ca}, false},
		"a SPIFFE ID":                     {PersonFlags{CAFile: ca}, PersonFlags{ServerID: id, CAFile: ca}, false},
		"another Workload API":            {PersonFlags{ServerID: id, WorkloadAPI: "unix:///run/spire/a.sock"}, PersonFlags{ServerID: id, WorkloadAPI: "unix://" + folder + "/a.sock"}, false},
		"another socket in an open one":   {PersonFlags{ServerID: id, WorkloadAPI: "unix://" + open + "/a.sock"}, PersonFlags{ServerID: id, WorkloadAPI: "unix://" + open + "/b.sock"}, false},
		"Workload API over TCP":           {PersonFlags{ServerID: id, WorkloadAPI: "tcp://127.0.0.1:1"}, PersonFlags{ServerID: id, WorkloadAPI: "tcp://127.0.0.1:2"}, false},
		"the same":                        {PersonFlags{ServerID: id, CAFile: ca}, PersonFlags{ServerID: id, CAFile: ca}, true},
		"the same with a path":            {PersonFlags{}, PersonFlags{Server: "https://BREVET.acme.test:8443/"}, true},
		"another workload of a stack":     {PersonFlags{ServerID: id, WorkloadAPI: "unix://" + folder + "/a.sock"}, PersonFlags{ServerID: id, WorkloadAPI: "unix://" + folder + "/b.sock"}, true},
		"the same, spelt otherwise":       {PersonFlags{ServerID: id, WorkloadAPI: "unix://" + folder + "/a.sock"}, PersonFlags{ServerID: id, WorkloadAPI: "UNIX:" + folder + "/./%61.sock"}, true},
		"a Workload API that is not used": {PersonFlags{}, PersonFlags{WorkloadAPI: "unix://" + folder + "/b.sock"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := at(tc.own).loginServer()
			if err != nil {
				t.Fatal(err)
			}
			err = stored(t).Write(login.Login{
				Server: server, Issuer: "http://127.0.0.1:1", ClientID: "brevet", ID: "i#a", Expires: time.Now().Add(time.Hour), IDToken: secret.New("token"),
			})
			if err != nil {
				t.Fatal(err)
			}
			c, done, err := at(tc.other).open(t.Context())
			if err == nil {
				c.Close()
				done()
			}
			if refused := errors.Is(err, login.ErrOtherServer); refused == tc.same {
				t.Errorf("got %v, want the login used: %t", err, tc.same)
			}
			if !tc.same && !strings.Contains(fmt.Sprint(err), "run brevet login with --server") {
				t.Errorf("got %q, want advice", err)
			}
		})
	}
	if len(calls) > 0 {
		t.Errorf("the other server got %q", <-calls)
	}
}

// T5: whoever sets the variables of a command, such as a repository with variables for a shell, must not read the refresh token on
// its way to the provider.
func TestRefreshTokenGoesToTheProviderAsAtTheLogin(t *testing.T) {
	const corporate = "http://alice:secret-of-alice@proxy.acme.test:3128"
	for name, tc := range map[string]struct {
		then, now map[string]string
		same      bool
	}{
		"nothing":                   {nil, nil, true},
		"the same proxy":            {map[string]string{"HTTPS_PROXY": corporate}, map[string]string{"https_proxy": corporate}, true},
		"a new password of a proxy": {map[string]string{"HTTPS_PROXY": corporate}, map[string]string{"HTTPS_PROXY": "http://alice:new@proxy.acme.test:3128"}, true},
		"the same roots":            {map[string]string{"SSL_CERT_FILE": "/etc/acme.pem"}, map[string]string{"SSL_CERT_FILE": "/etc/acme.pem"}, true},
		"a proxy of other requests": {nil, map[string]string{"HTTP_PROXY": "http://evil.test"}, true},
		"a proxy":                   {nil, map[string]string{"HTTPS_PROXY": "http://evil.test"}, false},
		"a proxy in lower case":     {nil, map[string]string{"https_proxy": "evil.test:80"}, false},
		"another proxy":             {map[string]string{"HTTPS_PROXY": corporate}, map[string]string{"HTTPS_PROXY": "http://evil.test/@proxy.acme.test:3128"}, false},
		"no proxy":                  {map[string]string{"HTTPS_PROXY": corporate}, nil, false},
		"an exception":              {map[string]string{"HTTPS_PROXY": corporate}, map[string]string{"HTTPS_PROXY": "http://evil.test", "NO_PROXY": "provider.invalid"}, false},
		"roots":                     {nil, map[string]string{"SSL_CERT_FILE": "/evil.pem"}, false},
		"a folder of roots":         {nil, map[string]string{"SSL_CERT_DIR": "/evil"}, false},
		"one more folder of roots":  {map[string]string{"SSL_CERT_DIR": "/etc/acme"}, map[string]string{"SSL_CERT_DIR": "/etc/acme:/evil"}, false},
		"roots after a link":        {map[string]string{"SSL_CERT_FILE": "/etc/acme.pem"}, map[string]string{"SSL_CERT_FILE": "/tmp/link/../../etc/acme.pem"}, false},
		"roots of another folder":   {map[string]string{"SSL_CERT_FILE": "acme.pem"}, map[string]string{"SSL_CERT_FILE": "acme.pem"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := home(t)
			set := func(values map[string]string) {
				for _, one := range networkVariables {
					t.Setenv(one, values[one])
				}
			}
			calls := make(chan string, 10)
			srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { calls <- r.URL.Path }))
			t.Cleanup(srv.Close)
			set(tc.then)
			store := stored(t)
			err := store.Write(login.Login{
				Server: store.Server, Network: store.Network, Issuer: srv.URL, ClientID: "brevet", ID: "i#a", Expires: time.Now(),
				IDToken: secret.New("token"), RefreshToken: secret.New("refresh"),
			})
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil || strings.Contains(string(text), "secret-of-alice") || tc.then == nil && strings.Contains(string(text), "network") {
				t.Errorf("got %v and %s, want no password of the proxy, and a login without variables as before", err, text)
			}
			if name == "roots of another folder" {
				t.Chdir(t.TempDir())
			}
			set(tc.now)
			_, err = stored(t).IDToken(t.Context())
			if refused := errors.Is(err, login.ErrOtherNetwork); refused == tc.same || (len(calls) > 0) != tc.same {
				t.Errorf("got %v and %d calls, want the refresh token used: %t", err, len(calls), tc.same)
			}
			if !tc.same && !strings.Contains(fmt.Sprint(err), "run brevet login again") || strings.Contains(fmt.Sprint(err), "secret-of-alice") {
				t.Errorf("got %q, want advice without the password", err)
			}
			for len(calls) > 0 {
				<-calls
			}
			var news bytes.Buffer
			if err := new(LogoutCmd).Run(t.Context(), &console{out: io.Discard, err: &news}); err != nil || exists(path) || (len(calls) > 0) != tc.same {
				t.Errorf("got %v, %q and %d calls at the logout, want the refresh token used: %t", err, news.String(), len(calls), tc.same)
			}
		})
	}
}

// A login keeps the proxy and the roots with which the person made it.
func TestLoginKeepsItsNetwork(t *testing.T) {
	home(t)
	t.Setenv("HTTPS_PROXY", "http://alice:secret@proxy.acme.test:3128")
	t.Setenv("SSL_CERT_DIR", "/etc/acme")
	provider := devProvider(t)
	cmd := &LoginCmd{PersonFlags: aServer, Issuer: provider.Issuer(), ClientID: "brevet"}
	if _, err := logIn(t, cmd, func(uri string) { press(t, uri, url.Values{"username": {"alice"}}) }); err != nil {
		t.Fatal(err)
	}
	want := login.Network{Proxy: "http://proxy.acme.test:3128", Roots: "SSL_CERT_DIR=/etc/acme"}
	if l, err := stored(t).Read(); err != nil || l.Network != want {
		t.Errorf("got %+v, %v, want %+v", l.Network, err, want)
	}
	if server, err := aServer.loginServer(); err != nil || server.Roots != want.Roots {
		t.Errorf("got %+v, %v, want the roots of the system for the server too", server, err)
	}
}
