package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// checks returns all checks in the order in which they run. The short-lived credential is requested first, so that it has
// expired at the end.
func (c *ProbeCmd) checks() []probeCheck {
	all := []probeCheck{{
		"issues", "the prober's own SVID gets the scope",
		"Sandboxes get no credentials, or policy denies the prober this scope. Run brevet request to see why.", issues,
	}}
	all = append(all, callerChecks...)
	all = append(all, wireChecks...)
	all = append(all, bodyChecks...)
	if c.Foreign != "" { // a 404 for an id that does not exist says nothing
		all = append(all, foreignChecks...)
	}
	if c.Console != "" {
		all = append(all, consoleChecks...)
	}
	return append(all, tokenChecks...)
}

var whoami = attempt{method: http.MethodGet, path: "/v1/whoami"}

var callerChecks = []probeCheck{
	{
		"no_svid", "a call without authentication gets 401", "Anyone who reaches the port is authenticated. Take the broker off the network.",
		func(ctx context.Context, p *prober) sight { return p.refusedWith(ctx, whoami, http.StatusUnauthorized) },
	},
	{
		"self_signed", "a self-signed certificate is refused", "Anyone can impersonate any sandbox. Take the broker off the network.",
		func(ctx context.Context, p *prober) sight { return p.shows(ctx, p.selfSigned) },
	},
	{
		"foreign_authority", "a certificate of an unknown authority is refused", "Anyone can impersonate any sandbox. Take the broker off the network.",
		func(ctx context.Context, p *prober) sight { return p.shows(ctx, p.signedElsewhere) },
	},
	{
		"other_audience", "a JWT-SVID for another audience gets 401",
		"A service that receives a sandbox's JWT-SVID can impersonate the sandbox here.", otherAudience,
	},
	{
		"alg_none", "an unsigned JWT-SVID gets 401", "Anyone can impersonate any sandbox. Take the broker off the network.",
		func(ctx context.Context, p *prober) sight {
			raw, err := p.unsigned()
			if err != nil {
				return sight{untold, err.Error()}
			}
			return p.bears(ctx, raw)
		},
	},
	{
		"forwarded_certificate", "a certificate in a header gets 401",
		"Anyone who can send the header can impersonate any sandbox: a proxy terminates TLS, or the broker trusts the header.",
		func(ctx context.Context, p *prober) sight {
			a := whoami
			a.header = map[string]string{"X-Forwarded-Client-Cert": "URI=" + p.id.String(), "X-SPIFFE-ID": p.id.String()}
			return p.refusedWith(ctx, a, http.StatusUnauthorized)
		},
	},
}

var wireChecks = []probeCheck{
	{
		"plain_http", "HTTP without TLS is refused", "Credentials can cross the network unencrypted.",
		func(ctx context.Context, p *prober) sight { return p.plainly(ctx) },
	},
	{
		"tls_1_1", "TLS 1.1 is refused", "A proxy terminates TLS, and accepts an insecure version.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS11) },
	},
	{
		"tls_1_2", "TLS 1.2 is refused", "A proxy terminates TLS, so the broker cannot authenticate callers.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS12) },
	},
	{
		"foreign_host", "a call for another host gets 421", "A page of another site can call the broker by a host name of that site (DNS rebinding).",
		func(ctx context.Context, p *prober) sight {
			a := whoami
			a.as, a.host = p.own, elsewhere
			return p.refusedWith(ctx, a, http.StatusMisdirectedRequest)
		},
	},
	{
		"foreign_page", "a browser's cross-site call gets 403", "A page of another site can act as the person who opens it.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, p.posts(p.nothing(), "Sec-Fetch-Site", "cross-site"), http.StatusForbidden)
		},
	},
	{
		"metrics", "the API's port serves no metrics", "Anyone who reaches the port can see how often credentials are issued.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/metrics", as: p.own}, http.StatusNotFound)
		},
	},
	{
		"profiles", "the API's port serves no profiles", "Anyone who reaches the port can read from the broker's memory.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/debug/pprof/heap", as: p.own}, http.StatusNotFound)
		},
	},
}

// mostBody is the limit for a body in bytes, except for catalogues.
const mostBody = 64 << 10

