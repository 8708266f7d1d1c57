package federation

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Names is a proxy that stands in for DNS: a client that uses it reaches doubles under the names that the systems publish. It
// only carries TLS, so the client checks the double's certificate for that name. It knows no other names.
type Names struct {
	// URL is the proxy's address, for HTTPS_PROXY.
	URL   string
	known map[string]string // address by name; a leading dot stands for one label
}

// Named is a double that has names.
type Named interface {
	at() (addr string, names []string)
}

func (l *listening) at() (string, []string) { return l.Addr, l.Names }

// NewNames starts a proxy that ends with the test.
func NewNames(t testing.TB, doubles ...Named) *Names {
	t.Helper()
	n := &Names{known: map[string]string{}}
	for _, d := range doubles {
		addr, names := d.at()
		for _, name := range names {
			n.known[strings.TrimPrefix(name, "*")] = addr
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.URL = "http://" + listener.Addr().String()
	server := &http.Server{Handler: n, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return n
}

// ServeHTTP implements http.Handler.
func (n *Names) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, port, _ := net.SplitHostPort(r.Host)
	addr := n.known[name]
	if _, parent, ok := strings.Cut(name, "."); ok && addr == "" {
		addr = n.known["."+parent]
	}
	if name == "localhost" { // with a port that says which double it is
		addr = net.JoinHostPort("127.0.0.1", port)
	} else if port != "443" {
		addr = ""
	}
	if r.Method != http.MethodConnect || addr == "" {
		http.Error(w, "no double has this name: "+r.Host, http.StatusBadGateway)
		return
	}
	far, err := (&net.Dialer{Timeout: time.Minute}).DialContext(r.Context(), "tcp", addr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = far.Close() }()
	near, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	_, _ = io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n")
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(far, buffered); _ = far.Close() })
	both.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
	both.Wait()
}
