package devstack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
)

const (
	codeLife     = time.Minute
	deviceLife   = 10 * time.Minute
	pollInterval = time.Second

	deviceGrantType = "urn:ietf:params:oauth:grant-type:device_code"

	// maxPending bounds the number of codes and of device logins that the provider keeps.
	maxPending = 1000
)

// codeGrant is an authorization code that a client received, with the values that its redemption must match.
type codeGrant struct {
	username, redirect, challenge, nonce string
	expires                              time.Time
}

// deviceGrant is a login that began on a device and waits for a person's decision.
type deviceGrant struct {
	user     string // the user code
	username string // empty until a person agrees
	denied   bool
	expires  time.Time
	polled   time.Time
	interval time.Duration
}

// authorize shows the known people and sends a code for the chosen person back to the client (OpenID Connect Core, section
// 3.1.2). Until redirect_uri is known to be valid, it shows errors on its own page.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.FormValue
	redirect, err := url.Parse(q("redirect_uri"))
	if err != nil || q("client_id") != p.cfg.ClientID || !loopbackRedirect(redirect) {
		http.Error(w, "unknown client, or a redirect_uri that is not http on loopback", http.StatusBadRequest)
		return
	}
	answer := url.Values{"iss": {p.issuer}}
	if state := q("state"); state != "" {
		answer.Set("state", state)
	}
	switch username := q("username"); {
	case q("response_type") != "code" || !strings.Contains(" "+q("scope")+" ", " openid "):
		answer.Set("error", "invalid_request")
	case q("code_challenge_method") != "S256" || q("code_challenge") == "":
		answer.Set("error", "invalid_request")
		answer.Set("error_description", "PKCE with S256 is required")
	case r.Method == http.MethodGet:
		p.choose(w, r.Form, "")
		return
	case q("deny") != "":
		answer.Set("error", "access_denied")
	default:
		code := p.keepCode(codeGrant{username, redirect.String(), q("code_challenge"), q("nonce"), p.cfg.Now().Add(codeLife)})
		if code == "" {
			answer.Set("error", "access_denied")
		} else {
			answer.Set("code", code)
		}
	}
	query := redirect.Query()
	maps.Copy(query, answer)
	redirect.RawQuery = query.Encode()
	http.Redirect(w, r, redirect.String(), http.StatusSeeOther)
}

func loopbackRedirect(u *url.URL) bool {
	host := u.Hostname()
	return u.Scheme == "http" && u.User == nil && u.Fragment == "" && (host == "127.0.0.1" || host == "::1" || host == "localhost")
}

