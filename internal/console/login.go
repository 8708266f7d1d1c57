package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

const (
	loginCookie     = "login"
	sessionCookie   = "session"
	signatureCookie = "session-signature"
	// personCookie says who was last logged in in this browser, and is signed. A form that comes too late is kept for its person.
	personCookie = "session-person"
	// loginLife is how long a login at the provider may take.
	loginLife       = 10 * time.Minute
	providerTimeout = 10 * time.Second
	// freshAge is the age of a login at the provider from which the provider must ask the person again, if a fresh login is
	// needed. It leaves four of the broker's five minutes to add a passkey.
	freshAge = time.Minute
	// providerPause is the pause before the console retries a provider that did not respond.
	providerPause = 2 * time.Second
	// maxUsed bounds how many used login states are kept. When they are dropped, a replayed callback costs one more request
	// to the provider.
	maxUsed = 10_000
)

// login is the authorization code flow with PKCE (RFC 7636). The browser keeps the state of a login in progress, sealed, so
// that unauthenticated users cannot make the server store anything.
type login struct {
	issuer string
	oauth  oauth2.Config
	client *http.Client
	box    cipher.AEAD

	asking   singleflight.Group
	provider atomic.Pointer[oidc.Provider] // nil until discovery succeeds
	failed   atomic.Int64                  // time of the last failed discovery, in Unix nanoseconds
	now      func() time.Time

	mu   sync.Mutex
	used map[string]bool // states of logins whose callback was handled
}

// loginState is a login in progress.
type loginState struct {
	State, Nonce, Verifier, Return string
	Until                          time.Time
	Fresh                          bool // the person must log in at the provider now, in spite of the provider's session
}

func newLogin(cfg Config, origin *url.URL) (*login, error) {
	box, err := sealer(cfg.Key, "login")
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: quiet.NewUsual(), Timeout: providerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if cfg.HTTPClient != nil {
		client.Transport = cfg.HTTPClient.Transport
	}
	return &login{
		issuer: cfg.People.Issuer(), box: box, client: client, now: cfg.Now,
		oauth: oauth2.Config{
			ClientID: cfg.ClientID, ClientSecret: cfg.ClientSecret.Reveal(), RedirectURL: origin.String() + "/callback",
		},
	}, nil
}

// find fetches the provider's metadata once. Concurrent callers share one request.
func (l *login) find(ctx context.Context) (*oidc.Provider, error) {
	if known := l.provider.Load(); known != nil {
		return known, nil
	}
	if l.now().UnixNano()-l.failed.Load() < int64(providerPause) {
		return nil, fmt.Errorf("%w: discovery was tried a moment ago", people.ErrProviderUnavailable)
	}
	_, err, _ := l.asking.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), providerTimeout)
		defer cancel()
		found, err := oidc.NewProvider(oidc.ClientContext(ctx, l.client), l.issuer)
		if err != nil {
			l.failed.Store(l.now().UnixNano())
			return nil, err
		}
		l.provider.Store(found)
		return nil, nil
	})
	if err != nil { // err quotes the provider's whole response, so do not wrap it
		return nil, fmt.Errorf("%w: fetching its metadata", people.ErrProviderUnavailable)
	}
	return l.provider.Load(), nil
}

// open returns the OAuth configuration of a login. It requests the profile and groups scopes if the provider supports them.
func (l *login) open(ctx context.Context) (oauth2.Config, error) {
	provider, err := l.find(ctx)
	if err != nil {
		return oauth2.Config{}, err
	}
	var knows struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := provider.Claims(&knows); err != nil {
		return oauth2.Config{}, fmt.Errorf("%w: reading its metadata", people.ErrProviderUnavailable)
	}
	flow := l.oauth
	flow.Endpoint, flow.Scopes = provider.Endpoint(), []string{oidc.ScopeOpenID}
	for _, wanted := range []string{"profile", "groups"} {
		if slices.Contains(knows.Scopes, wanted) {
			flow.Scopes = append(flow.Scopes, wanted)
		}
	}
	return flow, nil
}

// once reports whether this is the first callback with the given state. It keeps a client from replaying one login to make
// the console call the provider again and again.
func (l *login) once(state string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used == nil || len(l.used) >= maxUsed {
		l.used = map[string]bool{}
	}
	again := l.used[state]
	l.used[state] = true
	return !again
}

