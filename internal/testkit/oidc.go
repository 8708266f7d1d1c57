package testkit

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// OIDC is a running oidc-provider, the certified one from npm. Its people are alice (groups oncall and engineers), bob
// (oncall), carol (admins), dave (auditors) and erin, who has no groups. Each person's name is both the
// preferred_username and the sub. They log in without a password.
type OIDC struct {
	// Issuer is the provider's issuer: an http URL of this machine.
	Issuer string
	// ClientID is a public client for the device flow and for the code flow with PKCE, which redirects to /callback on any
	// port of 127.0.0.1. It gets refresh tokens, and ID tokens that live ten minutes.
	ClientID string
	// BriefClientID is like ClientID, but its ID tokens live twenty seconds.
	BriefClientID string
}

// Provider starts a provider that ends with the test, or with the test process. It needs node and npm. The first call
// installs the packages that oidcprovider/package-lock.json pins.
func Provider(t testing.TB) *OIDC {
	t.Helper()
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing oidc-provider: %v", err)
	}
	server := exec.CommandContext(context.WithoutCancel(t.Context()), "node", filepath.Join(folder, "server.mjs"))
	server.Dir = folder
	said := &Buffer{}
	server.Stderr = said
	input, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("starting oidc-provider: %v", err)
	}
	t.Cleanup(func() {
		_ = input.Close() // the server ends when its input ends
		late := time.AfterFunc(5*time.Second, func() { _ = server.Process.Kill() })
		defer late.Stop()
		if err := server.Wait(); err != nil {
			t.Errorf("ending oidc-provider: %v\n%s", err, said)
		}
	})
	issuer, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("starting oidc-provider: %v\n%s", err, said)
	}
	return &OIDC{Issuer: strings.TrimSpace(issuer), ClientID: "brevet", BriefClientID: "brevet-brief"}
}

// deviceGrant holds the fields of a device authorization response (RFC 8628, section 3.2) and of a token response.
type deviceGrant struct {
	DeviceCode string `json:"device_code"`
	Complete   string `json:"verification_uri_complete"`
	IDToken    string `json:"id_token"`
}

// IDToken runs the device flow as username and returns the ID token.
func (o *OIDC) IDToken(t testing.TB, username string) string {
	t.Helper()
	var device, tokens deviceGrant
	o.post(t, "/device/auth", url.Values{"client_id": {o.ClientID}, "scope": {"openid profile"}}, &device)
	o.Approve(t, device.Complete, username)
	o.post(t, "/token", url.Values{
		"client_id": {o.ClientID}, "device_code": {device.DeviceCode},
		"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"},
	}, &tokens)
	if tokens.IDToken == "" {
		t.Fatal("the provider gave no ID token")
	}
	return tokens.IDToken
}

func (o *OIDC) post(t testing.TB, path string, form url.Values, into any) {
	t.Helper()
	body := visit(t, &http.Client{Timeout: 30 * time.Second}, o.Issuer+path, form)
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("reading the answer of %s: %v\n%s", path, err, body)
	}
}

// Approve does what username does in the browser: it opens a verification URI that holds the user code, confirms the
// code, logs in, and consents.
func (o *OIDC) Approve(t testing.TB, verificationURI, username string) {
	t.Helper()
	browser, page := o.confirm(t, verificationURI, url.Values{"confirm": {"yes"}})
	if page = logIn(t, browser, page, username); !strings.Contains(page, "Sign-in Success") {
		t.Fatalf("got another page than that of a success:\n%s", page)
	}
}

// LogIn logs username in after another site redirected the browser here. The browser keeps cookies.
func (o *OIDC) LogIn(t testing.TB, browser *http.Client, address, username string) (page string) {
	t.Helper()
	return logIn(t, browser, visit(t, browser, address, nil), username)
}

// logIn submits the forms of the login and of the consent.
func logIn(t testing.TB, browser *http.Client, page, username string) string {
	t.Helper()
	for range 2 {
		form := formAction.FindStringSubmatch(page)
		if form == nil {
			t.Fatalf("got no form:\n%s", page)
		}
		fields := url.Values{"login": {username}, "password": {"any"}}
		for _, field := range formField.FindAllStringSubmatch(page, -1) {
			fields.Set(field[1], field[2])
		}
		page = visit(t, browser, form[1], fields)
	}
	return page
}

// Decline denies the login in the browser, as a person does who has not asked for the code.
func (o *OIDC) Decline(t testing.TB, verificationURI string) {
	t.Helper()
	o.confirm(t, verificationURI, url.Values{"abort": {"yes"}})
}

// confirm submits the form of the verification page, and returns the browser and the next page.
func (o *OIDC) confirm(t testing.TB, verificationURI string, form url.Values) (*http.Client, string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Timeout: 30 * time.Second, Jar: jar}
	page := visit(t, browser, verificationURI, nil)
	for _, field := range formField.FindAllStringSubmatch(page, -1) {
		form.Set(field[1], field[2])
	}
	return browser, visit(t, browser, o.Issuer+"/device", form)
}

var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)
	formField  = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
)

// visit gets a page, or posts a form to it, and returns the page that the browser ends on.
func visit(t testing.TB, browser *http.Client, address string, form url.Values) string {
	t.Helper()
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(t.Context(), method, address, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatalf("visiting the provider: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatalf("visiting the provider: %v", err)
	}
	return string(text)
}