var bodyChecks = []probeCheck{
	{
		"unknown_scope", "an unknown scope gets 403", "Something other than the catalogue decides what is issued.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, p.posts(p.nothing(), "", ""), http.StatusForbidden)
		},
	},
	{
		"duplicate_key", "JSON with a duplicate key gets 400", "A proxy and the broker can read different requests from the same body.",
		func(ctx context.Context, p *prober) sight {
			body := strings.Replace(p.nothing(), "{", `{"scope":"brevet.probe.none",`, 1)
			return p.refusedWith(ctx, p.posts(body, "", ""), http.StatusBadRequest)
		},
	},
	{
		"large_body", "a body above 64 KiB gets 413", "A few callers can exhaust the broker's memory.",
		func(ctx context.Context, p *prober) sight {
			body := strings.Replace(p.nothing(), "{", "{"+strings.Repeat(" ", mostBody), 1)
			return p.refusedWith(ctx, p.posts(body, "", ""), http.StatusRequestEntityTooLarge)
		},
	},
	{
		"get_vote", "a vote by GET gets 405", "A link that a browser prefetches can approve a request.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/v1/approvals/" + nowhere + "/votes", as: p.own}, http.StatusMethodNotAllowed)
		},
	},
}

var foreignChecks = []probeCheck{
	{
		"foreign_issuance", "an issuance of another trust domain gets 404", "Trust domains can read each other's records.",
		func(ctx context.Context, p *prober) sight {
			path := "/v1/issuances/" + url.PathEscape(p.cmd.Foreign)
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: path, as: p.own}, http.StatusNotFound)
		},
	},
}

var consoleChecks = []probeCheck{
	{
		"console_foreign_form", "the console answers a form of another site with 403", "A page of another site can vote as an approver who opens it.",
		func(ctx context.Context, p *prober) sight {
			got, err := attempt{method: http.MethodPost, path: "/logout", header: map[string]string{
				"Origin": "https://" + elsewhere, "Sec-Fetch-Site": "cross-site", "Content-Type": "application/x-www-form-urlencoded",
			}}.over(ctx, p.console, strings.TrimRight(p.cmd.Console, "/"))
			return refused(got, err, http.StatusForbidden)
		},
	},
	{
		"console_framing", "the console forbids framing", "A page of another site can hide the console's buttons under its own (clickjacking).", framing,
	},
}

var tokenChecks = []probeCheck{
	{
		"active", "the issued token is active", "Introspection reports valid tokens as inactive.",
		func(ctx context.Context, p *prober) sight { return p.asks(ctx, p.token, active) },
	},
	{
		"prolonged", "the token is inactive if its expiry is changed", "Signatures are not verified: anyone can forge tokens.",
		func(ctx context.Context, p *prober) sight {
			if p.token == nil {
				return sight{untold, "nothing was issued"}
			}
			raw, err := prolonged(p.token.Secret.Reveal())
			if err != nil {
				return sight{untold, err.Error()}
			}
			return p.introspects(ctx, raw, inactive)
		},
	},
	{"released", "the token can be released", "Sandboxes cannot end their credentials.", releases},
	{
		"dead", "the released token is inactive", "Released credentials stay valid.",
		func(ctx context.Context, p *prober) sight { return p.asks(ctx, p.token, inactive) },
	},
	{"expired", "a token issued for one second is inactive after that", "Tokens stay valid after they expire.", expires},
}

func (p *prober) refusedWith(ctx context.Context, a attempt, want int) sight {
	got, err := p.send(ctx, a)
	return refused(got, err, want)
}

// nothing returns a body that requests a scope which does not exist, so that nothing is issued if the broker accepts it.
func (p *prober) nothing() string {
	body, err := json.Marshal(map[string]string{"scope": "brevet.probe.nothing", "task": probeTask, "reason": probeReason})
	if err != nil {
		panic(err) // strings always encode
	}
	return string(body)
}

// posts requests a credential with the prober's own SVID.
func (p *prober) posts(body, header, value string) attempt {
	a := attempt{method: http.MethodPost, path: "/v1/tokens", as: p.own, body: body, header: map[string]string{"Content-Type": "application/json"}}
	if header != "" {
		a.header[header] = value
	}
	return a
}

// bears calls with a bearer token and without a certificate.
func (p *prober) bears(ctx context.Context, raw string) sight {
	a := whoami
	a.header = map[string]string{"Authorization": "Bearer " + raw}
	return p.refusedWith(ctx, a, http.StatusUnauthorized)
}

func otherAudience(ctx context.Context, p *prober) sight {
	waiting, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	svid, err := workloadapi.FetchJWTSVID(waiting, jwtsvid.Params{Audience: "https://" + elsewhere}, workloadapi.WithAddr(p.cmd.WorkloadAPI))
	if err != nil {
		return sight{untold, "no JWT-SVID from the Workload API: " + err.Error()}
	}
	return p.bears(ctx, svid.Marshal())
}