// keepCode stores a grant under a new code and returns the code. It returns "" if there is no such person.
func (p *Provider) keepCode(grant codeGrant) string {
	if _, ok := p.person(grant.username); !ok {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
	code := rand.Text()
	p.codes[code] = grant
	return code
}

// forget drops expired grants, and arbitrary other ones while there are maxPending or more. That is good enough for
// development.
func (p *Provider) forget() {
	now := p.cfg.Now()
	for code, grant := range p.codes {
		if now.After(grant.expires) || len(p.codes) >= maxPending {
			delete(p.codes, code)
		}
	}
	for code, grant := range p.devices {
		if now.After(grant.expires.Add(deviceLife)) || len(p.devices) >= maxPending {
			delete(p.devices, code)
		}
	}
}

// authorizeDevice begins a device flow (RFC 8628, section 3.1).
func (p *Provider) authorizeDevice(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("client_id") != p.cfg.ClientID {
		writeOAuthError(w, "invalid_client")
		return
	}
	user := rand.Text()[:8]
	user = user[:4] + "-" + user[4:]
	code := rand.Text()
	p.mu.Lock()
	p.forget()
	p.devices[code] = &deviceGrant{user: user, expires: p.cfg.Now().Add(deviceLife), interval: pollInterval}
	p.mu.Unlock()
	writeOAuth(w, http.StatusOK, map[string]any{
		"device_code": code, "user_code": user, "verification_uri": p.issuer + "/device",
		"verification_uri_complete": p.issuer + "/device?" + url.Values{"user_code": {user}}.Encode(),
		"expires_in":                int(deviceLife.Seconds()), "interval": int(pollInterval.Seconds()),
	})
}

// verifyDevice is the page where a person chooses an identity and confirms the user code (RFC 8628, section 3.3).
func (p *Provider) verifyDevice(w http.ResponseWriter, r *http.Request) {
	user := strings.ToUpper(strings.TrimSpace(r.FormValue("user_code")))
	if r.Method == http.MethodGet {
		p.choose(w, r.Form, user)
		return
	}
	username := r.PostFormValue("username")
	if r.PostFormValue("deny") != "" {
		username = nobody
	}
	status, text := p.decideDevice(user, username)
	tell(w, status, text)
}

// AgreeToDevice submits the page of a Provider to log a device in as username, as that person would in a browser.
func AgreeToDevice(ctx context.Context, page, userCode, username string) error {
	form := url.Values{"user_code": {userCode}, "username": {username}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, page, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := &http.Client{Transport: quiet.NewUsual(), Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("opening the provider's page: %w", err)
	}
	defer client.CloseIdleConnections()
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the provider answers %d: it knows nobody named %q", resp.StatusCode, username)
	}
	return nil
}

// nobody is the username that stands for a denial. No real username holds a NUL.
const nobody = "\x00"

// decideDevice records the first decision on a user code and returns the page's status and text.
func (p *Provider) decideDevice(user, username string) (status int, text string) {
	_, known := p.person(username)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, grant := range p.devices {
		if grant.user != user || grant.username != "" || grant.denied || p.cfg.Now().After(grant.expires) {
			continue
		}
		switch {
		case username == nobody:
			grant.denied = true
			return http.StatusOK, "Declined. You may close this page."
		case known:
			grant.username = username
			return http.StatusOK, "You are logged in. You may close this page."
		}
		return http.StatusBadRequest, "There is no such person."
	}
	return http.StatusBadRequest, "No login waits for that code."
}

// token redeems a code or a device code (RFC 6749, section 4.1.3; RFC 8628, section 3.4).
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("client_id") != p.cfg.ClientID {
		writeOAuthError(w, "invalid_client")
		return
	}
	var username, nonce, failure string
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		username, nonce, failure = p.redeemCode(r)
	case deviceGrantType:
		username, failure = p.redeemDevice(r.PostFormValue("device_code"))
	default:
		failure = "unsupported_grant_type"
	}
	if failure != "" {
		writeOAuthError(w, failure)
		return
	}
	token, err := p.sign(username, p.cfg.ClientID, nonce)
	if err != nil {
		writeOAuthError(w, "invalid_grant")
		return
	}
	// An OAuth response must have an access token. This one gives access to nothing.
	writeOAuth(w, http.StatusOK, map[string]any{
		"access_token": rand.Text(), "token_type": "Bearer", "expires_in": int(idTokenLife.Seconds()), "id_token": token,
		"scope": "openid profile",
	})
}

// redeemCode consumes a code on the first attempt, even if the other parameters do not match.
func (p *Provider) redeemCode(r *http.Request) (username, nonce, failure string) {
	code := r.PostFormValue("code")
	p.mu.Lock()
	defer p.mu.Unlock()
	grant, ok := p.codes[code]
	delete(p.codes, code)
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	proof := base64.RawURLEncoding.EncodeToString(sum[:])
	if !ok || p.cfg.Now().After(grant.expires) || grant.redirect != r.PostFormValue("redirect_uri") ||
		subtle.ConstantTimeCompare([]byte(proof), []byte(grant.challenge)) != 1 {
		return "", "", "invalid_grant"
	}
	return grant.username, grant.nonce, ""
}

// redeemDevice redeems a device code that a person has decided on. A client that polls too often has to wait longer each
// time (RFC 8628, section 3.5).
func (p *Provider) redeemDevice(code string) (username, failure string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	grant, ok := p.devices[code]
	switch {
	case !ok:
		return "", "invalid_grant"
	case now.After(grant.expires):
		return "", "expired_token"
	case grant.denied:
		return "", "access_denied"
	case grant.username != "":
		delete(p.devices, code)
		return grant.username, ""
	}
	early := !grant.polled.IsZero() && now.Sub(grant.polled) < grant.interval*9/10 // allow for uneven clocks
	grant.polled = now
	if early {
		grant.interval += 5 * time.Second
		return "", "slow_down"
	}
	return "", "authorization_pending"
}
