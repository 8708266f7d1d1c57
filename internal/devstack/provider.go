package devstack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// DevPerson is a person that a Provider can log in.
type DevPerson struct {
	// Username is the subject and the preferred_username.
	Username string
	Name     string
	Groups   []string
	// LoginAge is how old the person's login is when a token is issued. If it is negative, tokens lack auth_time.
	LoginAge time.Duration
}

// ProviderConfig configures a Provider.
type ProviderConfig struct {
	// Address is the address to listen on: a host and port of loopback, 127.0.0.1:0 for a free port.
	Address string
	// ClientID is the id of the only client. It has no secret.
	ClientID string
	People   []DevPerson
	// Now is the clock; nil is the system's clock.
	Now func() time.Time
	// StateDir holds the signing key, so that logins outlive a restart. If it is "", the key stays in memory.
	StateDir string
}

// Provider is an OpenID Connect provider FOR DEVELOPMENT ONLY: there are no passwords, and THE USER WHO RUNS IT CAN LOG IN AS
// ANYBODY that it knows. On Linux it refuses other users of the machine; elsewhere they can log in too. It serves http on loopback and supports the authorization code flow with PKCE (S256)
// and the device flow of RFC 8628. It is safe for concurrent use.
type Provider struct {
	cfg    ProviderConfig
	issuer string
	kid    string
	key    *ecdsa.PrivateKey
	server *http.Server
	done   chan struct{}

	mu      sync.Mutex              // also guards cfg.People
	codes   map[string]codeGrant    // by code
	devices map[string]*deviceGrant // by device code
}

// idTokenLife is short, so that a developer who changes a person's groups sees the effect soon.
const idTokenLife = 10 * time.Minute

// NewProvider starts a provider, which runs until Close.
func NewProvider(cfg ProviderConfig) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("starting the provider: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &Provider{
		cfg: cfg, done: make(chan struct{}), codes: make(map[string]codeGrant), devices: make(map[string]*deviceGrant),
	}
	if err := p.loadKey(); err != nil {
		return nil, fmt.Errorf("loading the provider's key: %w", err)
	}
	listener, err := net.Listen("tcp", cfg.Address) //nolint:noctx // answers at once
	if err != nil {
		return nil, fmt.Errorf("starting the provider: %w", err)
	}
	p.issuer = "http://" + listener.Addr().String()
	p.server = &http.Server{Handler: p.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, ErrorLog: quiet.ServerLog(slog.New(slog.DiscardHandler))}
	go func() {
		defer close(p.done)
		_ = p.server.Serve(listener) // returns only after Close
	}()
	return p, nil
}

func (cfg ProviderConfig) check() error {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s is not on loopback: anybody could be anybody", cfg.Address)
	}
	if cfg.ClientID == "" || len(cfg.People) == 0 {
		return errors.New("the client id or the people are missing")
	}
	for _, person := range cfg.People {
		if person.Username == "" {
			return errors.New("a person has no username")
		}
	}
	return nil
}

// Issuer returns the provider's issuer: an http URL of this machine.
func (p *Provider) Issuer() string { return p.issuer }

// Close closes all connections and frees the address. Further calls do nothing.
func (p *Provider) Close() error {
	err := p.server.Close()
	<-p.done
	if err != nil {
		return fmt.Errorf("closing the provider: %w", err)
	}
	return nil
}

// IDToken issues an ID token to one of the people, without a login. It is signed with ES256 and lives for ten minutes.
func (p *Provider) IDToken(username string) (string, error) {
	return p.IDTokenFor(p.cfg.ClientID, username)
}

// IDTokenFor is like IDToken, but for another client or any other audience.
func (p *Provider) IDTokenFor(audience, username string) (string, error) {
	return p.sign(username, audience, "")
}

// Person returns a source of ID tokens for one of the people, in the form that clients accept.
func (p *Provider) Person(username string) ProviderPerson { return ProviderPerson{p, username} }

// ProviderPerson issues ID tokens for one person.
type ProviderPerson struct {
	provider *Provider
	username string
}

// IDToken issues a new token on each call.
func (s ProviderPerson) IDToken(context.Context) (string, error) {
	return s.provider.IDToken(s.username)
}

// Know adds a person, or changes the claims of a known person in later tokens.
func (p *Provider) Know(person DevPerson) {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(p.cfg.People), func(d DevPerson) bool { return d.Username == person.Username })
	p.cfg.People = append(others, person)
}

// people returns everybody whom the provider knows now.
func (p *Provider) people() []DevPerson {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.People
}

func (p *Provider) person(username string) (DevPerson, bool) {
	people := p.people()
	i := slices.IndexFunc(people, func(d DevPerson) bool { return d.Username == username })
	if i < 0 {
		return DevPerson{}, false
	}
	return people[i], true
}

func (p *Provider) sign(username, audience, nonce string) (string, error) {
	person, ok := p.person(username)
	if !ok {
		return "", fmt.Errorf("issuing an ID token: there is no %q", username)
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: p.kid}},
		new(jose.SignerOptions).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("issuing an ID token: %w", err)
	}
	now := p.cfg.Now()
	claims := map[string]any{
		"iss": p.issuer, "sub": person.Username, "aud": audience, "preferred_username": person.Username,
		"name": person.Name, "groups": append([]string{}, person.Groups...),
		"iat": jwt.NewNumericDate(now), "exp": jwt.NewNumericDate(now.Add(idTokenLife)),
	}
	if person.LoginAge >= 0 {
		claims["auth_time"] = jwt.NewNumericDate(now.Add(-person.LoginAge))
	}
	token, err := jwt.Signed(signer).Claims(claims).Claims(nonceClaim{nonce}).Serialize()
	if err != nil {
		return "", fmt.Errorf("issuing an ID token: %w", err)
	}
	return token, nil
}

// nonceClaim omits the nonce if the client sent none.
type nonceClaim struct {
	Nonce string `json:"nonce,omitempty"`
}

// loadKey loads the key from StateDir, or creates one.
func (p *Provider) loadKey() error {
	der, err := p.storedKey()
	if err != nil {
		return err
	}
	if p.key, err = parseKey(der); err != nil {
		return err
	}
	p.kid, err = keyID(p.key)
	return err
}

func (p *Provider) storedKey() ([]byte, error) {
	file := filepath.Join(p.cfg.StateDir, "provider.key")
	if p.cfg.StateDir != "" {
		if der, err := os.ReadFile(file); !errors.Is(err, os.ErrNotExist) {
			return der, err
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil || p.cfg.StateDir == "" {
		return der, err
	}
	if err := os.MkdirAll(p.cfg.StateDir, 0o700); err != nil {
		return nil, err
	}
	return der, writePrivate(file, der)
}
