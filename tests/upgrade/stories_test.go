package upgrade_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
)

// svids makes a new JWT-SVID of a sandbox for each call.
type svids struct {
	issuer *devstack.Issuer
	id     string
}

func (s svids) FetchJWTSVID(_ context.Context, params jwtsvid.Params) (*jwtsvid.SVID, error) {
	id, err := spiffeid.FromString(s.id)
	if err != nil {
		return nil, err
	}
	token, err := s.issuer.JWTSVID(id, params.Audience)
	if err != nil {
		return nil, err
	}
	return jwtsvid.ParseInsecure(token, []string{params.Audience})
}

// asker is a gateway.
type asker struct {
	at   string
	http *http.Client
}

func (a *asker) send(req *http.Request) (string, error) {
	resp, err := a.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return "", &answerError{resp.StatusCode, time.Duration(after) * time.Second, string(text)}
	}
	return string(text), nil
}

// introspect checks that a token is reported as active or not.
func (a *asker) introspect(ctx context.Context, token string, want bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.at+"/oauth2/introspect", strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	text, err := a.send(req)
	if err == nil && strings.Contains(text, `"active":true`) != want {
		err = &wrongError{fmt.Sprintf("got %.300s, want active %t", text, want)}
	}
	return err
}

// check asks whether a call with a token may pass, as nginx does.
func (a *asker) check(ctx context.Context, token string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.at+"/v1/check", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("X-Original-Method", http.MethodGet)
	req.Header.Set("X-Original-URI", "/issues")
	req.Header.Set("X-Original-Host", "git.test")
	_, err = a.send(req)
	return err
}

// books are the credentials that callers got, to be checked against the record.
type books struct {
	mu     sync.Mutex
	handed map[string]string // the kind of credential, by the id of its issuance
	alive  map[string]*client.Token
	over   map[string]*client.Token
}

func newBooks() *books {
	return &books{handed: map[string]string{}, alive: map[string]*client.Token{}, over: map[string]*client.Token{}}
}

func (b *books) enter(token *client.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handed[token.ID] = token.Kind
	b.alive[token.ID] = token
}

func (b *books) end(token *client.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.alive, token.ID)
	b.over[token.ID] = token
}

// party holds the participants of a story: all at the balancer, or all at one replica.
type party struct {
	*tally
	*books
	sandbox  *client.Client
	officer  *client.Client
	person   *client.Client
	asker    *asker
	database string // where the logins are valid, as its administrator reaches it
}

// hangUp makes everybody use a new connection for the next call, as they would after a while anyway.
func (p *party) hangUp() {
	p.sandbox.Close()
	p.officer.Close()
	p.person.Close()
	p.asker.http.CloseIdleConnections()
}

// ask lets the sandbox request something that policy allows.
func (p *party) ask(kind, scope string) (token *client.Token, err error) {
	err = p.call(kind, func(ctx context.Context) error {
		answer, err := p.sandbox.Request(ctx, client.Ask{Scope: scope, Task: "t-1", Reason: "upgrade"})
		if err == nil && answer.Token == nil {
			err = &wrongError{fmt.Sprintf("got no credential of %s", scope)}
		}
		token = answer.Token
		return err
	})
	if err == nil {
		p.enter(token)
	}
	return token, err
}

func (p *party) introspect(token *client.Token, want bool) error {
	kind := map[bool]string{true: "active", false: "inactive"}[want]
	return p.call(kind, func(ctx context.Context) error { return p.asker.introspect(ctx, token.Secret.Reveal(), want) })
}

func (p *party) release(token *client.Token) error {
	err := p.call("released", func(ctx context.Context) error {
		_, err := p.sandbox.Release(ctx, token.ID)
		return err
	})
	if err == nil {
		p.end(token)
	}
	return err
}

func (p *party) revoke(token *client.Token) error {
	err := p.call("revoked", func(ctx context.Context) error {
		_, err := p.officer.Revoke(ctx, client.Selection{ID: token.ID}, "upgrade")
		return err
	})
	if err == nil {
		p.end(token)
	}
	return err
}

// tokens lets a sandbox get a token. A gateway introspects it while it is active and after it has ended. Every fourth token is
// not ended.
func (p *party) tokens(kind string) caller {
	return func(n int) error {
		if n%8 == 7 {
			p.hangUp()
		}
		token, err := p.ask(kind, "git.issues.read")
		if err != nil {
			return err
		}
		if err := p.introspect(token, true); err != nil {
			return err
		}
		switch n % 4 {
		case 0, 1:
			err = p.revoke(token)
		case 2:
			err = p.release(token)
		case 3:
			return nil
		}
		if err != nil {
			return err
		}
		return p.introspect(token, false)
	}
}

