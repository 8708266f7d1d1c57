package probe

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// check is one property that must hold.
type check struct {
	name  string // for alerts; it does not change
	holds string
	means string // what it means if the property does not hold
	try   func(context.Context, *prober) sight
}

// checks returns the checks in the order in which they run. The short-lived credential is requested first, so that it has
// expired at the end.
func (c Config) checks() []check {
	all := callerChecks
	if c.Foreign != "" { // a 404 for an id that does not exist says nothing
		all = slices.Concat(all, foreignChecks)
	}
	if c.Console != "" {
		all = slices.Concat(all, consoleChecks)
	}
	return slices.Concat(all, tokenChecks)
}

// anyone is what it means that a certificate or a token which anyone can make is accepted.
const anyone = "Anyone can impersonate any sandbox. Take the broker off the network."

var callerChecks = []check{
	{
		"issues", "the prober's own SVID gets the scope",
		"Sandboxes get no credentials, or policy denies the prober this scope. Run brevet request to see why.", issues,
	},
	{
		"no_svid", "a call without authentication gets 401",
		"Anyone who reaches the port is authenticated. Take the broker off the network.",
		refuses(http.StatusUnauthorized, func(*prober) attempt { return whoami }),
	},
	{
		"self_signed", "a self-signed certificate is refused", anyone,
		func(ctx context.Context, p *prober) sight { return p.handshake(ctx, nil) },
	},
	{
		"foreign_authority", "a certificate of an unknown authority is refused", anyone,
		func(ctx context.Context, p *prober) sight { return p.handshake(ctx, p.sameName()) },
	},
	{
		"other_audience", "a JWT-SVID for another audience gets 401",
		"A service that receives a sandbox's JWT-SVID can impersonate the sandbox here.", otherAudience,
	},
	{
		"alg_none", "an unsigned JWT-SVID gets 401", anyone,
		refuses(http.StatusUnauthorized, func(p *prober) attempt { return whoami.with("Authorization", "Bearer "+p.unsigned()) }),
	},
	{
		"forwarded_certificate", "a certificate in a header gets 401",
		"Anyone who can send the header can impersonate any sandbox: a proxy terminates TLS, or the broker trusts the header.",
		refuses(http.StatusUnauthorized, func(p *prober) attempt {
			return whoami.with("X-Forwarded-Client-Cert", "URI="+p.id.String()).with("X-SPIFFE-ID", p.id.String())
		}),
	},
	{"plain_http", "HTTP without TLS is refused", "Credentials can cross the network unencrypted.", plainly},
	{
		"tls_1_1", "TLS 1.1 is refused", "A proxy terminates TLS, and accepts an insecure version.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS11) },
	},
	{
		"tls_1_2", "TLS 1.2 is refused", "A proxy terminates TLS, so the broker cannot authenticate callers.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS12) },
	},
	{
		"foreign_host", "a call for another host gets 421",
		"A page of another site can call the broker by a host name of that site (DNS rebinding).",
		refuses(http.StatusMisdirectedRequest, func(p *prober) attempt {
			return attempt{method: http.MethodGet, path: whoami.path, as: p.own, host: elsewhere}
		}),
	},
	{
		"foreign_page", "a browser's cross-site call gets 403", "A page of another site can act as the person who opens it.",
		refuses(http.StatusForbidden, func(p *prober) attempt { return p.requests(nothing).with("Sec-Fetch-Site", "cross-site") }),
	},
	{
		"metrics", "the API's port serves no metrics", "Anyone who reaches the port can see how often credentials are issued.",
		refuses(http.StatusNotFound, func(p *prober) attempt { return p.gets("/metrics") }),
	},
	{
		"profiles", "the API's port serves no profiles", "Anyone who reaches the port can read from the broker's memory.",
		refuses(http.StatusNotFound, func(p *prober) attempt { return p.gets("/debug/pprof/heap") }),
	},
	{
		"unknown_scope", "an unknown scope gets 403", "Something other than the catalogue decides what is issued.",
		refuses(http.StatusForbidden, func(p *prober) attempt { return p.requests(nothing) }),
	},
	{
		"duplicate_key", "JSON with a duplicate key gets 400", "A proxy and the broker can read different requests from the same body.",
		refuses(http.StatusBadRequest, func(p *prober) attempt {
			return p.requests(strings.Replace(nothing, "{", `{"scope":"brevet.probe.none",`, 1))
		}),
	},
	{
		"large_body", "a body above 64 KiB gets 413", "A few callers can exhaust the broker's memory.",
		// The server may close the connection before the whole body has arrived, and a slow client would not see the answer. So the
		// prober asks before it sends the body.
		refuses(http.StatusRequestEntityTooLarge, func(p *prober) attempt {
			return p.requests(strings.Repeat(" ", 64<<10)+nothing).with("Expect", "100-continue")
		}),
	},
	{
		"get_vote", "a vote by GET gets 405", "A link that a browser prefetches can approve a request.",
		refuses(http.StatusMethodNotAllowed, func(p *prober) attempt { return p.gets("/v1/approvals/" + nowhere + "/votes") }),
	},
}

