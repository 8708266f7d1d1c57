package registries_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/registries"
)

// watched is a test whose errors are kept.
type watched struct {
	testing.TB
	mu    sync.Mutex
	error string
}

func (w *watched) Errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.error += fmt.Sprintf(format, args...)
}

// A call that identifies its caller, or that reads no package, is an error of the test that makes it.
func TestRegistriesFindWrongCalls(t *testing.T) {
	w := &watched{TB: t}
	r := registries.Start(w)
	roots := x509.NewCertPool()
	roots.AddCert(r.Authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	for _, tc := range []struct{ method, host, path, header, want string }{
		{"GET", registries.NPM, "/greeter", "", ""},
		{"GET", registries.NPM, "/@acme%2fwords", "", ""},
		{"HEAD", registries.PyPI, "/simple/acme-words/", "", ""},
		{"GET", registries.Proxy, "/example.net/!acme/!old/@v/list", "", ""},
		{"GET", registries.NPM, "/greeter", "Authorization", "the header Authorization"},
		{"GET", registries.NPM, "/greeter", "Npm-Otp", "the header Npm-Otp"},
		{"GET", registries.PyPI, "/simple/acme-words/", "Cookie", "the header Cookie"},
		{"GET", registries.PyPI, "/simple/acme-words/", "Npm-Session", "the header Npm-Session"},
		{"GET", registries.SumDB, "/latest", "X-Anything", "the header X-Anything"},
		{"PUT", registries.NPM, "/greeter", "", "reads nothing"},
		{"POST", registries.NPM, "/-/npm/v1/security/advisories/bulk", "", "reads nothing"},
		{"GET", registries.NPM, "/@acme/words", "", "no package has this path"},
		{"GET", registries.NPM, "/-/v1/search?text=a", "", "no package has this path"},
		{"GET", registries.Files, "/simple/acme-words/", "", "no package has this path"},
		{"GET", registries.Proxy, "/example.net/acme/words", "", "no package has this path"},
	} {
		_, port, _ := net.SplitHostPort(r.At(tc.host))
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "https://localhost:"+port+tc.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if tc.header != "" {
			req.Header.Set(tc.header, "mine")
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if w.error == "" != (tc.want == "") || !strings.Contains(w.error, tc.want) || (resp.StatusCode == http.StatusOK) != (tc.want == "") {
			t.Errorf("%s %s%s: got %d and the error %q, want %q in it", tc.method, tc.host, tc.path, resp.StatusCode, w.error, tc.want)
		}
		w.error = ""
	}
}
