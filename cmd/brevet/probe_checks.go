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
		"issues", "the scope is issued to the prober's own SVID",
		"Sandboxes get nothing, or this prober may not have the scope: brevet request says why.", issues,
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
		"no_svid", "a call that proves nobody gets 401", "Anybody who reaches the port is somebody. Take it off the network.",
		func(ctx context.Context, p *prober) sight { return p.refusedWith(ctx, whoami, http.StatusUnauthorized) },
	},
	{
		"self_signed", "a certificate that has signed itself is refused", "Anybody can be any sandbox. Take it off the network.",
		func(ctx context.Context, p *prober) sight { return p.shows(ctx, p.selfSigned) },
	},
	{
		"foreign_authority", "a certificate of an unknown authority is refused", "Anybody can be any sandbox. Take it off the network.",
		func(ctx context.Context, p *prober) sight { return p.shows(ctx, p.signedElsewhere) },
	},
	{
		"other_audience", "a JWT-SVID for another audience gets 401",
		"Whatever other service gets a JWT-SVID of a sandbox can act as the sandbox here.", otherAudience,
	},
	{
		"alg_none", "a JWT-SVID that nobody has signed gets 401", "Anybody can be any sandbox. Take it off the network.",
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
		"Whoever can send a header can be any sandbox: something on the way ends TLS, or the broker believes it.",
		func(ctx context.Context, p *prober) sight {
			a := whoami
			a.header = map[string]string{"X-Forwarded-Client-Cert": "URI=" + p.id.String(), "X-SPIFFE-ID": p.id.String()}
			return p.refusedWith(ctx, a, http.StatusUnauthorized)
		},
	},
}

var wireChecks = []probeCheck{
	{
		"plain_http", "HTTP without TLS is refused", "Credentials can go over the network in the clear.",
		func(ctx context.Context, p *prober) sight { return p.plainly(ctx) },
	},
	{
		"tls_1_1", "TLS 1.1 is refused", "Something on the way ends TLS, and takes a version that is broken.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS11) },
	},
	{
		"tls_1_2", "TLS 1.2 is refused", "Something on the way ends TLS: who calls is not known behind it.",
		func(ctx context.Context, p *prober) sight { return p.speaks(ctx, tls.VersionTLS12) },
	},
	{
		"foreign_host", "a call for another host gets 421", "A page of another site can be made to call the broker by a name of its own.",
		func(ctx context.Context, p *prober) sight {
			a := whoami
			a.as, a.host = p.own, elsewhere
			return p.refusedWith(ctx, a, http.StatusMisdirectedRequest)
		},
	},
	{
		"foreign_page", "a browser's call for another site gets 403", "A page of another site can act as whoever looks at it.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, p.posts(p.nothing(), "Sec-Fetch-Site", "cross-site"), http.StatusForbidden)
		},
	},
	{
		"metrics", "there are no metrics on the port of the API", "Anybody who reaches the port sees what is issued how often.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/metrics", as: p.own}, http.StatusNotFound)
		},
	},
	{
		"profiles", "there are no profiles on the port of the API", "Anybody who reaches the port can read from the broker's memory.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/debug/pprof/heap", as: p.own}, http.StatusNotFound)
		},
	},
}

// mostBody is the limit for a body in bytes, except for catalogues.
const mostBody = 64 << 10

var bodyChecks = []probeCheck{
	{
		"unknown_scope", "a scope that is not there gets 403", "Something else than the catalogue decides what is issued.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, p.posts(p.nothing(), "", ""), http.StatusForbidden)
		},
	},
	{
		"duplicate_key", "JSON with a key twice gets 400", "What was checked on the way and what is decided about can be two things.",
		func(ctx context.Context, p *prober) sight {
			body := strings.Replace(p.nothing(), "{", `{"scope":"brevet.probe.none",`, 1)
			return p.refusedWith(ctx, p.posts(body, "", ""), http.StatusBadRequest)
		},
	},
	{
		"large_body", "a body above 64 KiB gets 413", "A few callers can take all memory.",
		func(ctx context.Context, p *prober) sight {
			body := strings.Replace(p.nothing(), "{", "{"+strings.Repeat(" ", mostBody), 1)
			return p.refusedWith(ctx, p.posts(body, "", ""), http.StatusRequestEntityTooLarge)
		},
	},
	{
		"get_vote", "a vote by GET gets 405", "A link that is fetched in advance can approve.",
		func(ctx context.Context, p *prober) sight {
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: "/v1/approvals/" + nowhere + "/votes", as: p.own}, http.StatusMethodNotAllowed)
		},
	},
}

var foreignChecks = []probeCheck{
	{
		"foreign_issuance", "an issuance of another trust domain gets 404", "Trust domains see each other's records.",
		func(ctx context.Context, p *prober) sight {
			path := "/v1/issuances/" + url.PathEscape(p.cmd.Foreign)
			return p.refusedWith(ctx, attempt{method: http.MethodGet, path: path, as: p.own}, http.StatusNotFound)
		},
	},
}

var consoleChecks = []probeCheck{
	{
		"console_foreign_form", "a form of another site gets 403 at the console", "A page of another site can decide for an approver who looks at it.",
		func(ctx context.Context, p *prober) sight {
			got, err := attempt{method: http.MethodPost, path: "/logout", header: map[string]string{
				"Origin": "https://" + elsewhere, "Sec-Fetch-Site": "cross-site", "Content-Type": "application/x-www-form-urlencoded",
			}}.over(ctx, p.console, strings.TrimRight(p.cmd.Console, "/"))
			return refused(got, err, http.StatusForbidden)
		},
	},
	{
		"console_framing", "the console lets no page frame it", "A page of another site can lay the console's buttons under its own.", framing,
	},
}

var tokenChecks = []probeCheck{
	{
		"active", "what was issued is active", "Who asks about tokens is told that good ones are dead.",
		func(ctx context.Context, p *prober) sight { return p.asks(ctx, p.token, active) },
	},
	{
		"prolonged", "it is inactive with a later end written into it", "Signatures are not checked: anybody can make tokens.",
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
	{"released", "it can be released", "What a sandbox ends lives on.", releases},
	{
		"dead", "it is inactive after that", "What a sandbox ends lives on.",
		func(ctx context.Context, p *prober) sight { return p.asks(ctx, p.token, inactive) },
	},
	{"expired", "what was issued for a second is inactive after it", "Tokens outlive their end.", expires},
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
		return sight{untold, "the Workload API gave no JWT-SVID: " + err.Error()}
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
	errPeopleAsked = errors.New("people have to agree first: name a scope that needs nobody")
	errNoJWT       = errors.New("the credential is no JWT: name a scope whose credential is one")
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
		return sight{untold, fmt.Sprintf("%d, which says nothing", got.status)}
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
		return sight{untold, "there was no time left"}
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
		return sight{broken, "the headers that forbid it are not there"}
	}
	return sight{held, "forbidden"}
}