// logins lets a sandbox get a login, which opens the database until it is released.
func (p *party) logins(int) error {
	token, err := p.ask("logins", "shop.orders.read")
	if err != nil {
		return err
	}
	err = p.opening(token, true)
	if err == nil {
		err = p.release(token)
	}
	if err == nil {
		err = p.opening(token, false)
	}
	return err
}

// opening checks that a login opens the database, or no longer does.
func (p *party) opening(token *client.Token, want bool) error {
	opens, err := p.opens(token)
	if err == nil && opens != want {
		err = &wrongError{fmt.Sprintf("a login opens the database: %t, want %t", opens, want)}
	}
	if err != nil {
		p.note("logins", err)
	}
	return err
}

// opens reports whether a login works.
func (p *party) opens(token *client.Token) (bool, error) {
	config, err := pgx.ParseConfig(p.database)
	if err != nil {
		return false, err
	}
	config.User, config.Password = token.Field("username").Reveal(), token.Field("password").Reveal()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, nil
	}
	return true, conn.Close(ctx)
}

// request lets the sandbox request something that needs approval.
func (p *party) request() (id string, err error) {
	key := rand.Text() // other stories ask for the same
	err = p.call("asked", func(ctx context.Context) error {
		answer, err := p.sandbox.Request(ctx, client.Ask{
			Scope: "git.issues.write", Task: "t-1", Reason: "upgrade", IdempotencyKey: key,
		})
		if err == nil && answer.Pending == nil {
			err = &wrongError{fmt.Sprintf("got %+v of what takes a person", answer)}
		}
		if err == nil {
			id = answer.Pending.ID
		}
		return err
	})
	return id, err
}

// vote shows a person the request, and votes to approve it.
func (p *party) vote(id string) error {
	var shown openapi.ApprovalCase
	err := p.call("shown", func(ctx context.Context) (err error) {
		shown, err = p.person.Approval(ctx, id)
		return err
	})
	if err != nil {
		return err
	}
	return p.call("voted", func(ctx context.Context) error {
		_, err := p.person.Vote(ctx, shown, openapi.VerdictApprove, "")
		return err
	})
}

func (p *party) redeem(id string) (token *client.Token, err error) {
	err = p.call("approved", func(ctx context.Context) error {
		answer, err := p.sandbox.Redeem(ctx, id, client.Ask{Scope: "git.issues.write", Task: "t-1"})
		if err == nil && answer.Token == nil {
			err = &wrongError{"got nothing for what was approved"}
		}
		token = answer.Token
		return err
	})
	if err == nil {
		p.enter(token)
	}
	return token, err
}

// approvals lets a sandbox wait for approval, and get the approved credential. It uses a new sandbox each time, over a separate
// connection: one sandbox may not send that many requests for approval.
func (p *party) approvals(w *world, of string) caller {
	return func(n int) (err error) {
		q := *p
		if q.sandbox, err = w.proved(fmt.Sprintf("spiffe://acme.test/agents/%s-%d", of, n), w.balancer.url()); err != nil {
			return err
		}
		defer q.sandbox.Close()
		id, err := q.request()
		if err != nil {
			return err
		}
		waited := make(chan error, 1)
		go func() {
			waited <- q.call("waited", func(ctx context.Context) error {
				state, err := q.sandbox.Wait(ctx, id)
				if err == nil && state.Status != openapi.StatusApproved {
					err = &wrongError{fmt.Sprintf("got %s, want approved", state.Status)}
				}
				return err
			})
		}()
		voted := q.vote(id)
		if err := <-waited; err != nil {
			return err
		}
		if voted != nil {
			return voted
		}
		_, err = q.redeem(id)
		return err
	}
}

// checks lets a gateway check one token for each call that it forwards, and searches lets an auditor search.
func (p *party) checks(token *client.Token) caller {
	return func(int) error {
		return p.call("checked", func(ctx context.Context) error { return p.asker.check(ctx, token.Secret.Reveal()) })
	}
}

func (p *party) searches(auditor *client.Client) caller {
	return func(int) error {
		return p.call("searched", func(ctx context.Context) error {
			page, err := auditor.Page(ctx, client.Filter{Scope: "git.issues.read", Limit: 20})
			if err == nil && len(page.Issuances) == 0 {
				err = &wrongError{"found nothing"}
			}
			return err
		})
	}
}
