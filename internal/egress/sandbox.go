package egress

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// SandboxConfig is one sandbox.
type SandboxConfig struct {
	// ID is its SPIFFE ID, for the log.
	ID string
	// Task is what its credentials belong to.
	Task string
	// Reason is why it asks, for whoever reads the record.
	Reason string
	// Broker asks as the sandbox, by its SVID.
	Broker *client.Client
	// Scopes are those that it may use, each with the parameters that no path says. Nil is all that Brevet lets it ask for.
	Scopes map[string]map[string]any
}

// Sandbox is what a gateway knows of one sandbox, and holds for it. Nothing of it is ever used for another.
type Sandbox struct {
	cfg         SandboxConfig
	rules       *rulebook
	credentials *credentialCache
	lines       lines
	pace        *pace
	bodies      *semaphore.Weighted // those that are read whole
	cancels     cancels
	// What it has at a time.
	sessions, tunnels, calls places
}

// Sandbox has the gateway serve one more sandbox.
func (g *Gateway) Sandbox(cfg SandboxConfig) (*Sandbox, error) {
	if cfg.Broker == nil || cfg.Task == "" || cfg.ID == "" {
		return nil, errors.New("egress: a sandbox has an ID, a task and a client that asks as it")
	}
	s := &Sandbox{
		cfg:   cfg,
		rules: &rulebook{broker: cfg.Broker, now: g.cfg.Now, only: cfg.Scopes},
		credentials: &credentialCache{
			gateway: g, broker: cfg.Broker, now: g.cfg.Now, task: cfg.Task, reason: cfg.Reason, slots: map[string]*slot{},
			log: g.cfg.Log.With("sandbox", cfg.ID, "task", cfg.Task),
		},
		pace: &pace{limit: rate.Limit(g.cfg.CallsPerSecond), burst: 2 * g.cfg.CallsPerSecond, of: map[string]*rate.Limiter{}},
		// Connections are not shared: what one sandbox leaves on one is nothing that another meets.
		lines: g.lines(), bodies: semaphore.NewWeighted(maxSignedAtOnce),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sandboxes = append(g.sandboxes, s)
	return s, nil
}

// places are how many there are of something.
type places struct{ taken atomic.Int64 }

// take has a place until leave is called. There is none beyond most.
func (p *places) take(most int64) (leave func(), ok bool) {
	if p.taken.Add(1) > most {
		p.taken.Add(-1)
		return nil, false
	}
	return sync.OnceFunc(func() { p.taken.Add(-1) }), true
}

// pace holds back a sandbox that calls a host too often.
type pace struct {
	limit rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

// mostPaced bounds the memory. Hosts are those of rules, and who is forgotten begins anew.
const mostPaced = 1000

func (p *pace) allows(host string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter := p.of[host]
	if limiter == nil {
		if len(p.of) >= mostPaced {
			clear(p.of)
		}
		limiter = rate.NewLimiter(p.limit, p.burst)
		p.of[host] = limiter
	}
	return limiter.AllowN(now, 1)
}

// Drop ends what a sandbox has under way, releases what was held for it, and refuses its calls from then on.
func (g *Gateway) Drop(ctx context.Context, s *Sandbox) {
	g.mu.Lock()
	g.sandboxes = slices.DeleteFunc(g.sandboxes, func(one *Sandbox) bool { return one == s })
	g.mu.Unlock()
	s.close(ctx)
}

func (s *Sandbox) close(ctx context.Context) {
	s.credentials.close(ctx)
	s.lines.one.CloseIdleConnections()
	s.lines.many.CloseIdleConnections()
}

// Caller tells whose a call is. Of calls in a tunnel it is asked each time about the CONNECT that opened it.
type Caller func(*http.Request) (*Sandbox, error)

// errCaller is for who does not say by what it may use the gateway.
var errCaller = errors.New("the proxy's user and password are missing, or are not this gateway's")

// Alone is for a listener that one sandbox can reach and nobody else, such as a Unix socket of its own.
func Alone(s *Sandbox) Caller { return func(*http.Request) (*Sandbox, error) { return s, nil } }

// WithPassword is for a listener that others on the machine can reach: the sandbox has a password, as the proxy's, or as its own
// (Basic or Bearer) where it calls the gateway by a base URL. It is good for this gateway alone.
func WithPassword(s *Sandbox, password secret.Text) Caller {
	want := sha256.Sum256([]byte(password.Reveal()))
	return func(r *http.Request) (*Sandbox, error) {
		given := passwordOf(r.Header.Values("Proxy-Authorization"))
		if given == "" && r.Method != http.MethodConnect && !r.URL.IsAbs() {
			given = passwordOf(r.Header.Values("Authorization"))
		}
		got := sha256.Sum256([]byte(given))
		if given == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return nil, errCaller
		}
		return s, nil
	}
}

// passwordOf reads the password of Basic credentials, or a bearer token.
func passwordOf(header []string) string {
	asked := &http.Request{Header: http.Header{"Authorization": header}}
	if _, password, ok := asked.BasicAuth(); ok { // the one parser of them
		return password
	}
	if scheme, token, _ := strings.Cut(asked.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return token
	}
	return ""
}

// Proven is for a listener with mutual TLS: the sandbox proves by its SVID who it is, to whoever took the connection. What was true
// then may be so no more, so bundles have to vouch for it at each call. lookup knows those of which the gateway holds an identity
// too, by their SPIFFE ID.
func Proven(bundles x509bundle.Source, now func() time.Time, lookup func(id string) *Sandbox) Caller {
	return func(r *http.Request) (*Sandbox, error) {
		if r.TLS == nil {
			return nil, errors.New("the connection proves nothing")
		}
		id, _, err := x509svid.Verify(r.TLS.PeerCertificates, bundles, x509svid.WithTime(now()))
		if err != nil {
			return nil, fmt.Errorf("verifying the SVID: %w", err)
		}
		if s := lookup(id.String()); s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("the gateway holds no identity of %s", id)
	}
}
