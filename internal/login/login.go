// Package login logs a person in at their OpenID Connect provider by the device flow (RFC 8628), and keeps the login fresh in
// a file.
//
// It must never print a token, send one in the clear to another machine, give one to another server than the one that the person
// logged in to, send one to the provider by another proxy or verified by other roots than at the login, or use a login that other
// users could read.
package login

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
)

// renewBefore is how long before its expiry an ID token is renewed, so that none expires in transit.
const renewBefore = time.Minute

// ErrEnded means that the person has to log in again.
var ErrEnded = errors.New("you are not logged in, or your login has expired: run brevet login")

// Server is a broker, and how a client verifies it.
type Server struct {
	// URL is the scheme and the host.
	URL string `json:"url"`
	// ID is the broker's SPIFFE ID, or empty if Roots verify the broker's host name.
	ID string `json:"spiffe_id,omitempty"`
	// Roots is where the roots come from: a file, or a Workload API. Empty means the system's roots.
	Roots string `json:"roots,omitempty"`
}

// String describes a server for a message.
func (s Server) String() string {
	var text strings.Builder
	text.WriteString(safetext.Text(s.URL))
	for _, part := range []string{s.ID, s.Roots} {
		if part != "" {
			text.WriteString(", " + safetext.Text(part))
		}
	}
	return text.String()
}

// ErrOtherServer means that the person is logged in to another server.
var ErrOtherServer = errors.New("your login is for another server")

// Network is how a command reaches the provider, as its variables say. Whoever sets them can read what it sends there.
type Network struct {
	// Proxy is the URL of the HTTP proxy without a user and a password. Empty means none.
	Proxy string `json:"proxy,omitempty"`
	// Roots are the variables that replace the system's roots, with their values. Empty means the system's roots.
	Roots string `json:"roots,omitempty"`
}

// String describes a network for a message.
func (n Network) String() string {
	return fmt.Sprintf("the proxy %s and the roots %s", cmp.Or(safetext.Text(n.Proxy), "none"), cmp.Or(safetext.Text(n.Roots), "of the system"))
}

// ErrOtherNetwork means that the refresh token would go to the provider by another proxy, or verified by other roots, than at the
// login.
var ErrOtherNetwork = errors.New("the proxy or the roots for your provider differ from those of your login")

// Login is a logged-in person with their tokens.
type Login struct {
	// Server is the only server that gets the ID token.
	Server Server `json:"server"`
	// Network is the only way by which the provider gets the refresh token.
	Network  Network   `json:"network,omitzero"`
	Issuer   string    `json:"issuer"`
	ClientID string    `json:"client_id"`
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Groups   []string  `json:"groups"`
	Expires  time.Time `json:"expires_at"`

	IDToken      secret.Text `json:"-"`
	RefreshToken secret.Text `json:"-"`
}

// stored is the content of the login file. That is the only place where the tokens are written.
type stored struct {
	Login

	IDToken      string `json:"id_token"`
	RefreshToken string `json:"refresh_token,omitempty"`
}

// Renewable reports whether the provider gave a refresh token.
func (l Login) Renewable() bool { return l.RefreshToken.Reveal() != "" }

// Store keeps the login of one person in a file. It is safe for concurrent use, and other processes may use the same file.
type Store struct {
	// Path is the file, in a folder of the person.
	Path string
	// Server is the server that gets the ID tokens, as the caller names it now.
	Server Server
	// Network is the network of the caller now.
	Network Network
	Now     func() time.Time
	// Proxy chooses the HTTP proxy for calls to the provider. Nil means none.
	Proxy func(*http.Request) (*url.URL, error)

	mu sync.Mutex
}

// Read returns the stored login, which may have expired. It returns [ErrEnded] if there is none.
func (s *Store) Read() (Login, error) {
	info, err := os.Stat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Login{}, ErrEnded
	case err != nil:
		return Login{}, fmt.Errorf("reading the login: %w", err)
	case info.Mode().Perm()&0o077 != 0:
		return Login{}, fmt.Errorf("other users can read %s: run brevet login again", s.Path)
	}
	text, err := secret.ReadFile(s.Path)
	if err != nil {
		return Login{}, err
	}
	var file stored
	if json.Unmarshal([]byte(text), &file) != nil || file.IDToken == "" || file.Server.URL == "" {
		return Login{}, fmt.Errorf("%s has the format of another version: run brevet login again", s.Path)
	}
	file.Login.IDToken, file.Login.RefreshToken = secret.New(file.IDToken), secret.New(file.RefreshToken)
	return file.Login, nil
}

// Write stores a login in place of the last one.
func (s *Store) Write(l Login) error {
	text, err := json.Marshal(stored{Login: l, IDToken: l.IDToken.Reveal(), RefreshToken: l.RefreshToken.Reveal()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o700); err != nil {
		return err
	}
	return secret.WriteFile(s.Path, string(text)+"\n")
}

// IDToken returns the ID token of the person for the store's server. It returns [ErrOtherServer] if the person logged in to another
// one: whoever chooses the server of a command, for example by a variable, must not get the token. IDToken reads the login each
// time, because another process may have renewed it, and renews it shortly before it expires.
func (s *Store) IDToken(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.Read()
	if err == nil && l.Server != s.Server {
		err = fmt.Errorf("%w: it is for %s, and does not go to %s. To use that server, run brevet login with --server, and with the same flags or variables",
			ErrOtherServer, l.Server, s.Server)
	}
	if err == nil && l.Expires.Sub(s.Now()) <= renewBefore && l.Renewable() {
		l, err = s.renewOnce(ctx)
	}
	switch {
	case err != nil:
		return "", err
	case !s.Now().Before(l.Expires):
		return "", ErrEnded
	default:
		return l.IDToken.Reveal(), nil
	}
}

// renewOnce renews the login unless another process has just done so, because a refresh token may be valid for one use
// only. If the provider is unavailable, renewOnce returns the old login for as long as its token is valid.
func (s *Store) renewOnce(ctx context.Context) (Login, error) {
	lock, err := os.OpenFile(s.Path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Login{}, fmt.Errorf("locking the login: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Login{}, fmt.Errorf("locking the login: %w", err)
	}
	l, err := s.Read()
	if err != nil || l.Expires.Sub(s.Now()) > renewBefore {
		return l, err
	}
	renewed, err := s.Renew(ctx, l)
	switch {
	case err != nil && !errors.Is(err, ErrEnded) && s.Now().Before(l.Expires):
		return l, nil
	case err != nil:
		return l, err
	}
	renewed.Server, renewed.Network = l.Server, l.Network
	if !renewed.Renewable() {
		renewed.RefreshToken = l.RefreshToken
	}
	if err := s.Write(renewed); err != nil {
		return l, fmt.Errorf("storing the login: %w", err)
	}
	return renewed, nil
}