var foreignChecks = []check{{
	"foreign_issuance", "an issuance of another trust domain gets 404", "Trust domains can read each other's records.",
	refuses(http.StatusNotFound, func(p *prober) attempt { return p.gets("/v1/issuances/" + url.PathEscape(p.cfg.Foreign)) }),
}}

var consoleChecks = []check{
	{
		"console_foreign_form", "the console answers a form of another site with 403",
		"A page of another site can vote as an approver who opens it.",
		func(ctx context.Context, p *prober) sight {
			got, err := p.pages(ctx, attempt{method: http.MethodPost, path: "/logout"}.with("Origin", "https://"+elsewhere).
				with("Sec-Fetch-Site", "cross-site").with("Content-Type", "application/x-www-form-urlencoded"))
			return refused(got, err, http.StatusForbidden)
		},
	},
	{
		"console_framing", "the console forbids framing",
		"A page of another site can hide the console's buttons under its own (clickjacking).", framing,
	},
}

var tokenChecks = []check{
	{
		"active", "the issued token is active", "Introspection reports valid tokens as inactive.",
		func(ctx context.Context, p *prober) sight { return p.introspects(ctx, p.token, asIssued, active) },
	},
	{
		"prolonged", "the token is inactive if its expiry is changed", "Signatures are not verified: anyone can forge tokens.",
		func(ctx context.Context, p *prober) sight { return p.introspects(ctx, p.token, p.prolonged, inactive) },
	},
	{"released", "the token can be released", "Sandboxes cannot end their credentials.", releases},
	{
		"dead", "the released token is inactive", "Released credentials stay valid.",
		func(ctx context.Context, p *prober) sight { return p.introspects(ctx, p.token, asIssued, inactive) },
	},
	{"expired", "a token issued for one second is inactive after that", "Tokens stay valid after they expire.", expires},
}

var whoami = attempt{method: http.MethodGet, path: "/v1/whoami"}

// nothing requests a scope that does not exist, so that nothing is issued if the broker accepts the request.
const nothing = `{"scope":"brevet.probe.nothing","task":"` + Task + `","reason":"` + Reason + `"}`

// refuses returns a check that a call gets the status want.
func refuses(want int, call func(*prober) attempt) func(context.Context, *prober) sight {
	return func(ctx context.Context, p *prober) sight {
		got, err := p.send(ctx, call(p))
		return refused(got, err, want)
	}
}

// gets reads a path with the prober's own SVID.
func (p *prober) gets(path string) attempt {
	return attempt{method: http.MethodGet, path: path, as: p.own}
}

// requests requests a credential with the prober's own SVID.
func (p *prober) requests(body string) attempt {
	return attempt{method: http.MethodPost, path: "/v1/tokens", as: p.own, body: body}.with("Content-Type", "application/json")
}

func otherAudience(ctx context.Context, p *prober) sight {
	waiting, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	params := jwtsvid.Params{Audience: "https://" + elsewhere}
	svid, err := workloadapi.FetchJWTSVID(waiting, params, workloadapi.WithAddr(p.cfg.WorkloadAPI))
	if err != nil {
		return sight{Untold, "no JWT-SVID from the Workload API: " + err.Error()}
	}
	got, err := p.send(ctx, whoami.with("Authorization", "Bearer "+svid.Marshal()))
	return refused(got, err, http.StatusUnauthorized)
}