// beginLogin redirects the browser to the provider.
func (c *Console) beginLogin(w http.ResponseWriter, r *http.Request) {
	flow, err := c.login.open(r.Context())
	if err != nil {
		c.fail(w, r, nil, err)
		return
	}
	b := loginState{
		State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		Return: localPath(r.URL.Query().Get("return")), Until: c.cfg.Now().Add(loginLife), Fresh: r.URL.Query().Has("fresh"),
	}
	text, err := json.Marshal(b)
	if err != nil {
		c.fail(w, r, nil, err)
		return
	}
	c.setCookie(w, loginCookie, base64.RawURLEncoding.EncodeToString(seal(c.login.box, text)), loginLife)
	options := []oauth2.AuthCodeOption{oidc.Nonce(b.Nonce), oauth2.S256ChallengeOption(b.Verifier)}
	if b.Fresh {
		// The provider must then say in the token when the person logged in (OpenID Connect Core, 3.1.2.1).
		options = append(options, oauth2.SetAuthURLParam("max_age", strconv.Itoa(int(freshAge.Seconds()))))
	}
	http.Redirect(w, r, flow.AuthCodeURL(b.State, options...), http.StatusSeeOther)
}

// setCookie sets a cookie for some time. If the value is empty, it removes the cookie.
func (c *Console) setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	cookie := &http.Cookie{
		Name: c.cookieName(name), Value: value, Path: "/", MaxAge: int(life.Seconds()), HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode,
	}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// localPath returns path if it is a path of the console, and "/" otherwise, so that a crafted link cannot redirect to
// another site.
func localPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") {
		return "/"
	}
	return path
}

// endLogin handles the callback from the provider.
func (c *Console) endLogin(w http.ResponseWriter, r *http.Request) {
	b, err := c.begun(r)
	c.setCookie(w, loginCookie, "", 0)
	if err == nil && !c.login.once(b.State) {
		err = errLogin
	}
	var raw string
	var person people.Person
	if err == nil {
		raw, person, err = c.exchange(r, b)
	}
	if err == nil {
		err = c.begin(w, r, raw, person)
	}
	if err != nil {
		c.fail(w, r, nil, err)
		return
	}
	http.Redirect(w, r, b.Return, http.StatusSeeOther)
}

// begun returns the login that this browser has started, if the callback matches it. Otherwise it returns errLogin, or
// errDeclined if the provider returned an error or no code.
func (c *Console) begun(r *http.Request) (loginState, error) {
	var b loginState
	cookie, err := r.Cookie(c.cookieName(loginCookie))
	if err != nil {
		return b, errLogin
	}
	sealed, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return b, errLogin
	}
	text, err := unseal(c.login.box, sealed)
	if err != nil || json.Unmarshal(text, &b) != nil {
		return b, errLogin
	}
	query := r.URL.Query()
	if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(b.State)) != 1 || !c.cfg.Now().Before(b.Until) {
		return b, errLogin
	}
	// RFC 9207: a response of another provider must not count as a response of this one.
	if issuer := query.Get("iss"); issuer != "" && issuer != c.login.issuer {
		return b, errLogin
	}
	if query.Get("error") != "" || query.Get("code") == "" {
		return b, errDeclined
	}
	return b, nil
}

// exchange redeems the code and returns the ID token and the person that it identifies.
func (c *Console) exchange(r *http.Request, b loginState) (raw string, person people.Person, err error) {
	flow, err := c.login.open(r.Context())
	if err != nil {
		return "", person, err
	}
	ctx := oidc.ClientContext(r.Context(), c.login.client)
	tokens, err := flow.Exchange(ctx, r.URL.Query().Get("code"), oauth2.VerifierOption(b.Verifier))
	switch _, refused := errors.AsType[*oauth2.RetrieveError](err); {
	case refused: // its text comes from the provider
		return "", person, errDeclined
	case err != nil:
		return "", person, fmt.Errorf("%w: exchanging the code", people.ErrProviderUnavailable)
	}
	raw, _ = tokens.Extra("id_token").(string)
	person, err = c.cfg.People.Login(ctx, raw, b.Nonce)
	if err != nil {
		return "", person, fmt.Errorf("logging in: %w", err)
	}
	if b.Fresh && !c.cfg.Broker.FreshLogin(person) {
		return "", person, errNotFresh // it ignored max_age
	}
	return raw, person, nil
}

