package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/brevet-dev/brevet/scopes"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

func TestExample(t *testing.T) {
	s := testkit.NewStack(t, testkit.Options{Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: mail.read
    title: Read mail
    authority: read
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://mail.test, bind: dpop}
`)},
		{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)},
	}})
	server := httptest.NewUnstartedServer(nil)
	origin := "https://" + server.Listener.Addr().String()
	handler, err := handlerFor(resourceserver.Config{
		Issuer: testkit.Audience, Audience: "https://mail.test", Origin: origin, JWKS: s.URL + "/.well-known/jwks.json",
		HTTPClient: s.HTTP(t, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = handler
	server.StartTLS()
	t.Cleanup(server.Close)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Client(t, "spiffe://acme.test/agents/a").Request(t.Context(), client.Ask{Scope: "mail.read", Task: "t-1", Signer: signer})
	if err != nil {
		t.Fatal(err)
	}
	proof, err := signer.Proof(dpop.Request{Method: http.MethodGet, URL: origin + "/inbox", Token: got.Token.Secret.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, origin+"/inbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "DPoP "+got.Token.Secret.Reveal())
	req.Header.Set("DPoP", proof)
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if want := "the mail of spiffe://acme.test/agents/a, for the task t-1\n"; err != nil || resp.StatusCode != 200 || string(body) != want {
		t.Errorf("got %d %q, %v; want 200 %q", resp.StatusCode, body, err, want)
	}
}
