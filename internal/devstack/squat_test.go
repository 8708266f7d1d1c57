package devstack_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// squatter is another user's program on Vault's port. It answers so that a client continues, and records each request.
type squatter struct {
	server *http.Server
	met    chan struct{} // closes at the first connection

	once sync.Once
	mu   sync.Mutex
	got  []string
}

func squat(addr string) (*squatter, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &squatter{met: make(chan struct{})}
	s.server = &http.Server{
		Handler: s, ReadHeaderTimeout: time.Second,
		ConnState: func(net.Conn, http.ConnState) { s.once.Do(func() { close(s.met) }) },
	}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

func (s *squatter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	s.mu.Lock()
	s.got = append(s.got, strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("X-Vault-Token"), string(body)}, " "))
	s.mu.Unlock()
	_, _ = io.WriteString(w, `{"initialized": true, "sealed": false}`)
}

func (s *squatter) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// end stops the squatter. It fails the test if the squatter got a request, or if nothing connected to it.
func (s *squatter) end(t *testing.T) {
	t.Helper()
	_ = s.server.Close()
	select {
	case <-s.met:
	default:
		t.Error("nobody connected to the squatter: the test proves nothing")
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("the squatter was sent %q, want nothing", got)
	}
}

func hostOf(t *testing.T, vault *devstack.Vault) string {
	t.Helper()
	u, err := url.Parse(vault.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func TestPortSquatterOfAStoppedVaultGetsNoSecret(t *testing.T) {
	t.Parallel()
	vault := start(t, t.TempDir()).Vault
	write(t, vault, "sys/policies/acl/kept", map[string]any{"policy": `path "a" {}`})
	if err := vault.Stop(); err != nil {
		t.Fatal(err)
	}
	thief, err := squat(hostOf(t, vault))
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(context.Context) error{
		"Start": vault.Start, "Unseal": vault.Unseal, "Seal": vault.Seal,
	} {
		if err := do(t.Context()); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		} else if name == "Start" && !strings.Contains(err.Error(), "another program has its port") {
			t.Errorf("Start: got %v, want the reason", err)
		}
	}
	thief.end(t)
	if err := vault.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, vault, "sys/policies/acl/kept"); got["policy"] != `path "a" {}` {
		t.Errorf("after the squatter left: got %v, want the policy", got)
	}
}
