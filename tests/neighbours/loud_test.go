package neighbours_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// loudly is the environment variable that makes the test program a loud caller. Callers are other programs, so that the victims wait for
// what the server does for the loud ones, and not for what these do themselves.
const loudly = "BREVET_NEIGHBOURS_LOUD"

// site is what a loud caller needs to know. It arrives on its standard input.
type site struct {
	URL, Pages       string
	Authorities      []byte // of acme.test, in PEM
	Sandbox, Auditor identity
	// SelfSigned is a certificate that no bundle has an authority for, in DER.
	SelfSigned, SelfSignedKey []byte
	Held, Token               string // a credential of the sandbox
	Cookies                   []string
	Lasts                     time.Duration
}

// identity is an X.509-SVID in PEM.
type identity struct{ Cert, Key []byte }

// noise is what a loud caller did. It is on its standard output.
type noise struct{ Calls, Done int64 }

// loud is what one tenant does from many connections.
type loud struct {
	name    string
	callers int
	// call makes one call, and reports whether it succeeded. The loud caller is refused most of the time.
	call func(ctx context.Context, caller, n int) bool
	ends bool // the limit for ends of tasks applies
	// entries is how many entries the calls may leave if so many succeeded. If it is nil, that is the budget of attempts.
	entries func(done int64) int64
}

// run makes noise in another program until it is over.
func (l loud) run(ctx context.Context, at site) (did noise, err error) {
	at.Lasts = loudFor
	given, err := json.Marshal(at)
	if err != nil {
		return did, err
	}
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), loudly+"="+l.name)
	child.Stdin, child.Stderr = strings.NewReader(string(given)), os.Stderr
	out, err := child.Output()
	if err == nil {
		err = json.Unmarshal(out, &did)
	}
	return did, err
}

// beLoud is the program of a loud caller.
func beLoud(name string) error {
	var at site
	if err := json.NewDecoder(os.Stdin).Decode(&at); err != nil {
		return err
	}
	all, err := louds(at)
	if err != nil {
		return err
	}
	l := all[slices.IndexFunc(all, func(l loud) bool { return l.name == name })]
	ctx, stop := context.WithTimeout(context.Background(), at.Lasts)
	defer stop()
	var calls, done atomic.Int64
	var callers sync.WaitGroup
	for caller := range l.callers {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if l.call(ctx, caller, n) {
					done.Add(1)
				}
				calls.Add(1)
			}
		})
	}
	callers.Wait()
	return json.NewEncoder(os.Stdout).Encode(noise{calls.Load(), done.Load()})
}

// api returns a client of the API and an HTTP client with the same identity.
func (at site) api(as identity) (*client.Client, *http.Client, error) {
	bundle, err := x509bundle.Parse(spiffeid.RequireTrustDomainFromString("acme.test"), at.Authorities)
	if err != nil {
		return nil, nil, err
	}
	svid, err := x509svid.Parse(as.Cert, as.Key)
	if err != nil {
		return nil, nil, err
	}
	server := tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://acme.test/brevet"))
	c, err := client.New(client.Config{BaseURL: at.URL}, client.WithX509(svid, bundle, server))
	plain := plain(nil)
	plain.Transport = &http.Transport{TLSClientConfig: tlsconfig.MTLSClientConfig(svid, bundle, server), ForceAttemptHTTP2: true}
	return c, plain, err
}

