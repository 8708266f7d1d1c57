package hostile_test

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
	"golang.org/x/net/dns/dnsmessage"
)

const whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// delivered is one call of a webhook.
type delivered struct {
	header http.Header
	body   []byte
}

// receiver is a server that takes webhooks as the documentation says: it verifies each, and processes none twice.
type receiver struct {
	*httptest.Server
	took chan delivered
	mu   sync.Mutex
	seen map[string]bool
	now  func() time.Time
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{took: make(chan delivered, 100), seen: map[string]bool{}, now: time.Now}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("reading a call: %v", err)
		}
		id, err := client.VerifyWebhook(req.Header, body, secret.New(whsec), r.now())
		r.mu.Lock()
		again := r.seen[id]
		r.seen[id] = err == nil
		r.mu.Unlock()
		if err != nil || again {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.took <- delivered{req.Header.Clone(), body}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) spec(name string) webhook.Spec {
	roots := x509.NewCertPool()
	roots.AddCert(r.Certificate())
	return webhook.Spec{
		Name: name, Secret: secret.New(whsec),
		Target: safehttp.Target{URL: secret.New(r.URL + "/hook"), Roots: roots, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Events: []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided}, Within: []string{people.Everywhere},
	}
}

func (r *receiver) next(t *testing.T) delivered {
	t.Helper()
	select {
	case got := <-r.took:
		return got
	case <-time.After(patience):
		t.Fatal("nothing is received")
	}
	return delivered{}
}

func outbox(t *testing.T, s *testkit.Stack) *ledger.Outbox {
	t.Helper()
	box, err := ledger.OpenOutbox(t.Context(), ledger.Config{URL: s.DB.BrokerURL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// deliver runs a courier of each replica until the test ends.
func (w *world) deliver(t *testing.T, specs ...webhook.Spec) {
	t.Helper()
	for _, s := range w.s {
		box := outbox(t, s)
		for _, spec := range specs {
			if err := box.Subscribe(t.Context(), spec.Name); err != nil {
				t.Fatal(err)
			}
		}
		c, err := webhook.New(webhook.Config{
			Webhooks: specs, Outbox: box, Link: "https://brevet.test/v1/approvals/{id}", Now: time.Now,
			Log: slog.New(slog.NewTextHandler(s.Log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		t.Cleanup(func() { cancel(); <-done })
	}
}

// replayedWebhook receives a real webhook, and sends altered and repeated copies of it.
func replayedWebhook(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	r := newReceiver(t)
	w.deliver(t, r.spec("one"))
	waiting(t, w.s[0].Client(t, agent), writing("t-1"))
	real := r.next(t)
	send := func(name string, change func(h http.Header, body []byte) []byte) {
		header := real.header.Clone()
		body := change(header, append([]byte{}, real.body...))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/hook", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := r.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: got %d, want 401", name, resp.StatusCode)
		}
	}
	same := func(_ http.Header, b []byte) []byte { return b }
	send("again", same)
	send("changed", func(_ http.Header, b []byte) []byte {
		return []byte(strings.Replace(string(b), `"pending"`, `"approved"`, 1))
	})
	send("another id", func(h http.Header, b []byte) []byte { h.Set("Webhook-Id", "msg_"+marker); return b })
	send("a new time", func(h http.Header, b []byte) []byte { h.Set("Webhook-Timestamp", "9999999999"); return b })
	send("no signature", func(h http.Header, b []byte) []byte { h.Del("Webhook-Signature"); return b })
	send("another's", func(h http.Header, b []byte) []byte {
		h.Set("Webhook-Signature", "v1,"+strings.Repeat("A", 43)+"=")
		return b
	})
	send("another version", func(h http.Header, b []byte) []byte {
		h.Set("Webhook-Signature", strings.Replace(h.Get("Webhook-Signature"), "v1,", "v0,", 1))
		return b
	})
	for name, by := range map[string]time.Duration{"old": 6 * time.Minute, "ahead of time": -6 * time.Minute} {
		r.mu.Lock()
		r.seen, r.now = map[string]bool{}, func() time.Time { return time.Now().Add(by) }
		r.mu.Unlock()
		send(name, same)
	}
	if len(r.took) != 0 {
		t.Errorf("%d more were taken", len(r.took))
	}
}

// resolver returns a resolver whose answer changes: a public address first, then loopback.
func resolver(t *testing.T, asked *atomic.Int32) *net.Resolver {
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
					address = [4]byte{192, 0, 2, 1} // goes nowhere
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

// undialled configures webhooks with addresses that must not be called. Numeric hosts are refused before anything is sent.
func undialled(t *testing.T, _ *world) {
	w := newWorld(t, staffed)
	var reached atomic.Int32
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(inside.Close)
	away := httptest.NewTLSServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	sound := newReceiver(t)
	spec := func(name, url string) webhook.Spec {
		spec := sound.spec(name)
		spec.URL, spec.AllowPrivate = secret.New(url), nil
		return spec
	}
	for _, url := range []string{"https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://127.1/", "http://hooks.example/"} {
		cfg := webhook.Config{Webhooks: []webhook.Spec{spec("number", url)}, Outbox: outbox(t, w.s[0]), Now: time.Now, Log: slog.New(slog.DiscardHandler)}
		if _, err := webhook.New(cfg); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
	var asked atomic.Int32
	rebinds := spec("rebinds", "https://rebinds.example:"+port)
	rebinds.Resolver, rebinds.AllowPrivate = resolver(t, &asked), []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	redirects := spec("redirects", away.URL)
	redirects.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	redirects.Roots.AddCert(away.Certificate())
	bad := map[string]webhook.Spec{
		"literal": spec("literal", inside.URL), "mapped": spec("mapped", "https://[::ffff:127.0.0.1]:"+port),
		"name": spec("name", "https://localhost:"+port), "metadata": spec("metadata", "https://169.254.169.254/latest"),
		"private": spec("private", "https://[fd00::1]/"), "rebinds": rebinds,
	}
	all := []webhook.Spec{redirects, sound.spec("sound")}
	for _, one := range bad {
		all = append(all, one)
	}
	w.deliver(t, all...)
	waiting(t, w.s[0].Client(t, agent), writing("t-1"))
	sound.next(t)
	for name := range bad {
		eventually(t, name+" is refused", func() bool {
			return refusesToCall(w, name, safehttp.ErrAddress.Error()) && (name != "rebinds" || asked.Load() > 1)
		})
	}
	eventually(t, "the redirect is refused", func() bool { return refusesToCall(w, "redirects", "307") })
	if n := reached.Load(); n != 0 {
		t.Errorf("got %d calls inside", n)
	}
}

func refusesToCall(w *world, name, why string) bool {
	for line := range strings.Lines(w.s[0].Log.String()) {
		if strings.Contains(line, "webhook="+name+" ") && strings.Contains(line, why) {
			return true
		}
	}
	return false
}
