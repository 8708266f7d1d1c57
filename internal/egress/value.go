package egress

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/net/http/httpguts"
)

// newHeld extracts from a credential what its rule sends. key is the private key of the gateway's own certificate request, if
// it made one.
func (g *Gateway) newHeld(token *client.Token, send scopes.Send, key secret.Text, began time.Time) (*held, error) {
	h := &held{id: token.ID, scope: token.Scope, ends: began.Add(token.TTL - margin)}
	if token.TTL < 2*margin {
		h.ends = began.Add(token.TTL / 2)
	}
	h.life, h.end = context.WithCancelCause(context.Background())
	h.confirmed.Store(&began)
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

// show handles a credential that goes into the call as it is.
func (h *held) show(token *client.Token, send scopes.Send) bool {
	text := token.Secret.Reveal()
	if send.Field != "" {
		text, _ = membersOf(token)[send.Field].(string)
	}
	h.user, h.value, h.masked = token.Field("username").Reveal(), secret.New(text), spellings(text)
	if send.As == scopes.SendBasic {
		h.masked = append(h.masked, spellings(base64.StdEncoding.EncodeToString([]byte(send.User+":"+text)))...)
	}
	return text != "" && httpguts.ValidHeaderFieldValue(text) && (send.Field != "" || strings.EqualFold(token.Type, "Bearer"))
}

// sign handles an AWS key. The member names are those of Vault's AWS engine.
func (h *held) sign(members map[string]any) bool {
	text := func(name string) string { s, _ := members[name].(string); return s }
	session := text("session_token")
	if session == "" {
		session = text("security_token")
	}
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
	cert, err := tls.X509KeyPair([]byte(text("certificate")+"\n"+chainOf(members["ca_chain"])), []byte(key.Reveal()))
	if err != nil || !h.ends.Before(cert.Leaf.NotAfter) {
		return false
	}
	h.lines = g.proving(h, &cert)
	return true
}

// chainOf returns the certificate chain as one text. Vault gives a list of certificates, or all of them in one text.
func chainOf(member any) string {
	text, ok := member.(string)
	if !ok {
		list, _ := json.Marshal(member) // it was decoded from JSON
		text = string(list)
	}
	var chain []string
	if json.Unmarshal([]byte(text), &chain) == nil {
		return strings.Join(chain, "\n")
	}
	return text
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
