package httpapi_test

import (
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// An independent JOSE implementation accepts Brevet's tokens and proofs, and Brevet accepts its proofs.
func TestJoseAgrees(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bindsKeys)
	key := signer(t)
	got, err := s.Client(t, agent).Request(t.Context(), client.Ask{Scope: "mail.read", Task: "t-1", Signer: key})
	if err != nil {
		t.Fatal(err)
	}
	raw := got.Token.Secret.Reveal()
	jwks, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	read := testkit.Jose(t, testkit.JoseTask{
		Task: "verify", Token: raw, JWKS: jwks, Issuer: testkit.Audience, Audience: "https://mail.test", Alg: "ES256",
	})
	cnf, _ := read.Claims["cnf"].(map[string]any)
	if read.Claims["sub"] != agent || read.Claims["jti"] != got.Token.ID || cnf["jkt"] != key.Thumbprint() || read.Thumbprint != read.KeyID {
		t.Errorf("jose reads our token as %+v", read)
	}
	ours := proofFor(t, key, dpop.Request{Method: "GET", URL: "https://mail.test/inbox?q=1", Token: raw})
	checked := testkit.Jose(t, testkit.JoseTask{Task: "check", Proof: ours})
	if checked.Thumbprint != key.Thumbprint() || checked.Claims["htu"] != "https://mail.test/inbox" || checked.Claims["htm"] != "GET" {
		t.Errorf("jose reads our proof as %+v", checked)
	}

	nonce := nonceOf(t, s)
	for _, alg := range []string{"ES256", "ES384", "EdDSA"} {
		theirs := testkit.Jose(t, testkit.JoseTask{
			Task: "prove", Alg: alg, Method: "POST", URL: s.URL + "/v1/tokens", Nonce: nonce,
		})
		answer := proved{svid: agent, body: `{"scope":"mail.read","task":"t-1"}`, proofs: []string{theirs.Proof}}.send(t, s)
		if answer.status != 201 || answer.token.TokenType != "DPoP" {
			t.Fatalf("%s: got %d %s, want a token for jose's proof", alg, answer.status, answer.text)
		}
		if c := tokenOf(t, s, answer.token.Token, "https://mail.test").Confirm; c == nil || c.JKT != theirs.Thumbprint {
			t.Errorf("%s: got cnf %+v, want %s", alg, c, theirs.Thumbprint)
		}
	}
}

// It accepts a token of each algorithm, and the status list of each, which has the default algorithm.
func TestJoseAgreesOnAlgorithms(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withAlgorithms)
	jwks, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	for algorithm, ask := range signedBy {
		issued := token(t, s.Client(t, agent), ask)
		raw := issued.Secret.Reveal()
		read := testkit.Jose(t, testkit.JoseTask{Task: "verify", Token: raw, JWKS: jwks, Issuer: testkit.Audience, Audience: "https://git.test", Alg: algorithm})
		if read.Claims["sub"] != agent || read.Claims["jti"] != issued.ID || read.Thumbprint != read.KeyID {
			t.Errorf("%s: jose reads our token as %+v", algorithm, read)
		}
		path, _ := listOf(t, tokenOf(t, s, raw, "https://git.test"))
		_, _, list := get(t, s, path)
		if read := testkit.Jose(t, testkit.JoseTask{Task: "status", Token: raw, List: list, JWKS: jwks, Alg: algorithm}); read.Status != 0 {
			t.Errorf("%s: jose reads %d from %v, want 0", algorithm, read.Status, read.Claims)
		}
	}
}

// It also reads Brevet's status lists.
func TestJoseAgreesOnStatusLists(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, withLists())
	c := s.Client(t, agent)
	jwks, err := s.Minter.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	issued := map[int]*client.Token{}
	for want := range 2 {
		issued[want] = token(t, c, client.Ask{Scope: "mail.read", Task: "t-1"})
	}
	if _, err := c.Release(t.Context(), issued[1].ID); err != nil {
		t.Fatal(err)
	}
	for want, tok := range issued {
		raw := tok.Secret.Reveal()
		path, _ := listOf(t, tokenOf(t, s, raw, "https://mail.test"))
		_, _, list := get(t, s, path)
		read := testkit.Jose(t, testkit.JoseTask{Task: "status", Token: raw, List: list, JWKS: jwks, Alg: "ES256"})
		if read.Status != want || read.Claims["ttl"] != 20.0 {
			t.Errorf("jose reads %d from %v, want %d", read.Status, read.Claims, want)
		}
	}
}
