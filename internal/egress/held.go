package egress

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/net/http/httpguts"
)

const (
	// confirmEvery is how often the gateway asks Brevet which credentials in use are alive.
	confirmEvery = 250 * time.Millisecond
	// confirmWithin bounds one such request. confirmTries is how often the gateway sends it while a call waits for the result.
	confirmWithin = 600 * time.Millisecond
	confirmTries  = 3
	// fresh is how long a confirmation is good for new calls. A credential that has ended must be unusable one second later.
	fresh = 900 * time.Millisecond
	// maxUses is the greatest number of uses that a report can hold.
	maxUses = 1_000_000_000
	// patience is how long calls in progress continue while Brevet can't be reached.
	patience = 3 * time.Second
)

// errEnded is the cause of an aborted call: its credential is no longer alive.
var errEnded = errors.New("the credential has ended")

// held is a credential or a permit that is alive as far as the gateway knows.
type held struct {
	id    string
	scope string
	// permit means that calls carry no credential: the scope only opens hosts. Then there is no value.
	permit bool
	user   string      // of a login, or the id of an AWS key
	value  secret.Text // what is sent, or signs the call: a token, a key, a password
	// session is the session token of a temporary AWS key. lines are the connections that present a certificate.
	session secret.Text
	lines   lines
	// masked are all spellings of the credential that responses must not contain.
	masked []secret.Text
	ends   time.Time
	// renew is when new calls need another credential, if that is before ends: the result of an exchange expires. beta is a value of
	// anthropic-beta that calls need.
	renew time.Time
	beta  string

	life context.Context //nolint:containedctx // what is done with the credential ends with it
	end  context.CancelCauseFunc

	calls     atomic.Int64 // calls that used the credential
	used      atomic.Pointer[time.Time]
	users     atomic.Int64
	open      atomic.Int64 // connections that present its certificate
	touched   atomic.Bool  // whether it was used since it was last confirmed
	confirmed atomic.Pointer[time.Time]
}

// ready reports whether the credential may be used without asking Brevet.
func (h *held) ready(now time.Time) bool {
	return h.alive(now) && now.Sub(*h.confirmed.Load()) < fresh
}

// spent reports whether new calls need another credential, although this one is alive.
func (h *held) spent(now time.Time) bool { return !h.renew.IsZero() && !now.Before(h.renew) }

func (h *held) alive(now time.Time) bool { return h.life.Err() == nil && now.Before(h.ends) }

// confirm asks Brevet in one call which of the credentials are alive, and ends the others. It returns an error if Brevet can't be
// asked.
func confirm(ctx context.Context, broker *client.Client, now func() time.Time, all ...*held) error {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	for some := range slices.Chunk(all, client.MaxInForce) {
		began := now() // the response may miss an end that is acknowledged after this
		ids := make([]string, len(some))
		for i, h := range some {
			h.touched.Store(false)
			ids[i] = h.id
		}
		alive, err := broker.InForce(ctx, ids)
		if err != nil {
			return err
		}
		for _, h := range some {
			if slices.Contains(alive, h.id) {
				h.confirmed.Store(&began)
			} else {
				h.end(errEnded)
			}
		}
	}
	return nil
}

// watch confirms the credentials at intervals that are in use, or that have an open connection with their certificate, with one
// call for all of them. If Brevet can't confirm a credential for longer than patience during use, watch ends it, which aborts the
// calls in progress. It returns when none is left.
func (p *credentialCache) watch(ctx context.Context) {
	ticker := time.NewTicker(confirmEvery)
	defer ticker.Stop()
	for range ticker.C {
		using, left := p.inUse()
		if !left {
			return
		}
		if len(using) == 0 {
			continue
		}
		if err := confirm(ctx, p.broker, p.now, using...); err == nil {
			continue
		}
		for _, h := range using {
			if h.users.Load() > 0 && p.now().Sub(*h.confirmed.Load()) > patience {
				h.end(errEnded)
			}
		}
	}
}

