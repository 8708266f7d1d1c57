package httpapi_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// kinds are the texts that some place accepts as a proof or a token. Each is created again for each place.
var kinds = []struct {
	name string
	make func(k keyring) string
}{
	{"a JWT-SVID", func(k keyring) string { return k.s.JWT(k.t, agent) }},
	{"a gateway's JWT-SVID", func(k keyring) string { return k.s.JWT(k.t, gateway) }},
	{"an actor's JWT-SVID", func(k keyring) string { return actorToken(k.t, k.s, helper) }},
	{"a JWT-SVID for another audience", func(k keyring) string { return audience(k.t, k.s) }},
	{"an ID token", func(k keyring) string { return k.s.IDToken(k.t, "alice") }},
	{"an access token", func(k keyring) string { return k.access("git.issues.anyone") }},
	{"one of a certificate", func(k keyring) string { return k.access("git.issues.own") }},
	{"one of a key", func(k keyring) string { return k.access("git.issues.proved") }},
	{"one for one use", func(k keyring) string { return k.access("git.issues.once") }},
	{"a DPoP proof", func(k keyring) string {
		return proofFor(k.t, k.key, dpop.Request{Method: "POST", URL: testkit.Audience + "/v1/tokens", Nonce: k.nonce()})
	}},
}

// places are the uses of a proof or token, and the only kinds that each accepts.
var places = []struct {
	name  string
	takes []string
	works func(k keyring, text string) bool
}{
	{"who a call is from", []string{"a JWT-SVID", "a gateway's JWT-SVID", "an ID token"}, func(k keyring, text string) bool {
		return wire{method: "GET", target: "/v1/whoami", auth: "Bearer " + text}.send(k.t, k.s).status == 200
	}},
	{"who a call is from, as DPoP", nil, func(k keyring, text string) bool {
		return wire{method: "GET", target: "/v1/whoami", auth: "DPoP " + text}.send(k.t, k.s).status == 200
	}},
	{"which person approves", []string{"an ID token"}, func(k keyring, text string) bool {
		return wire{method: "GET", target: "/v1/approvals", auth: "Bearer " + text}.send(k.t, k.s).status == 200
	}},
	{"which sandbox asks", []string{"a JWT-SVID", "a gateway's JWT-SVID"}, func(k keyring, text string) bool {
		return wire{auth: "Bearer " + text, body: `{"scope":"git.issues.anyone","task":"t-1"}`}.send(k.t, k.s).status == 201
	}},
	{"client_assertion", []string{"a JWT-SVID", "a gateway's JWT-SVID"}, func(k keyring, text string) bool {
		return k.grants(nil, "client_assertion_type", jwtSPIFFE, "client_assertion", text)
	}},
	{"client_secret", nil, func(k keyring, text string) bool {
		return k.grants(nil, "client_id", agent, "client_secret", text)
	}},
	{"auth_req_id", nil, func(k keyring, text string) bool {
		return k.grants(k.own, "grant_type", approvalURN, "auth_req_id", text)
	}},
	{"who asks about a token", []string{"a JWT-SVID", "a gateway's JWT-SVID"}, func(k keyring, text string) bool {
		form := url.Values{"token": {"x"}}
		return post{path: "/oauth2/introspect", form: form, headers: []string{"Authorization", "Bearer " + text}}.send(k.t, k.s).status == 200
	}},
	{"the token that is asked about", accessTokens, func(k keyring, text string) bool {
		return introspected(k.t, k.s, gateway, text) != inactive
	}},
	{"the token that is handed down", []string{"an access token"}, func(k keyring, text string) bool {
		return exchangeToken(k.t, k.s, agent, text, helper).status == 200
	}},
	{"who it is handed down to", []string{"an actor's JWT-SVID"}, func(k keyring, text string) bool {
		return exchangeToken(k.t, k.s, agent, k.access("git.issues.anyone"), helper, "actor_token", text).status == 200
	}},
	{"the token that is revoked", accessTokens, func(k keyring, text string) bool {
		before := entriesOf(k.t, k.s)
		if got := about(k.t, k.s, "/oauth2/revoke", agent, text); got.status != 200 {
			k.t.Errorf("got %d %s, want 200 whatever it is", got.status, got.text)
		}
		added := entriesOf(k.t, k.s)
		added.skip(before)
		return len(added.requests) > 0
	}},
	{"a call behind a gateway", []string{"an access token", "one for one use"}, func(k keyring, text string) bool {
		return held{token: "Bearer " + text, target: "/issues"}.asNginx(k.t, k.s).send(k.t, k.s).status == 200
	}},
	{"a call by the certificate's owner", []string{"an access token", "one of a certificate", "one for one use"}, func(k keyring, text string) bool {
		return held{token: "Bearer " + text, target: "/issues", caller: k.own}.asNginx(k.t, k.s).send(k.t, k.s).status == 200
	}},
	{"a call with a proof", []string{"one of a key"}, func(k keyring, text string) bool {
		proof := proofFor(k.t, k.key, dpop.Request{Method: "GET", URL: "https://api.git.test/issues", Token: text})
		return held{token: "DPoP " + text, target: "/issues", more: []string{"DPoP: " + proof}}.asNginx(k.t, k.s).send(k.t, k.s).status == 200
	}},
	{"the proof of a key", []string{"a DPoP proof"}, func(k keyring, text string) bool {
		return wire{body: `{"scope":"git.issues.proved","task":"t-1"}`, headers: []string{"DPoP: " + text}}.send(k.t, k.s).status == 201
	}},
}