func (p *prober) shows(ctx context.Context, forge func() (tls.Certificate, error)) sight {
	pair, err := forge()
	if err != nil {
		return sight{untold, err.Error()}
	}
	return p.handshake(ctx, p.knows(&pair))
}

// issues requests one credential to release and one that will expire.
func issues(ctx context.Context, p *prober) sight {
	var err error
	if p.token, err = p.obtains(ctx, probeLife); err != nil {
		return sawError(err)
	}
	if p.brief, err = p.obtains(ctx, time.Second); err != nil {
		return sawError(err)
	}
	p.ends = time.Now().Add(p.brief.TTL + time.Second)
	return sight{held, p.token.ID}
}

func (p *prober) obtains(ctx context.Context, life time.Duration) (*client.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	got, err := p.broker.Request(ctx, client.Ask{Scope: p.cmd.Scope, Params: p.params, TTL: life, Task: probeTask, Reason: probeReason})
	switch {
	case err != nil:
		return nil, err
	case got.Token == nil:
		return nil, errPeopleAsked
	case got.Token.Kind != kindJWT:
		_, _ = p.broker.Release(ctx, got.Token.ID)
		return nil, errNoJWT
	}
	return got.Token, nil
}

var (
	errPeopleAsked = errors.New("the scope requires approval: use a scope that does not")
	errNoJWT       = errors.New("the credential is not a JWT: use a scope with a JWT credential")
)

// sawError interprets an error of a call that must work. A refusal by the broker means that the check does not hold. Any
// other error is inconclusive.
func sawError(err error) sight {
	var problem *client.Problem
	switch {
	case errors.Is(err, errPeopleAsked), errors.Is(err, errNoJWT):
		return sight{broken, err.Error()}
	case errors.As(err, &problem):
		return sight{broken, fmt.Sprintf("%d %s", problem.Status, problem.Title)}
	}
	return sight{untold, err.Error()}
}

// The results of introspection.
const (
	active   = "active"
	inactive = "inactive"
)

// asks introspects a token that was issued.
func (p *prober) asks(ctx context.Context, token *client.Token, want string) sight {
	if token == nil {
		return sight{untold, "nothing was issued"}
	}
	return p.introspects(ctx, token.Secret.Reveal(), want)
}

func (p *prober) introspects(ctx context.Context, raw, want string) sight {
	got, err := p.send(ctx, attempt{
		method: http.MethodPost, path: "/oauth2/introspect", as: p.own, body: url.Values{"token": {raw}}.Encode(),
		header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"},
	})
	var about struct{ Active *bool }
	switch {
	case err != nil:
		return sight{untold, err.Error()}
	case got.status != http.StatusOK || json.Unmarshal(got.body, &about) != nil || about.Active == nil:
		return sight{untold, fmt.Sprintf("%d, which is inconclusive", got.status)}
	}
	is := inactive
	if *about.Active {
		is = active
	}
	if is != want {
		return sight{broken, is}
	}
	return sight{held, is}
}

func releases(ctx context.Context, p *prober) sight {
	if p.token == nil {
		return sight{untold, "nothing was issued"}
	}
	ctx, cancel := context.WithTimeout(ctx, probeCall)
	defer cancel()
	if _, err := p.broker.Release(ctx, p.token.ID); err != nil {
		return sawError(err)
	}
	return sight{held, "released"}
}

// expires waits until the credential that was issued for one second has expired, and introspects it.
func expires(ctx context.Context, p *prober) sight {
	if p.brief == nil {
		return sight{untold, "nothing was issued"}
	}
	end := time.NewTimer(time.Until(p.ends))
	defer end.Stop()
	select {
	case <-end.C:
	case <-ctx.Done():
		return sight{untold, "no time left to run this check"}
	}
	return p.asks(ctx, p.brief, inactive)
}

// framing checks the headers of a page that everybody may see.
func framing(ctx context.Context, p *prober) sight {
	got, err := attempt{method: http.MethodGet, path: "/signed-out"}.over(ctx, p.console, strings.TrimRight(p.cmd.Console, "/"))
	switch {
	case err != nil:
		return sight{untold, err.Error()}
	case !strings.EqualFold(got.header.Get("X-Frame-Options"), "DENY"), !strings.Contains(got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'"):
		return sight{broken, "the headers that forbid framing are missing"}
	}
	return sight{held, "forbidden"}
}
