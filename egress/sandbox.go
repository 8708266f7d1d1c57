package egress

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/secret"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
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
	cfg       SandboxConfig
	rules     *rulebook
	purse     *purse
	transport *http.Transport
}

// Sandbox has the gateway serve one more sandbox.
func (g *Gateway) Sandbox(cfg SandboxConfig) (*Sandbox, error) {
	if cfg.Broker == nil || cfg.Task == "" || cfg.ID == "" {
		return nil, errors.New("egress: a sandbox has an ID, a task and a client that asks as it")
	}
	s := &Sandbox{
		cfg:   cfg,
		rules: &rulebook{broker: cfg.Broker, now: g.cfg.Now, only: cfg.Scopes},
		purse: &purse{broker: cfg.Broker, now: g.cfg.Now, task: cfg.Task, reason: cfg.Reason, slots: map[string]*slot{}},
		// Connections are not shared: what one sandbox leaves on one is nothing that another meets.
		transport: g.transport(),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sandboxes = append(g.sandboxes, s)
	return s, nil
}

// Drop ends what a sandbox has under way, releases what was held for it, and refuses its calls from then on.
func (g *Gateway) Drop(ctx context.Context, s *Sandbox) {
	g.mu.Lock()
	g.sandboxes = slices.DeleteFunc(g.sandboxes, func(one *Sandbox) bool { return one == s })
	g.mu.Unlock()
	s.close(ctx)
}

func (s *Sandbox) close(ctx context.Context) {
	s.purse.close(ctx)
	s.transport.CloseIdleConnections()
}

// Caller tells whose a call is. Of calls in a tunnel it is asked each time about the CONNECT that opened it.
type Caller func(*http.Request) (*Sandbox, error)

// errCaller is for who does not say by what it may use the gateway.
var errCaller = errors.New("the proxy's user and password are missing, or are not this gateway's")

// Alone is for a listener that one sandbox can reach and nobody else, such as a Unix socket of its own.
func Alone(s *Sandbox) Caller { return func(*http.Request) (*Sandbox, error) { return s, nil } }

// WithPassword is for a listener that others on the machine can reach: the sandbox has a password, as the proxy's, or as its own
// where it calls the gateway by a base URL. It is good for this gateway alone.
func WithPassword(s *Sandbox, password secret.Text) Caller {
	want := sha256.Sum256([]byte(password.Reveal()))
	return func(r *http.Request) (*Sandbox, error) {
		// The one parser of Basic credentials reads them from Authorization.
		asked := &http.Request{Header: http.Header{"Authorization": r.Header.Values("Proxy-Authorization")}}
		_, given, ok := asked.BasicAuth()
		if !ok && r.Method != http.MethodConnect && !r.URL.IsAbs() {
			_, given, ok = r.BasicAuth()
		}
		got := sha256.Sum256([]byte(given))
		if !ok || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return nil, errCaller
		}
		return s, nil
	}
}

// Proven is for a listener with mutual TLS: the sandbox proves by its SVID who it is, to whoever verified the connection's
// certificates. lookup knows those of which the gateway holds an identity too, by their SPIFFE ID.
func Proven(now func() time.Time, lookup func(id string) *Sandbox) Caller {
	return func(r *http.Request) (*Sandbox, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return nil, errors.New("the connection proves nothing")
		}
		leaf := r.TLS.PeerCertificates[0]
		if !now().Before(leaf.NotAfter) {
			return nil, errors.New("the SVID has expired on the connection")
		}
		id, err := x509svid.IDFromCert(leaf)
		if err != nil {
			return nil, fmt.Errorf("reading the SVID: %w", err)
		}
		if s := lookup(id.String()); s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("the gateway holds no identity of %s", id)
	}
}