var accessTokens = []string{"an access token", "one of a certificate", "one of a key", "one for one use"}

// keyring is one sandbox with everything that it can authenticate with.
type keyring struct {
	t   *testing.T
	s   *testkit.Stack
	own *x509svid.SVID
	key *dpop.Signer
}

func (k keyring) access(scope string) string {
	ask := client.Ask{Scope: scope, Task: "t-1"}
	if scope == "git.issues.proved" {
		ask.Signer = k.key
	}
	return token(k.t, k.s.ClientWith(k.t, k.own), ask).Secret.Reveal()
}

// nonce returns a nonce from the server.
func (k keyring) nonce() string {
	proof := proofFor(k.t, k.key, dpop.Request{Method: "POST", URL: testkit.Audience + "/v1/tokens"})
	return wire{headers: []string{"DPoP: " + proof}}.send(k.t, k.s).header.Get(dpop.NonceHeader)
}

func (k keyring) grants(svid *x509svid.SVID, more ...string) bool {
	form := formOf(url.Values{"grant_type": {"client_credentials"}, "scope": {"git.issues.anyone"}}, more...)
	return post{svid: svid, form: form}.send(k.t, k.s).status == 200
}

// No kind of token is accepted in place of another (RFC 8725, section 3.12). The test presents each kind at each place.
func TestEachKindOfTokenIsAcceptedOnlyInItsPlace(t *testing.T) {
	t.Parallel()
	o := guarded
	o.Catalogue = slices.Clone(gated)
	o.Catalogue[0].Data = []byte(string(gated[0].Data) + `  - name: git.issues.anyone
    title: Read issues as whoever holds the token
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
    egress: [{hosts: [api.git.test], methods: [GET], paths: [/issues]}]
`)
	o.People, o.Rules = withPeople.People, withPeople.Rules
	s := testkit.NewStack(t, o)
	own, key := s.X509(t, agent), signer(t)
	for _, place := range places {
		for _, kind := range kinds {
			t.Run(strings.ReplaceAll(kind.name+" as "+place.name, " ", "_"), func(t *testing.T) {
				k := keyring{t, s, own, key}
				if got, want := place.works(k, kind.make(k)), slices.Contains(place.takes, kind.name); got != want {
					t.Errorf("got %t, want %t", got, want)
				}
			})
		}
	}
	s.DB.Check(t)
}
