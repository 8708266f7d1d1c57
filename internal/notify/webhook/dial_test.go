package webhook_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/net/dns/dnsmessage"
)

// H96: configurations that are refused.
func TestInvalidWebhooksAreRefused(t *testing.T) {
	t.Parallel()
	sound := webhook.Spec{
		Name: "one", Target: safehttp.Target{URL: secret.New("https://hooks.example/x")}, Secret: secret.New(whsec),
		Events: []broker.NoticeKind{broker.NoticeWaiting}, Within: []string{people.Everywhere},
	}
	if _, err := webhook.Body(sound, broker.Notice{}, ""); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*webhook.Spec){
		"http": func(s *webhook.Spec) { s.URL = secret.New("http://hooks.example/CANARY") },
		"http elsewhere": func(s *webhook.Spec) {
			s.URL, s.Plaintext = secret.New("http://hooks.example/CANARY"), safehttp.PlaintextLoopback
		},
		"userinfo":              func(s *webhook.Spec) { s.URL = secret.New("https://u:CANARY@hooks.example/") },
		"file":                  func(s *webhook.Spec) { s.URL = secret.New("file:///etc/CANARY") },
		"nothing":               func(s *webhook.Spec) { s.URL = secret.Text{} },
		"decimal":               func(s *webhook.Spec) { s.URL = secret.New("https://2130706433/") },
		"hexadecimal":           func(s *webhook.Spec) { s.URL = secret.New("https://0x7f000001/") },
		"octal":                 func(s *webhook.Spec) { s.URL = secret.New("https://0177.0.0.01/") },
		"short":                 func(s *webhook.Spec) { s.URL = secret.New("https://127.1/") },
		"a dot more":            func(s *webhook.Spec) { s.URL = secret.New("https://2130706433./") },
		"no secret":             func(s *webhook.Spec) { s.Secret = secret.Text{} },
		"a secret too short":    func(s *webhook.Spec) { s.Secret = secret.New("whsec_Q0FOQVJZ") },
		"a secret of its own":   func(s *webhook.Spec) { s.Secret = secret.New("CANARY") },
		"no events":             func(s *webhook.Spec) { s.Events = nil },
		"an event of no kind":   func(s *webhook.Spec) { s.Events = []broker.NoticeKind{"x"} },
		"no sandboxes":          func(s *webhook.Spec) { s.Within = nil },
		"a name that is a path": func(s *webhook.Spec) { s.Name = "a/b" },
		"another format":        func(s *webhook.Spec) { s.Format = "xml" },
	} {
		spec := sound
		spoil(&spec)
		if _, err := webhook.Body(spec, broker.Notice{}, ""); err == nil || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: got %v, want an error that quotes no secret", name, err)
		}
	}
}

// names returns a resolver whose answer changes: first a public address, then loopback.
func names(t *testing.T, asked *atomic.Int32) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				address := [4]byte{127, 0, 0, 1}
				if asked.Add(1) == 1 {
					address = [4]byte{192, 0, 2, 1} // not routable
				}
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: address},
				}}
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// H96: whatever a name resolves to, the client never connects to an address that is not allowed, and no redirect leads
// there.
func TestForbiddenAddressesAreNotDialled(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	var reached atomic.Int32
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(inside.Close)
	away := httptest.NewTLSServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	sound := newReceiver(t, nil)
	spec := func(name, url string) webhook.Spec {
		spec := sound.spec(name)
		spec.URL, spec.AllowPrivate = secret.New(url), nil
		return spec
	}
	var asked atomic.Int32
	rebinds := spec("rebinds", "https://rebinds.example:"+port)
	rebinds.Resolver = names(t, &asked)
	rebinds.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	redirects := spec("redirects", away.URL)
	redirects.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	redirects.Roots.AddCert(away.Certificate())
	courier(t, s, spec("literal", inside.URL), spec("mapped", "https://[::ffff:127.0.0.1]:"+port), spec("name", "https://localhost:"+port),
		spec("metadata", "https://169.254.169.254/latest"), rebinds, redirects, sound.spec("sound"))
	request := ask(t, s, agent)
	sound.wants(t, broker.NoticeWaiting, request, "pending")
	for _, name := range []string{"literal", "mapped", "name", "metadata"} {
		eventually(t, name+" refused", func() bool { return refusal(s, name, safehttp.ErrAddress.Error()) })
	}
	eventually(t, "redirect refused", func() bool { return refusal(s, "redirects", "307") })
	// The resolver's first answer is allowed but not routable, and the second is loopback.
	eventually(t, "rebinding refused", func() bool { return asked.Load() > 1 && refusal(s, "rebinds", safehttp.ErrAddress.Error()) })
	if n := reached.Load(); n != 0 {
		t.Errorf("got %d calls inside", n)
	}
}

func refusal(s *testkit.Stack, name, why string) bool {
	for line := range strings.Lines(s.Log.String()) {
		if strings.Contains(line, "webhook="+name+" ") && strings.Contains(line, why) {
			return true
		}
	}
	return false
}

// A webhook can use plain HTTP to a loopback address if the configuration allows it.
func TestPlainHTTPIsForLoopbackOnly(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withPeople)
	got := make(chan string, 10)
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Webhook-Id") }))
	t.Cleanup(plain.Close)
	courier(t, s, webhook.Spec{
		Name: "near", Target: safehttp.Target{URL: secret.New(plain.URL), Plaintext: safehttp.PlaintextLoopback}, Secret: secret.New(whsec),
		Events: []broker.NoticeKind{broker.NoticeWaiting}, Within: []string{people.Everywhere},
	})
	ask(t, s, agent)
	select {
	case id := <-got:
		if !strings.HasPrefix(id, "msg_") {
			t.Errorf("got the id %q", id)
		}
	case <-time.After(patience):
		t.Fatalf("waited %s for a call without TLS", patience)
	}
}