// inUse ends and drops the watched credentials that have expired. It returns those in use, and false if none is left at all.
func (p *credentialCache) inUse() (using []*held, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.watched = slices.DeleteFunc(p.watched, func(h *held) bool {
		if !now.Before(h.ends) || h.spent(now.Add(-lingers)) && h.users.Load() == 0 {
			h.end(errEnded)
		}
		return h.life.Err() != nil
	})
	for _, h := range p.watched {
		if h.users.Load() > 0 || h.open.Load() > 0 || h.touched.Load() {
			using = append(using, h)
		}
	}
	return using, len(p.watched) > 0
}

// count adds one call to the report.
func (h *held) count(now time.Time) {
	h.calls.Add(1)
	h.used.Store(&now)
}

// use starts a call with the credential. The returned context ends with the credential. The caller calls done when the call is
// over.
func (h *held) use(ctx context.Context) (using context.Context, done func()) {
	h.users.Add(1)
	h.touched.Store(true)
	using, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(errEnded) })
	return using, func() {
		stop()
		cancel(nil)
		h.touched.Store(true) // confirm it once more: a host may learn of its end first
		h.users.Add(-1)
	}
}

// hold returns what the gateway knows of a new credential before it extracts what its rule sends.
func (g *Gateway) hold(token *client.Token, began time.Time) *held {
	h := &held{id: token.ID, scope: token.Scope, ends: usableUntil(began, token.TTL)}
	h.life, h.end = context.WithCancelCause(context.Background())
	h.confirmed.Store(&began)
	return h
}

// usableUntil returns until when new calls use something that lives for a time.
func usableUntil(from time.Time, life time.Duration) time.Time {
	if life < 2*margin {
		return from.Add(life / 2)
	}
	return from.Add(life - margin)
}

// newHeld extracts from a credential what its rule sends. key is the private key of the gateway's own certificate request, if
// it made one.
func (g *Gateway) newHeld(token *client.Token, send scopes.Send, key secret.Text, began time.Time) (*held, error) {
	h := g.hold(token, began)
	var fits bool
	switch send.As {
	case scopes.SendAWS:
		fits = h.sign(membersOf(token))
	case scopes.SendCertificate:
		fits = h.prove(g, membersOf(token), key)
	default:
		fits = h.show(token, send)
	}
	if !fits {
		h.end(errEnded)
		return nil, &refusal{code: codeUnfit, scopes: []string{token.Scope}}
	}
	return h, nil
}

// newPermit returns the permit of a scope without a credential. The rule and the answer agree unless the catalogue changed after the
// rules were read. Then the call must go neither without a credential that the scope now has, nor with one.
func (g *Gateway) newPermit(token *client.Token, m match, began time.Time) (*held, error) {
	if token.Kind != m.scope.Credential {
		return nil, &refusal{code: codeUnavailable, explanation: "the scope has just changed", after: rulesKept}
	}
	h := g.hold(token, began)
	h.permit = true
	return h, nil
}

// show handles a credential that goes into the call as it is.
func (h *held) show(token *client.Token, send scopes.Send) bool {
	text := token.Secret.Reveal()
	if send.Field != "" {
		text, _ = membersOf(token)[send.Field].(string)
	}
	h.user = token.Field("username").Reveal()
	return h.showText(text, send) && (send.Field != "" || strings.EqualFold(token.Type, "Bearer"))
}

func (h *held) showText(text string, send scopes.Send) bool {
	h.value, h.masked = secret.New(text), spellings(text)
	if send.As == scopes.SendBasic {
		h.masked = append(h.masked, spellings(base64.StdEncoding.EncodeToString([]byte(send.User+":"+text)))...)
	}
	return text != "" && httpguts.ValidHeaderFieldValue(text)
}

