package egress

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// SandboxConfig configures one sandbox.
type SandboxConfig struct {
	// ID is the sandbox's SPIFFE ID, for the log.
	ID string
	// Task is the task that the sandbox's credentials belong to.
	Task string
	// Reason is why the sandbox requests credentials. It is recorded with each request.
	Reason string
	// Broker calls Brevet as the sandbox, with its SVID.
	Broker *client.Client
	// Scopes are the scopes that the sandbox may use. Each has the parameters that the path does not give. Nil allows every
	// scope that Brevet lets the sandbox request.
	Scopes map[string]map[string]any
}

// Sandbox is the state that a gateway holds for one sandbox. None of it is ever used for another sandbox.
type Sandbox struct {
	cfg         SandboxConfig
	rules       *rulebook
	credentials *credentialCache
	lines       lines
	pace        *pace
	bodies      *semaphore.Weighted // bytes of request bodies that are read whole
	cancels     cancels
	recorder    *recorder
	// How many it has open now.
	sessions, tunnels, calls places
}

// Sandbox adds a sandbox that the gateway serves.
func (g *Gateway) Sandbox(cfg SandboxConfig) (*Sandbox, error) {
	if cfg.Broker == nil || cfg.Task == "" || cfg.ID == "" {
		return nil, errors.New("egress: a sandbox requires an ID, a task and a client")
	}
	s := &Sandbox{
		cfg:   cfg,
		rules: &rulebook{broker: cfg.Broker, now: g.cfg.Now, only: cfg.Scopes},
		credentials: &credentialCache{
			gateway: g, broker: cfg.Broker, now: g.cfg.Now, task: cfg.Task, reason: cfg.Reason, slots: map[string]*slot{},
			log: g.cfg.Log.With("sandbox", cfg.ID, "task", cfg.Task),
		},
		pace: &pace{limit: rate.Limit(g.cfg.CallsPerSecond), burst: 2 * g.cfg.CallsPerSecond, of: map[string]*rate.Limiter{}},
		// Sandboxes share no connections, so nothing that one leaves on a connection reaches another.
		lines: g.lines(), bodies: semaphore.NewWeighted(maxSignedAtOnce), cancels: cancels{all: map[cancelKey]canceller{}},
	}
	report := func(ctx context.Context, report openapi.CallReport) error {
		_, err := cfg.Broker.ReportCalls(ctx, cfg.Task, report)
		return err
	}
	s.recorder = newRecorder(report, g.cfg.Now, s.credentials.log)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sandboxes = append(g.sandboxes, s)
	return s, nil
}

// places counts how many of something are in use.
type places struct{ taken atomic.Int64 }

// take takes a place until the caller calls leave. It fails if that would make more than most.
func (p *places) take(most int64) (leave func(), ok bool) {
	if p.taken.Add(1) > most {
		p.taken.Add(-1)
		return nil, false
	}
	return sync.OnceFunc(func() { p.taken.Add(-1) }), true
}

// pace limits how often a sandbox calls each host.
type pace struct {
	limit rate.Limit
	burst int
	mu    sync.Mutex
	of    map[string]*rate.Limiter
}

// maxPaced bounds memory. Only hosts with a rule get a limiter; a limiter that is dropped starts full again.
const maxPaced = 1000

func (p *pace) allows(host string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter := p.of[host]
	if limiter == nil {
		if len(p.of) >= maxPaced {
			clear(p.of)
		}
		limiter = rate.NewLimiter(p.limit, p.burst)
		p.of[host] = limiter
	}
	return limiter.AllowN(now, 1)
}

// Drop aborts the calls of a sandbox, releases its credentials, sends the last report of its calls, and refuses its later calls.
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
	s.recorder.close(ctx)
}

// refuse refuses a call that has not begun, and counts it.
func (s *Sandbox) refuse(w http.ResponseWriter, r *http.Request, host string, err error) {
	s.recorder.refused(host, r.Method, err)
	refuse(w, err)
}

// Caller returns the sandbox that a call belongs to. For a call in a tunnel, it gets the CONNECT request that opened the
// tunnel; the gateway runs it for every such call.
type Caller func(*http.Request) (*Sandbox, error)

// errCaller means that a call has no password, or a wrong one.
var errCaller = errors.New("the proxy's user and password are missing or wrong")

// Alone is the Caller for a listener that only one sandbox can reach, such as its own Unix socket.
func Alone(s *Sandbox) Caller { return func(*http.Request) (*Sandbox, error) { return s, nil } }

// WithPassword is the Caller for a listener that other programs on the machine can reach. The sandbox sends the password as the
// proxy password. If it calls the gateway by a base URL, it may send it in Authorization instead (Basic or Bearer). The
// password is valid for this gateway only.
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

