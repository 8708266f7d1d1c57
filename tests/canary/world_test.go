package canary_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const agent = "spiffe://acme.test/agents/a"

const scopesYAML = `scopes:
  - name: test.jwt
    title: A token
    authority: read
    resource: test:jwt
    ttl: {default: 5m, max: 5m}
    credential: {kind: jwt, audience: https://git.test}
  - name: test.cloud
    title: A token for a cloud
    authority: read
    resource: test:cloud
    ttl: {default: 5m, max: 5m}
    credential: {kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'test:cloud'}}
  - name: test.login
    title: A database login
    authority: read
    resource: test:database
    ttl: {default: 5m, max: 5m}
    credential: {kind: database, mount: database, role: reporting}
  - name: test.vault
    title: A Vault token
    authority: read
    resource: test:notes
    ttl: {default: 5m, max: 5m}
    credential: {kind: vault-token, policy: [{path: secret/data/notes, capabilities: [read]}]}
  - name: gated.login
    title: A database login
    authority: write
    resource: test:database
    ttl: {default: 5m, max: 5m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: database, mount: database, role: reporting}
`

var options = testkit.Options{
	Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(scopesYAML)},
		{Name: "kinds.yaml", Data: []byte(kindsYAML)},
		{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);
@id("people") forbid (principal, action in Action::"gated.*", resource) unless { context.approved };`)},
	},
	People: []devstack.DevPerson{{Username: "bob", Groups: []string{"oncall"}}},
	Rules:  []people.Rule{{Role: people.RoleApprover, Group: "oncall"}},
}

// world is a broker with its secrets.
type world struct {
	*testkit.Stack
	secrets map[string]string
	// answers holds the bodies of all error answers.
	answers testkit.Buffer
	// told holds what webhooks received.
	told testkit.Buffer
	// printed holds what libraries write to the default logger of package log.
	printed testkit.Buffer
	gate    gate
}

// work makes the broker create and receive secrets of every kind.
func (w *world) work(t *testing.T) {
	t.Helper()
	svid := w.X509(t, agent)
	sandbox := w.ClientWith(t, svid)
	w.keep(t, "private key of the SVID", svid.PrivateKey.(*ecdsa.PrivateKey))
	proof, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := dpop.NewSigner(proof, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	w.keep(t, "private key of DPoP", proof)
	w.secrets["signature of the token"] = signature(w.issue(t, sandbox, client.Ask{Scope: "test.jwt"}).Secret.Reveal())
	w.secrets["signature of the token for a cloud"] = signature(w.issue(t, sandbox, client.Ask{Scope: "test.cloud"}).Secret.Reveal())
	w.secrets["signature of the bound token"] = signature(w.issue(t, sandbox, client.Ask{Scope: "test.jwt", Signer: signer}).Secret.Reveal())
	w.secrets["password of the login"] = w.issue(t, sandbox, client.Ask{Scope: "test.login"}).Field("password").Reveal()
	w.secrets["Vault token"] = w.issue(t, sandbox, client.Ask{Scope: "test.vault"}).Field("token").Reveal()
	w.kinds(t, sandbox)
	w.keep(t, "private key of the broker", w.SVID.PrivateKey.(*ecdsa.PrivateKey))
	w.secrets["password of the approved login"] = w.approved(t, sandbox).Field("password").Reveal()
	secretID, err := os.ReadFile(w.VaultAccess().SecretIDFile)
	if err != nil {
		t.Fatal(err)
	}
	own, err := url.Parse(w.DB.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	w.secrets["secret id of the AppRole"] = string(secretID)
	w.secrets["password of the broker"], _ = own.User.Password()
	w.misplace(t, svidToken(w.JWT(t, agent)), w.IDToken(t, "bob"))
	if _, err := sandbox.EndTask(t.Context(), "t-1", client.TaskEnd{}); err != nil {
		t.Fatal(err)
	}
	w.ownTokens(t)
}

// svidToken is a type for JWT-SVIDs, so that a call cannot mix them up with other strings.
type svidToken string

func signature(token string) string { return token[strings.LastIndexByte(token, '.')+1:] }

// keep remembers a private key, as a number and in its file format.
func (w *world) keep(t *testing.T, name string, key *ecdsa.PrivateKey) {
	t.Helper()
	number, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	w.secrets[name] = string(number)
	w.secrets[name+" in PEM"] = strings.Split(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "\n")[2]
}

func (w *world) issue(t *testing.T, sandbox *client.Client, ask client.Ask) *client.Token {
	t.Helper()
	ask.Task = "t-1"
	got, err := sandbox.Request(t.Context(), ask)
	if err != nil || got.Token == nil {
		t.Fatalf("asking for %s: got %+v, %v", ask.Scope, got, err)
	}
	return got.Token
}

// approved returns a login that a person has approved, after a webhook was notified of the request.
func (w *world) approved(t *testing.T, sandbox *client.Client) *client.Token {
	t.Helper()
	told := w.subscribe(t)
	ask := client.Ask{Scope: "gated.login", Task: "t-1"}
	got, err := sandbox.Request(t.Context(), ask)
	if err != nil || got.Pending == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	<-told
	bob := w.Person(t, "bob")
	shown, err := bob.Approval(t.Context(), got.Pending.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Vote(t.Context(), shown, openapi.VerdictApprove, ""); err != nil {
		t.Fatal(err)
	}
	if got, err = sandbox.Redeem(t.Context(), got.Pending.ID, ask); err != nil || got.Token == nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	return got.Token
}

// subscribe registers a webhook for pending requests. Its first call fails, so that an error is logged.
func (w *world) subscribe(t *testing.T) <-chan struct{} {
	t.Helper()
	told, calls := make(chan struct{}), 0
	receiver := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = r.Header.Write(&w.told)
		_, _ = io.Copy(&w.told, r.Body)
		calls++ // calls come one after the other
		switch calls {
		case 1:
			rw.WriteHeader(http.StatusInternalServerError)
		case 2:
			close(told)
		}
	}))
	t.Cleanup(receiver.Close)
	key, path := make([]byte, 24), rand.Text()
	_, _ = rand.Read(key)
	w.secrets["key of the webhook"] = string(key)
	w.secrets["address of the webhook"] = path
	roots := x509.NewCertPool()
	roots.AddCert(receiver.Certificate())
	log := slog.New(slog.NewTextHandler(w.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	box, err := ledger.OpenOutbox(t.Context(), ledger.Config{URL: w.DB.BrokerURL, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	courier, err := webhook.New(webhook.Config{
		Outbox: box, Link: "https://brevet.test/v1/approvals/{id}", Now: time.Now, Log: log,
		Webhooks: []webhook.Spec{{
			Name: "hook", Secret: secret.New("whsec_" + base64.StdEncoding.EncodeToString(key)), Within: []string{people.Everywhere},
			Target: safehttp.Target{URL: secret.New(receiver.URL + "/" + path), Roots: roots, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			Events: []broker.NoticeKind{broker.NoticeWaiting},
		}},
	})
	if err == nil {
		err = box.Subscribe(t.Context(), "hook")
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = courier.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	return told
}

// misplace sends secrets in places where they do not belong, in addition to valid authentication.
func (w *world) misplace(t *testing.T, svid svidToken, login string) {
	t.Helper()
	w.secrets["signature of the JWT-SVID"], w.secrets["signature of the ID token"] = signature(string(svid)), signature(login)
	anyone, known := w.HTTP(t, nil), w.HTTP(t, w.X509(t, agent))
	w.call(t, anyone, "GET", "/v1/scopes", "Bearer "+string(svid), "", http.StatusOK)
	w.call(t, anyone, "GET", "/v1/whoami", "Bearer "+login, "", http.StatusOK)
	w.call(t, anyone, "GET", "/v1/issuances", "Bearer "+login, "", 0)
	for of, text := range w.secrets {
		if strings.Contains(of, "private key of") && !strings.HasSuffix(of, "PEM") || of == "key of the webhook" {
			continue // not text
		}
		escaped := url.QueryEscape(text)
		w.call(t, anyone, "GET", "/v1/scopes", "Bearer "+escaped, "", 0)
		w.call(t, known, "GET", "/v1/"+escaped, "", "", 0)
		if of != "secret id of the AppRole" { // which has the form of an issuance id, so it would be looked up
			w.call(t, known, "GET", "/v1/issuances/"+escaped, "", "", 0)
		}
		w.call(t, known, "GET", "/v1/issuances?"+escaped+"="+escaped, "", "", 0)
		w.call(t, known, "POST", "/v1/tokens", "", `{"`+text+`": "x"}`, http.StatusBadRequest)
		w.call(t, known, "POST", "/v1/tokens", "", `{"scope": 1, "x": "`+text, http.StatusBadRequest)
		w.call(t, known, "POST", "/oauth2/introspect", "", "token="+escaped, 0)
	}
}

// call makes a call and checks its status. Zero stands for any error status.
func (w *world) call(t *testing.T, as *http.Client, method, path, authorization, body string, status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.HasPrefix(path, "/oauth2") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := as.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || status != 0 && resp.StatusCode != status {
		t.Errorf("%s %s: got %d %s, %v", method, path, resp.StatusCode, text, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		_ = resp.Header.Write(&w.answers)
		_, _ = w.answers.Write(text)
	}
}