// logout ends the session of the console. It does not end the session at the provider.
func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	if c.sessions.GetString(r.Context(), keyIDToken) != "" {
		if err := c.sessions.Destroy(r.Context()); err != nil {
			c.fail(w, r, nil, err)
			return
		}
		c.setCookie(w, signatureCookie, "", 0)
	}
	c.setCookie(w, personCookie, "", 0)
	http.Redirect(w, r, "/signed-out", http.StatusSeeOther)
}

// tokenSignature returns the signature of a session token. Each session of this console begins with a login, which signs its token.
func (c *Console) tokenSignature(token string) []byte { return sign(c.signing, token) }

func sign(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(text)) // it never fails
	return mac.Sum(nil)
}

// sessionToken returns the token in the session cookie, or "" if there is none that this console has signed. Its session may have
// ended.
func (c *Console) sessionToken(r *http.Request) string {
	session, err := r.Cookie(c.cookieName(sessionCookie))
	if err != nil {
		return ""
	}
	signature, err := r.Cookie(c.cookieName(signatureCookie))
	if err != nil {
		return ""
	}
	mac, err := base64.RawURLEncoding.DecodeString(signature.Value)
	if err != nil || !hmac.Equal(mac, c.tokenSignature(session.Value)) {
		return ""
	}
	return session.Value
}

// minKey is the smallest length of Config.Key, in bytes.
const minKey = 32

// cookieName adds the __Host- prefix, which binds a cookie to this host. Browsers reject the prefix over http.
func (c *Console) cookieName(name string) string {
	if c.origin.Scheme == "https" {
		return "__Host-brevet-" + name
	}
	return "brevet-" + name
}

// store stores sessions so that read access to the storage reveals neither a cookie nor a login. A session is found by a
// digest of its cookie and sealed with a key derived from the cookie.
type store struct{ at Sessions }

var _ scs.CtxStore = store{}

// FindCtx implements scs.CtxStore.
func (s store) FindCtx(ctx context.Context, cookie string) (data []byte, found bool, err error) {
	sealed, err := s.at.Session(ctx, sha256.Sum256([]byte(cookie)))
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading the session: %w", err)
	}
	box, err := sealer([]byte(cookie), "session")
	if err != nil {
		return nil, false, err
	}
	data, err = unseal(box, sealed)
	return data, err == nil, nil // a session that does not unseal with the cookie counts as not found
}

// CommitCtx implements scs.CtxStore.
func (s store) CommitCtx(ctx context.Context, cookie string, data []byte, ends time.Time) error {
	box, err := sealer([]byte(cookie), "session")
	if err != nil {
		return err
	}
	if err := s.at.KeepSession(ctx, sha256.Sum256([]byte(cookie)), seal(box, data), ends); err != nil {
		return fmt.Errorf("keeping the session: %w", err)
	}
	return nil
}

// DeleteCtx implements scs.CtxStore.
func (s store) DeleteCtx(ctx context.Context, cookie string) error {
	if err := s.at.DropSession(ctx, sha256.Sum256([]byte(cookie))); err != nil {
		return fmt.Errorf("dropping the session: %w", err)
	}
	return nil
}

// errNoContext is the error of the methods of scs.Store, which scs calls only on a store that is no scs.CtxStore.
var errNoContext = errors.New("sessions are read with a context only")

// Find implements scs.Store.
func (store) Find(string) ([]byte, bool, error) { return nil, false, errNoContext }

// Commit implements scs.Store.
func (store) Commit(string, []byte, time.Time) error { return errNoContext }

// Delete implements scs.Store.
func (store) Delete(string) error { return errNoContext }

// deriveKey derives a key for one purpose from a secret.
func deriveKey(from []byte, purpose string) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, from, nil, "brevet console "+purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("deriving a key: %w", err)
	}
	return key, nil
}

// sealer returns an AEAD for one purpose. It derives the key from a secret.
func sealer(from []byte, purpose string) (cipher.AEAD, error) {
	key, err := deriveKey(from, purpose)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("deriving a key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func seal(box cipher.AEAD, data []byte) []byte {
	return box.Seal(nil, nil, data, nil) //nolint:gosec // it draws a nonce itself
}

func unseal(box cipher.AEAD, sealed []byte) ([]byte, error) { return box.Open(nil, nil, sealed, nil) }