// passwordOf returns the password of Basic credentials, or a bearer token.
func passwordOf(header []string) string {
	asked := &http.Request{Header: http.Header{"Authorization": header}}
	if _, password, ok := asked.BasicAuth(); ok { // reuse net/http's parser
		return password
	}
	if scheme, token, _ := strings.Cut(asked.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return token
	}
	return ""
}

// Proven is the Caller for a listener with mutual TLS. The sandbox proves its identity with its SVID when it connects. That
// SVID may become invalid later, so Proven verifies it against bundles at each call. lookup returns the sandbox with a SPIFFE
// ID, or nil if the gateway holds no identity for it.
func Proven(bundles x509bundle.Source, now func() time.Time, lookup func(id string) *Sandbox) Caller {
	return func(r *http.Request) (*Sandbox, error) {
		if r.TLS == nil {
			return nil, errors.New("the connection does not use TLS")
		}
		id, _, err := x509svid.Verify(r.TLS.PeerCertificates, bundles, x509svid.WithTime(now()))
		if err != nil {
			return nil, fmt.Errorf("verifying the SVID: %w", err)
		}
		if s := lookup(id.String()); s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("the gateway has no identity for %s", id)
	}
}

// Endpoint says where a gateway listens.
type Endpoint struct {
	Address string // host:port
	// Password is empty if nobody but the sandbox can reach the gateway there.
	Password secret.Text
	// CA is the path of the file with the certificate of the gateway's authority.
	CA string
	// Databases is the directory of the PostgreSQL socket, .s.PGSQL.5432, or else its host:port.
	Databases string
}

// noPassword is what programs get that require a password for the base URL where the gateway requires none.
const noPassword = "none"

// Proxy returns the endpoint as a proxy URL, with the password in it if there is one.
func (d Endpoint) Proxy() secret.Text {
	u := url.URL{Scheme: "http", Host: d.Address}
	if password := d.Password.Reveal(); password != "" {
		u.User = url.UserPassword("brevet", password)
	}
	return secret.New(u.String())
}

// The errors of Check.
var (
	ErrNoGateway    = errors.New("no gateway responds")
	ErrOtherGateway = errors.New("another server responds")
)

const (
	// answerWithin bounds the check of an endpoint, whose gateway runs on the same machine.
	answerWithin = 10 * time.Second
	// maxAnswer is how much of the response Check reads, in bytes.
	maxAnswer = 16 << 10
)

// Check returns nil if the gateway of this endpoint responds. It sends a call that names no host: only a gateway that accepts
// this password refuses that call with egress_no_rule. It returns ErrNoGateway if nothing responds and ErrOtherGateway if
// something else does. It never quotes the response of another server.
func (d Endpoint) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Address+"/", nil)
	if err != nil {
		return errors.New("the address of the gateway is invalid") // err would quote the address
	}
	req.SetBasicAuth("brevet", d.Password.Reveal())
	resp, err := quiet.New(&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer}).RoundTrip(req) // uses no proxy, and follows no redirect
	var dialing *net.OpError
	switch {
	case errors.As(err, &dialing) && dialing.Op == "dial":
		return fmt.Errorf("%w: %w", ErrNoGateway, dialing.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w within %s", ErrNoGateway, answerWithin)
	case err != nil:
		return ErrOtherGateway
	}
	defer func() { _ = resp.Body.Close() }()
	var told problem
	if json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&told) != nil || told.Code != codeNoRule {
		return ErrOtherGateway
	}
	return nil
}

// Environ returns environment variables that send programs through the gateway and make them trust its authority. They work for
// curl, git, Go, Node from 22.21 and 24 on, npm, pip, psql, Python and other programs that read these variables. For programs
// without proxy support there is a base URL, and the password for it.
func (d Endpoint) Environ() []string {
	var all []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "npm_config_proxy", "npm_config_https_proxy"} {
		all = append(all, name+"="+d.Proxy().Reveal())
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile", "REQUESTS_CA_BUNDLE", "PIP_CERT", "AWS_CA_BUNDLE",
	} {
		all = append(all, name+"="+d.CA)
	}
	if host, port, err := net.SplitHostPort(d.Databases); err == nil && !strings.Contains(host, "/") {
		all = append(all, "PGHOST="+host, "PGPORT="+port, "PGSSLMODE=disable") // the connection does not leave the sandbox
	} else {
		all = append(all, "PGHOST="+d.Databases, "PGPORT=5432")
	}
	return append(
		all,
		"NODE_USE_ENV_PROXY=1",            // Node from 22.21 and 24.5 on obeys the variables; 24.0 to 24.4 only in fetch
		"GIT_HTTP_PROXY_AUTHMETHOD=basic", // git sends the password without waiting for a challenge
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
		"BREVET_EGRESS_URL=http://"+d.Address, "BREVET_EGRESS_PASSWORD="+cmp.Or(d.Password.Reveal(), noPassword),
	)
}