// sign handles an AWS key. The member names are those of Vault's AWS engine.
func (h *held) sign(members map[string]any) bool {
	text := func(name string) string { s, _ := members[name].(string); return s }
	session := cmp.Or(text("session_token"), text("security_token"))
	h.user, h.value, h.session = text("access_key"), secret.New(text("secret_key")), secret.New(session)
	for _, one := range []string{h.user, h.value.Reveal(), session} {
		// If a signature does not match, S3 echoes the string in hex bytes.
		h.masked = append(h.masked, append(spellings(one), secret.New(fmt.Sprintf("% x", one)))...)
	}
	return h.user != "" && h.value.Reveal() != "" && httpguts.ValidHeaderFieldValue(h.user) && httpguts.ValidHeaderFieldValue(session)
}

// prove handles a certificate, either with its private key or for the gateway's own key. Its connections serve only this
// credential.
func (h *held) prove(g *Gateway, members map[string]any, key secret.Text) bool {
	text := func(name string) string { s, _ := members[name].(string); return s }
	if key.Reveal() == "" {
		key = secret.New(text("private_key"))
	}
	// Vault gives the chain as a list of certificates, or all of them in one text.
	chain, ok := members["ca_chain"].(string)
	if !ok {
		list, _ := json.Marshal(members["ca_chain"]) // it was decoded from JSON
		chain = string(list)
	}
	var each []string
	if json.Unmarshal([]byte(chain), &each) == nil {
		chain = strings.Join(each, "\n")
	}
	cert, err := tls.X509KeyPair([]byte(text("certificate")+"\n"+chain), []byte(key.Reveal()))
	if err != nil || !h.ends.Before(cert.Leaf.NotAfter) {
		return false
	}
	h.lines = g.proving(h, &cert)
	return true
}

// membersOf returns the members of a credential that is not a JWT. A credential that an engine returned unchanged has them one
// level down.
func membersOf(token *client.Token) map[string]any {
	members := map[string]any{}
	if token.Kind == scopes.KindKV || token.Kind == scopes.KindVault {
		_ = json.Unmarshal([]byte(token.Field("data").Reveal()), &members) // what is not an object has no members
		return members
	}
	for _, name := range token.Fields() {
		members[name] = token.Field(name).Reveal()
	}
	return members
}

// newKey makes a key and a certificate signing request for it. The request has no names: the scope decides them.
func newKey() (key secret.Text, csr string, err error) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, made)
	if err != nil {
		return secret.Text{}, "", fmt.Errorf("making a signing request: %w", err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return secret.New(text("PRIVATE KEY", der)), text("CERTIFICATE REQUEST", request), nil
}

// proving returns transports that present the certificate of a credential. Their connections close when the credential ends,
// even in the middle of a call. They refuse a host that requests no certificate: it would accept the call from anyone.
func (g *Gateway) proving(h *held, cert *tls.Certificate) lines {
	l := g.lines()
	for _, t := range []*quiet.Transport{l.one, l.many} {
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
			defer cancel()
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			plain, err := t.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			h.open.Add(1)
			stop := context.AfterFunc(h.life, func() { _ = plain.Close() })
			conn := &bounded{plain, sync.OnceFunc(func() { stop(); h.open.Add(-1) })}
			asked := false
			cfg := &tls.Config{RootCAs: g.cfg.Roots, MinVersion: tls.VersionTLS12, ServerName: host}
			if t.Protocols.HTTP2() {
				cfg.NextProtos = []string{"h2", "http/1.1"}
			}
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				asked = true
				return cert, nil
			}
			secured := tls.Client(conn, cfg)
			if err := secured.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			if !asked {
				_ = secured.Close()
				return nil, &refusal{
					code: codeUnfit, explanation: "the host requests no client certificate in the handshake, so the call would be sent without the credential",
				}
			}
			return secured, nil
		}
	}
	return l
}

// bounded is a connection that also closes when a credential ends.
type bounded struct {
	net.Conn
	forget func()
}

// Close implements [net.Conn].
func (b *bounded) Close() error {
	b.forget()
	return b.Conn.Close()
}