// louds are the callers that are loud. Except for the strangers and the person, all are one sandbox or one auditor of acme.test.
func louds(at site) ([]loud, error) {
	c, raw, err := at.api(at.Sandbox)
	if err != nil {
		return nil, err
	}
	auditor, audits, err := at.api(at.Auditor)
	if err != nil {
		return nil, err
	}
	stranger, person := plain(nil), plain(nil)
	stranger.Transport = &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
	}
	person.Transport = withCookies{plain(nil).Transport, strings.Join(at.Cookies, "; ")}
	unknownKey, err := x509.ParsePKCS8PrivateKey(at.SelfSignedKey)
	if err != nil {
		return nil, err
	}
	self := unknown(tls.Certificate{Certificate: [][]byte{at.SelfSigned}, PrivateKey: unknownKey})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		return nil, err
	}
	ask := func(scope string, signer *dpop.Signer) func(context.Context, int, int) bool {
		return func(ctx context.Context, _, _ int) bool {
			_, err := c.Request(ctx, client.Ask{Scope: scope, Task: "t", Signer: signer})
			return err == nil
		}
	}
	get := func(by *http.Client, targets ...string) func(context.Context, int, int) bool {
		return func(ctx context.Context, _, n int) bool {
			return fetch(ctx, by, http.MethodGet, targets[n%len(targets)], "")
		}
	}
	ok := func(err error) bool { return err == nil }
	ends := func(done int64) int64 { return attempts + done }
	lists := func(int64) int64 { return sampled }
	return []loud{
		{name: "ends of one task", callers: 400, ends: true, call: func(ctx context.Context, _, _ int) bool {
			_, err := c.EndTask(ctx, "same", client.TaskEnd{})
			return ok(err)
		}},
		{name: "ends of many tasks", callers: 64, ends: true, entries: ends, call: func(ctx context.Context, caller, n int) bool {
			_, err := c.EndTask(ctx, fmt.Sprintf("end-%d-%d", caller, n), client.TaskEnd{})
			return ok(err)
		}},
		{name: "releases", callers: 64, ends: true, call: func(ctx context.Context, _, _ int) bool {
			_, err := c.Release(ctx, at.Held)
			return ok(err)
		}},
		// Sixty requests an hour of one sandbox may wait for people.
		{name: "withdrawals", callers: 64, ends: true, entries: func(int64) int64 { return attempts + 2*60 }, call: func(ctx context.Context, caller, _ int) bool {
			got, err := c.Request(ctx, client.Ask{Scope: "clock.set", Task: fmt.Sprintf("w-%d", caller)})
			return err == nil && got.Pending != nil && ok(c.Withdraw(ctx, got.Pending.ID))
		}},
		{name: "denied requests", callers: 64, call: ask("clock.forbidden", nil)},
		{name: "limited requests", callers: 64, call: ask("clock.limited", nil)},
		{name: "requests for an unknown scope", callers: 64, call: ask("clock.unknown", nil)},
		{name: "requests with DPoP proofs", callers: 64, call: ask("clock.forbidden", signer)},
		{name: "repeats of a pending request", callers: 64, call: ask("clock.set", nil)},
		{name: "pending requests", callers: 64, call: func(ctx context.Context, caller, n int) bool {
			_, err := c.Request(ctx, client.Ask{Scope: "clock.set", Task: fmt.Sprintf("p-%d-%d", caller, n)})
			return ok(err)
		}},
		{name: "invalid requests", callers: 64, call: func(ctx context.Context, _, _ int) bool {
			return fetch(ctx, raw, http.MethodPost, at.URL+"/v1/tokens", `{"scope":"clock.read","task":"not a task"}`)
		}},
		{name: "refused handshakes", callers: 32, entries: lists, call: func(ctx context.Context, _, _ int) bool {
			handshake(ctx, self, host(at.URL))
			return false
		}},
		{name: "event streams", callers: 64, call: func(ctx context.Context, _, _ int) bool {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return ok(c.WatchIssuances(client.Filter{}).Follow(ctx, func(openapi.Issuance) error { return nil }))
		}},
		{name: "introspection", callers: 64, call: func(ctx context.Context, _, _ int) bool {
			return form(ctx, raw, at.URL+"/oauth2/introspect", url.Values{"token": {at.Token}})
		}},
		{name: "unknown status lists", callers: 64, entries: lists, call: func(ctx context.Context, _, _ int) bool {
			return fetch(ctx, stranger, http.MethodGet, at.URL+"/v1/status-lists/"+uuid.NewString(), "")
		}},
		{name: "checkpoints", callers: 64, call: func(ctx context.Context, _, _ int) bool { _, err := auditor.Checkpoint(ctx); return ok(err) }},
		{name: "ledger proofs", callers: 64, call: get(
			audits, at.URL+"/v1/ledger/proof/inclusion?index=1", at.URL+"/v1/ledger/proof/consistency?from=1", at.URL+"/v1/issuances/"+at.Held+"/receipt")},
		{name: "exports", callers: 64, call: func(ctx context.Context, _, _ int) bool { _, err := auditor.Entries(ctx, 0, 1000); return ok(err) }},
		{name: "searches", callers: 64, call: func(ctx context.Context, _, _ int) bool {
			_, err := c.Page(ctx, client.Filter{Words: "nothing"})
			return ok(err)
		}},
		{name: "searches of an auditor", callers: 64, call: func(ctx context.Context, _, _ int) bool {
			_, err := auditor.Page(ctx, client.Filter{Words: "nothing"})
			return ok(err)
		}},
		{name: "own records", callers: 64, call: get(raw, at.URL+"/v1/issuances/"+at.Held)},
		{name: "strangers in the console", callers: 64, call: get(plain(nil), at.Pages+"/", at.Pages+"/login", at.Pages+"/history")},
		{name: "a person in the console", callers: 64, call: get(
			person, at.Pages+"/", at.Pages+"/history", at.Pages+"/live", at.Pages+"/history/export?format=csv", at.Pages+"/ledger", at.Pages+"/system")},
	}, nil
}

// withCookies sends the same cookies with each request.
type withCookies struct {
	http.RoundTripper

	cookies string
}

func (c withCookies) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Cookie", c.cookies)
	return c.RoundTripper.RoundTrip(r)
}

// unknown is the TLS configuration of a caller whose certificate no bundle has an authority for.
func unknown(cert tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}
}

// handshake presents a certificate, and waits until the server has refused it.
func handshake(ctx context.Context, cfg *tls.Config, address string) {
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	return u.Host
}

// fetch makes one call, and reports whether it succeeded.
func fetch(ctx context.Context, c *http.Client, method, target, body string) bool {
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return do(c, req)
}

func form(ctx context.Context, c *http.Client, target string, values url.Values) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(values.Encode()))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return do(c, req)
}

func do(c *http.Client, req *http.Request) bool {
	resp, err := c.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode < http.StatusMultipleChoices
}
