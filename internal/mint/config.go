package mint

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/brevet-dev/brevet/internal/github"
)

// Config holds the address of Vault, the broker's login, and the key to sign with.
type Config struct {
	// Addr is Vault's URL. Plain http is accepted only for a loopback address, where Vault Agent may listen.
	Addr string
	// CAFile is a PEM file with the only authorities that may sign Vault's certificate. If empty, the system's authorities are
	// trusted.
	CAFile string
	// Namespace is the Vault Enterprise or OpenBao namespace; empty for none.
	Namespace string
	// Auth is the broker's own login.
	Auth Auth
	// Mount is where the Transit engine is mounted; empty means "transit".
	Mount string
	// SigningKey is the name of the Transit key for ES256, of type ecdsa-p256. The keys for EdDSA ("-eddsa") and RS256 ("-rs256") are
	// named after it.
	SigningKey string
	// TokenRole is the role of Vault's token store that creates a token for each dynamic credential, and the carriers of database
	// logins. A credential with a lease ends with its token. Empty means "brevet".
	TokenRole string
	// JWKSMaxAge is how long verifiers may cache the JWKS; zero means 5 minutes.
	JWKSMaxAge time.Duration
	// Refresh is how often the key's versions are read; zero means 30 seconds.
	Refresh time.Duration
	// MaxTTL is the longest life of a token signed with the key: a replaced version stays published that long.
	MaxTTL time.Duration
	// Timeout bounds each call to Vault; zero means 5 seconds.
	Timeout time.Duration
	// GitHub has the GitHub Apps, by name, whose installation access tokens scopes can issue.
	GitHub map[string]GitHubApp
	// Now is the clock.
	Now func() time.Time
	// Log receives the warnings and events of Run.
	Log *slog.Logger
	// Transport, if set, wraps the connections to Vault and to GitHub, for tracing. It sees each request as it is sent and each answer
	// as it arrives, before any check. Both hold secrets.
	Transport func(http.RoundTripper) http.RoundTripper
}

// GitHubApp is a GitHub App. Its key is in Vault, at scopes.GitHubKeys, under the App's name.
type GitHubApp struct {
	github.App
	// Roots verify the certificate of GitHub's REST API; nil means the system's authorities.
	Roots *x509.CertPool
}

// Auth is the broker's own login at Vault. Exactly one of its fields is set.
type Auth struct {
	// TokenFile holds a token that another program, such as Vault Agent, keeps fresh. It is read again when it changes.
	TokenFile string
	AppRole   *AppRole
	JWT       *JWT
}

// AppRole logs in with a role id and a secret id.
type AppRole struct {
	Mount        string // empty means "approle"
	RoleID       string
	SecretIDFile string // read at each login
}

// JWT logs in with a token of another issuer, at Vault's jwt or kubernetes method. Both take the same request.
type JWT struct {
	Mount string // empty means "jwt"
	Role  string
	// Either TokenFile or Token supplies the JWT. Each login reads it again.
	TokenFile string
	Token     func(ctx context.Context) (string, error)
}

const defaultTokenRole = "brevet"

var (
	keyName   = regexp.MustCompile(`^(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,126})$`)
	mountName = regexp.MustCompile(`^(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}){0,7})$`)
)

func (c Config) check() error {
	if err := checkAddr(c.Addr); err != nil {
		return err
	}
	for _, rule := range []struct {
		ok   bool
		says string
	}{
		{mountName.MatchString(c.Mount), "the Transit mount is not a plain path"},
		{keyName.MatchString(c.SigningKey), "the signing key is missing or not a plain name"},
		{keyName.MatchString(c.TokenRole), "the token role is not a plain name"},
		{c.JWKSMaxAge > 0 && c.Refresh > 0 && c.Timeout > 0, "the JWKS max age, refresh and timeout must be positive"},
		{c.MaxTTL > 0, "the longest life of a token must be given"},
		{c.Now != nil, "a clock is needed"},
		{c.Log != nil, "a logger is needed"},
	} {
		if !rule.ok {
			return fmt.Errorf("%w: %s", ErrConfig, rule.says)
		}
	}
	set, r, j := 0, c.Auth.AppRole, c.Auth.JWT
	for _, given := range []bool{c.Auth.TokenFile != "", r != nil, j != nil} {
		if given {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%w: exactly one login is needed, got %d", ErrConfig, set)
	}
	if r != nil && (r.Mount != "" && !mountName.MatchString(r.Mount) || r.RoleID == "" || r.SecretIDFile == "") {
		return fmt.Errorf("%w: an AppRole login needs a plain mount, a role id and a secret id file", ErrConfig)
	}
	if j != nil && (j.Mount != "" && !mountName.MatchString(j.Mount) || j.Role == "" || (j.TokenFile == "") == (j.Token == nil)) {
		return fmt.Errorf("%w: a JWT login needs a plain mount, a role and either a token file or a source", ErrConfig)
	}
	return nil
}

// checkAddr rejects plain http across a network: an eavesdropper could read the broker's Vault token.
func checkAddr(addr string) error {
	u, err := url.Parse(addr)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%w: the address of Vault is not a plain URL", ErrConfig)
	}
	ip := net.ParseIP(u.Hostname())
	loopback := u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
	switch {
	case u.Scheme == "https", u.Scheme == "http" && loopback:
		return nil
	case u.Scheme == "http":
		return fmt.Errorf("%w: plain http to Vault is for loopback only, use https", ErrConfig)
	default:
		return fmt.Errorf("%w: the address of Vault must start with https", ErrConfig)
	}
}
