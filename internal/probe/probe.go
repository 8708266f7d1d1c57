// Package probe checks from outside that a running deployment refuses what it must refuse, and issues what it must issue.
//
// It must never change anything in the deployment except by the credentials that it requests, and it releases these.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// Config says which deployment to check, and how. Console and Foreign are optional.
type Config struct {
	// Server is the https URL of the broker.
	Server *url.URL
	// ServerID is the SPIFFE ID of the broker's SVID. If it is zero, the system's roots verify the broker's certificate.
	ServerID spiffeid.ID
	// WorkloadAPI is the address that gives the prober's SVIDs.
	WorkloadAPI string
	// Audience is the broker's issuer.
	Audience string
	// Scope has a JWT credential that the prober may request.
	Scope  string
	Params map[string]any
	// Foreign is the id of an issuance in another trust domain.
	Foreign string
	// Console is the URL of the console, and ConsoleRoots verify its certificate; nil is for the system's.
	Console      string
	ConsoleRoots *x509.CertPool
	// Now is the clock.
	Now func() time.Time
}

const (
	// within bounds a pass, and cleanUpWithin the cleanup after it: together ten seconds.
	within        = 8 * time.Second
	cleanUpWithin = 2 * time.Second
	// callWithin bounds one call.
	callWithin = 3 * time.Second
	// Task and Reason mark the prober's requests in the record.
	Task   = "brevet-probe"
	Reason = "brevet probe"
	// longLife is the lifetime of the prober's credential if nobody releases it.
	longLife = time.Minute
	// nowhere is an id that does not exist, and elsewhere a host name that belongs to nobody (RFC 2606).
	nowhere   = "00000000-0000-4000-8000-000000000000"
	elsewhere = "brevet-probe.invalid"
	// maxRead is how much of a response is read, in bytes.
	maxRead = 64 << 10
)

// Outcome is the result of a check.
type Outcome string

// The outcomes.
const (
	Held   Outcome = "held"
	Broken Outcome = "broken"
	Untold Outcome = "untold" // no response, or one that says nothing about the check
)

// sight is what a check observed.
type sight struct {
	outcome Outcome
	saw     string
}

// prober checks one deployment as one workload.
type prober struct {
	cfg     Config
	id      spiffeid.ID
	own     *tls.Certificate
	trust   *tls.Config // verifies the broker
	broker  *client.Client
	console *http.Client
	// token is the credential to release. brief is the one to let expire, which has happened by ends.
	token, brief *client.Token
	ends         time.Time
}

// noTime is what a check saw that the end of the pass cut short.
const noTime = "no time left to run this check"

// Run makes one pass. It returns an error if no check could run.
func Run(ctx context.Context, cfg Config) (Report, error) {
	pass, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	waiting, stop := context.WithTimeout(pass, callWithin)
	defer stop()
	source, err := workloadapi.NewX509Source(waiting, workloadapi.WithClientOptions(workloadapi.WithAddr(cfg.WorkloadAPI)))
	if err != nil {
		return Report{}, fmt.Errorf("no SVID from the Workload API at %s: %w", cfg.WorkloadAPI, err)
	}
	defer func() { _ = source.Close() }()
	p, err := newProber(cfg, source)
	if err != nil {
		return Report{}, err
	}
	defer p.close(ctx)
	// Without a broker, no check would be conclusive.
	got, err := p.send(pass, attempt{method: http.MethodGet, path: "/livez"})
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("%s/livez returned status %d", cfg.Server, got.status)
	}
	if err != nil {
		return Report{}, err
	}
	report := Report{Result: Held}
	for _, check := range cfg.checks() {
		got := sight{Untold, noTime}
		if pass.Err() == nil {
			got = check.try(pass, p)
		}
		result := Check{Name: check.name, Holds: check.holds, Result: got.outcome, Saw: safetext.Text(got.saw)}
		switch {
		case got.outcome == Broken:
			result.Means, report.Result = check.means, Broken
		case got.outcome == Untold && report.Result == Held:
			report.Result = Untold
		}
		report.Checks = append(report.Checks, result)
	}
	return report, nil
}

