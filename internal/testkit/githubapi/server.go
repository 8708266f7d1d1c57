// Package githubapi is a strict double of GitHub for tests: GitHub Apps and their installation tokens, a part of the REST API and
// of GraphQL, and git over HTTPS. It answers as GitHub (api.github.com, github.com) and as GitHub Enterprise Server (/api/v3,
// /api/graphql) at once.
//
// It follows what GitHub publishes: the OpenAPI description (spec/github.json, from the npm package @octokit/openapi), with which
// it compares each request and answer of the REST API; "Generating a JSON Web Token (JWT) for a GitHub App"; "Rate limits for the
// REST API"; and the GraphQL reference. Git's own git-http-backend serves the repositories.
//
// It must never be more lenient than GitHub: what it does not know it refuses. All repositories are private.
package githubapi

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// App is a GitHub App.
type App struct {
	ID       int64
	ClientID string
	Slug     string
	// Keys are the public keys of the App.
	Keys          []*rsa.PublicKey
	Installations []Installation
}

// Installation is the installation of an App on an account.
type Installation struct {
	ID    int64
	Owner string
	// Repositories are the names that the owner selected, without the owner.
	Repositories []string
	// Permissions are those that the owner granted. GitHub adds "metadata: read".
	Permissions map[string]string
	Suspended   bool
}

// Options say what a double of GitHub has.
type Options struct {
	Apps []App
	// Repositories are full names of repositories that exist besides those of installations.
	Repositories []string
	// Folder keeps git repositories, as owner/name.git.
	Folder string
	// Now is the clock. Nil means the system's.
	Now func() time.Time
}

// Server is a double of GitHub. It is safe for concurrent use.
type Server struct {
	doc    *openapi3.T
	apps   []App
	folder string
	now    func() time.Time
	log    *log.Logger

	listener *listener
	http     *http.Server
	ca       *authority

	mu         sync.Mutex
	ahead      time.Duration
	behaviour  Behaviour
	tokens     map[string]*issued
	repos      map[string]*repository // by full name in lower case
	calls      []Call
	violations []string
	requests   int
}

// New starts a double on a port of the loopback address.
func New(ctx context.Context, o Options) (*Server, error) {
	doc, err := document()
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	s := &Server{
		doc: doc, apps: o.Apps, folder: o.Folder, now: o.Now, ca: ca,
		tokens: map[string]*issued{}, repos: map[string]*repository{}, log: log.New(os.Stderr, "githubapi: ", log.LstdFlags),
	}
	if s.now == nil {
		s.now = time.Now
	}
	names := o.Repositories
	for _, app := range o.Apps {
		for _, in := range app.Installations {
			for _, name := range in.Repositories {
				names = append(names, in.Owner+"/"+name)
			}
		}
	}
	for _, full := range names {
		if err := s.addRepository(full); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(s.CAFile(), ca.pem, 0o600); err != nil {
		return nil, err
	}
	raw, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.listener = &listener{Listener: raw, open: map[net.Conn]struct{}{}}
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(discard{}, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{ca.server}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12},
	}
	go func() {
		if err := s.http.ServeTLS(s.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.log.Print(err)
		}
	}()
	return s, nil
}

// Start starts a double for the time of a test. At the end, the test fails if the double answered other than GitHub's description
// says. An empty Folder becomes one of the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Folder == "" {
		o.Folder = t.TempDir()
	}
	s, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		for _, one := range s.Violations() {
			t.Errorf("the double of GitHub is wrong: %s", one)
		}
	})
	return s
}

// Close stops the double and cuts all connections.
func (s *Server) Close() { _ = s.http.Close() }

// Addr returns the address and port of the double.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL returns the URL that stands for https://api.github.com.
func (s *Server) URL() string { return "https://" + s.Addr() }

// EnterpriseURL returns the URL of the REST API as GitHub Enterprise Server has it.
func (s *Server) EnterpriseURL() string { return s.URL() + "/api/v3" }

// CloneURL returns the URL of a repository for git.
func (s *Server) CloneURL(full string) string { return s.URL() + "/" + full + ".git" }

// CAFile returns the path of the PEM certificate of the authority that vouches for the double: for its address, localhost,
// github.com and api.github.com.
func (s *Server) CAFile() string { return filepath.Join(s.folder, "ca.pem") }

// Roots returns the authority that vouches for the double.
func (s *Server) Roots() *x509.CertPool { return s.ca.roots() }

// Advance moves the double's clock.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
}

// clock returns the double's time. The caller holds the lock.
func (s *Server) clock() time.Time { return s.now().Add(s.ahead) }

// Violations returns what the double answered other than GitHub's description says.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.violations...)
}

// Call is a request that the double got.
type Call struct {
	Time   time.Time
	Method string
	Path   string
	// Operation is GitHub's name, such as issues/list-for-repo; "graphql"; "git read"; "git write"; or "".
	Operation string
	// Status is 0 if the connection was cut instead of an answer.
	Status int
	// HashedToken is that of the installation token of the request, as GitHub's audit log has it; or "".
	HashedToken string
	UserAgent   string
	// Problem says how the request differs from GitHub's description; or "".
	Problem string
}

// Calls returns the requests that the double got, oldest first.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// discard drops the log of the HTTP server: cut connections are part of tests.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// repository is one repository of the double.
type repository struct {
	id          int64
	owner, name string
	issues      []*issue
}

type issue struct {
	number   int
	title    string
	body     string
	labels   []string
	state    string
	created  time.Time
	comments []comment
}

type comment struct {
	id      int64
	body    string
	created time.Time
}

func (r *repository) full() string { return r.owner + "/" + r.name }

func (s *Server) addRepository(full string) error {
	owner, name, ok := strings.Cut(full, "/")
	if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("the repository %q is not owner/name", full)
	}
	key := strings.ToLower(full)
	if s.repos[key] == nil {
		s.repos[key] = &repository{id: int64(1296269 + len(s.repos)), owner: owner, name: name}
	}
	return nil
}

// AddIssue opens an issue, and returns its number.
func (s *Server) AddIssue(full, title, body string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	repo := s.repos[strings.ToLower(full)]
	if repo == nil {
		panic("no repository " + full)
	}
	return s.addIssue(repo, title, body, nil).number
}

func (s *Server) addIssue(repo *repository, title, body string, labels []string) *issue {
	one := &issue{number: len(repo.issues) + 1, title: title, body: body, labels: labels, state: "open", created: s.clock().UTC().Truncate(time.Second)}
	repo.issues = append(repo.issues, one)
	return one
}