// issues requests one credential to release and one that will expire.
func issues(ctx context.Context, p *prober) sight {
	var err error
	if p.token, err = p.obtains(ctx, longLife); err != nil {
		return sawError(err)
	}
	if p.brief, err = p.obtains(ctx, time.Second); err != nil {
		return sawError(err)
	}
	p.ends = p.cfg.Now().Add(p.brief.TTL + time.Second)
	return sight{Held, p.token.ID}
}

var (
	errPeopleAsked = errors.New("the scope requires approval: use a scope that does not")
	errNoJWT       = errors.New("the credential is not a JWT: use a scope with a JWT credential")
)

func (p *prober) obtains(ctx context.Context, life time.Duration) (*client.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	got, err := p.broker.Request(ctx, client.Ask{Scope: p.cfg.Scope, Params: p.cfg.Params, TTL: life, Task: Task, Reason: Reason})
	switch {
	case err != nil:
		return nil, err
	case got.Token == nil:
		return nil, errPeopleAsked
	case got.Token.Kind != "jwt":
		_, _ = p.broker.Release(ctx, got.Token.ID)
		return nil, errNoJWT
	}
	return got.Token, nil
}

// sawError interprets an error of a call that must work. A refusal by the broker means that the check does not hold. Any
// other error is inconclusive.
func sawError(err error) sight {
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		return sight{Broken, fmt.Sprintf("%d %s", problem.Status, problem.Title)}
	}
	if errors.Is(err, errPeopleAsked) || errors.Is(err, errNoJWT) {
		return sight{Broken, err.Error()}
	}
	return sight{Untold, err.Error()}
}

// The results of introspection.
const (
	active   = "active"
	inactive = "inactive"
)

func asIssued(token string) (string, error) { return token, nil }

// introspects introspects a token that was issued, after a change of it.
func (p *prober) introspects(ctx context.Context, token *client.Token, change func(string) (string, error), want string) sight {
	if token == nil {
		return sight{Untold, "nothing was issued"}
	}
	raw, err := change(token.Secret.Reveal())
	if err != nil {
		return sight{Untold, err.Error()}
	}
	got, err := p.send(ctx, attempt{
		method: http.MethodPost, path: "/oauth2/introspect", as: p.own, body: url.Values{"token": {raw}}.Encode(),
	}.with("Content-Type", "application/x-www-form-urlencoded"))
	var about struct{ Active *bool }
	switch {
	case err != nil:
		return sight{Untold, err.Error()}
	case got.status != http.StatusOK || json.Unmarshal(got.body, &about) != nil || about.Active == nil:
		return sight{Untold, fmt.Sprintf("%d, which is inconclusive", got.status)}
	}
	is := inactive
	if *about.Active {
		is = active
	}
	if is != want {
		return sight{Broken, is}
	}
	return sight{Held, is}
}

func releases(ctx context.Context, p *prober) sight {
	if p.token == nil {
		return sight{Untold, "nothing was issued"}
	}
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	if _, err := p.broker.Release(ctx, p.token.ID); err != nil {
		return sawError(err)
	}
	return sight{Held, "released"}
}

// expires waits until the credential that was issued for one second has expired, and introspects it.
func expires(ctx context.Context, p *prober) sight {
	if p.brief != nil && !wait.For(ctx, p.ends.Sub(p.cfg.Now())) {
		return sight{Untold, noTime}
	}
	return p.introspects(ctx, p.brief, asIssued, inactive)
}

// framing checks the headers of a page that everybody may see.
func framing(ctx context.Context, p *prober) sight {
	got, err := p.pages(ctx, attempt{method: http.MethodGet, path: "/signed-out"})
	switch {
	case err != nil:
		return sight{Untold, err.Error()}
	case !strings.EqualFold(got.header.Get("X-Frame-Options"), "DENY"),
		!strings.Contains(got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'"):
		return sight{Broken, "the headers that forbid framing are missing"}
	}
	return sight{Held, "forbidden"}
}