func newProber(cfg Config, source *workloadapi.X509Source) (*prober, error) {
	svid, err := source.GetX509SVID()
	if err != nil {
		return nil, err
	}
	p := &prober{
		cfg: cfg, id: svid.ID, own: &tls.Certificate{PrivateKey: svid.PrivateKey}, trust: &tls.Config{MinVersion: tls.VersionTLS13},
		console: &http.Client{CheckRedirect: followNothing, Transport: quiet.New(&http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.ConsoleRoots}, DisableKeepAlives: true,
		})},
	}
	for _, cert := range svid.Certificates {
		p.own.Certificate = append(p.own.Certificate, cert.Raw)
	}
	as := client.WithX509AndWebPKI(source, nil)
	if !cfg.ServerID.IsZero() {
		as = client.WithX509(source, source, tlsconfig.AuthorizeID(cfg.ServerID))
		p.trust = tlsconfig.TLSClientConfig(source, tlsconfig.AuthorizeID(cfg.ServerID))
	}
	p.broker, err = client.New(client.Config{BaseURL: cfg.Server.String()}, as)
	return p, err
}

// close releases the credentials of a pass that was cut short.
func (p *prober) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
	defer cancel()
	for _, token := range []*client.Token{p.token, p.brief} {
		if token != nil {
			_, _ = p.broker.Release(ctx, token.ID) // otherwise it expires within a minute
		}
	}
	p.broker.Close()
}

// attempt is an HTTP call exactly as it is sent.
type attempt struct {
	method, path string
	host         string // instead of the broker's own
	header       http.Header
	body         string
	as           *tls.Certificate // client certificate; nil for none
}

// with returns the attempt with one more header.
func (a attempt) with(name, value string) attempt {
	a.header = maps.Clone(a.header)
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set(name, value)
	return a
}

// answered is the response to an attempt.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// send calls the broker over a new connection.
func (p *prober) send(ctx context.Context, a attempt) (answered, error) {
	transport := quiet.New(&http.Transport{TLSClientConfig: p.knows(a.as), DisableKeepAlives: true, ExpectContinueTimeout: callWithin / 2})
	defer transport.CloseIdleConnections()
	return a.over(ctx, &http.Client{Transport: transport, CheckRedirect: followNothing}, p.cfg.Server.Scheme+"://"+p.cfg.Server.Host)
}

// pages calls the console.
func (p *prober) pages(ctx context.Context, a attempt) (answered, error) {
	return a.over(ctx, p.console, strings.TrimRight(p.cfg.Console, "/"))
}

func followNothing(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (a attempt) over(ctx context.Context, by *http.Client, base string) (answered, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, a.method, base+a.path, strings.NewReader(a.body))
	if err != nil {
		return answered{}, err
	}
	req.Host = a.host
	maps.Copy(req.Header, a.header)
	resp, err := by.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxRead))
	return answered{resp.StatusCode, resp.Header, body}, err
}

// refused compares a response with the expected refusal. Rate limits and server errors are inconclusive.
func refused(got answered, err error, want int) sight {
	switch {
	case err != nil:
		return sight{Untold, err.Error()}
	case got.status == want:
		return sight{Held, fmt.Sprint(want)}
	case got.status == http.StatusTooManyRequests || got.status >= http.StatusInternalServerError:
		return sight{Untold, fmt.Sprintf("%d instead of %d", got.status, want)}
	default:
		return sight{Broken, fmt.Sprintf("%d instead of %d", got.status, want)}
	}
}

// Report is the result of a pass.
type Report struct {
	Result Outcome `json:"result"`
	Checks []Check `json:"checks"`
	Error  string  `json:"error,omitempty"`
}

// Check is the result of one check.
type Check struct {
	Name   string  `json:"name"`
	Holds  string  `json:"holds"`
	Result Outcome `json:"result"`
	Saw    string  `json:"saw"`
	Means  string  `json:"means,omitempty"`
}

// Count returns how many checks have an outcome.
func (r Report) Count(o Outcome) (n int) {
	for _, check := range r.Checks {
		if check.Result == o {
			n++
		}
	}
	return n
}
