// Package registries has doubles of the registries that npm, pip and go read from, each a server over TLS with its own port: the npm
// registry, PyPI with the host of its files, and the Go module proxy with the checksum database.
//
// They answer as their specifications say: the npm registry's package metadata, the simple repository API of PyPI (PEP 503, 658, 691),
// and the GOPROXY and checksum database protocols of https://go.dev/ref/mod.
//
// A double must never accept a call with anything that identifies the caller, and never one that reads no package: such a call is an
// error of the test. So a double knows which headers the clients need and which paths there are, and refuses all others.
package registries

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/mod/sumdb"
	"golang.org/x/mod/sumdb/note"
)

// The hosts of the registries.
const (
	NPM   = "registry.npmjs.org"
	PyPI  = "pypi.org"
	Files = "files.pythonhosted.org" // of PyPI
	Proxy = "proxy.golang.org"
	SumDB = "sum.golang.org"
)

// Hosts are all of them.
var Hosts = []string{NPM, PyPI, Files, Proxy, SumDB}

// Registries are the doubles of one test.
type Registries struct {
	// Authority signed the certificates. They are for the names of the hosts, and for localhost.
	Authority *x509.Certificate
	// SumKey is the public key of the checksum database, for GOSUMDB.
	SumKey string

	t     testing.TB
	ports map[string]string

	mu    sync.Mutex
	taken []string
}

// Start serves all registries until the test ends.
func Start(t testing.TB) *Registries {
	t.Helper()
	authority, key := testkit.SelfSigned(t)
	private, public, err := note.GenerateKey(rand.Reader, SumDB)
	if err != nil {
		t.Fatal(err)
	}
	r := &Registries{Authority: authority, SumKey: public, t: t, ports: map[string]string{}}
	certificate, certificateKey := testkit.Certificate(t, &x509.Certificate{
		DNSNames: append([]string{"localhost"}, Hosts...), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, key)
	secured := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: certificateKey}}, MinVersion: tls.VersionTLS12}
	serve := func(host string, paths *regexp.Regexp, answer http.HandlerFunc) {
		server := httptest.NewUnstartedServer(r.strict(host, paths, answer))
		server.EnableHTTP2, server.TLS = true, secured.Clone()
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
		server.StartTLS()
		t.Cleanup(server.Close)
		_, r.ports[host], _ = net.SplitHostPort(server.Listener.Addr().String())
	}
	serve(NPM, npmPaths, npm(t))
	python := pythonFiles(t)
	serve(Files, filePaths, python.files)
	serve(PyPI, simplePaths, python.simple(r.URL(Files)))
	sums := sumdb.NewServer(sumdb.NewTestServer(private, goSum))
	serve(Proxy, proxyPaths, proxy(t, sums))
	serve(SumDB, sumPaths, sums.ServeHTTP)
	return r
}

// At returns a host with its port.
func (r *Registries) At(host string) string { return host + ":" + r.ports[host] }

// URL returns the base URL of a host.
func (r *Registries) URL(host string) string { return "https://" + r.At(host) }

// Taken returns the calls since it last ran, each as the method and the URL without the port.
func (r *Registries) Taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.taken
	r.taken = nil
	return taken
}

// The headers that the clients send and that say nothing about who the caller is.
var (
	neutral = []string{"Accept", "Accept-Encoding", "Cache-Control", "Connection", "If-Modified-Since", "If-None-Match", "User-Agent"}
	ofNPM   = regexp.MustCompile(`^(Npm-(Auth-Type|Command|In-Ci|Scope|Session)|Pacote-(Integrity|Pkg-Id|Req-Type|Version))$`)
)

// strict refuses each call that does not read a package, or that has more headers than the clients need.
func (r *Registries) strict(host string, paths *regexp.Regexp, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		called := req.Method + " https://" + host + req.RequestURI
		r.mu.Lock()
		r.taken = append(r.taken, called)
		r.mu.Unlock()
		refuse := func(why string) {
			r.t.Errorf("%s reached the registry: %s", called, why)
			http.Error(w, why, http.StatusBadRequest)
		}
		unknown := ""
		for name := range req.Header {
			if !slices.Contains(neutral, name) && (host != NPM || !ofNPM.MatchString(name)) {
				unknown = name
			}
		}
		name, _, _ := net.SplitHostPort(req.Host)
		body, err := io.ReadAll(req.Body)
		switch {
		case name != host && name != "localhost":
			refuse("it is for the host " + req.Host)
		case req.Method != http.MethodGet && req.Method != http.MethodHead:
			refuse("the method reads nothing")
		case err != nil || len(body) > 0:
			refuse("it has a body")
		case !paths.MatchString(sent(req)):
			refuse("no package has this path")
		case unknown != "":
			refuse("it has the header " + unknown)
		default:
			answer(w, req)
		}
	}
}

// send answers with a file, or with 304 if the client has it.
func send(w http.ResponseWriter, r *http.Request, kind string, data []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("ETag", `"`+hexSum(data)+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// sent returns the path and the query of a call as they were sent, but for the exclamation marks that go escapes.
func sent(r *http.Request) string { return strings.ReplaceAll(r.RequestURI, "%21", "!") }
