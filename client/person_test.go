package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
)

// tokens is a source of fixed ID tokens, or of an error.
type tokens struct {
	next []string
	err  error
}

func (s *tokens) IDToken(context.Context) (string, error) {
	if s.err != nil {
		return "", s.err
	}
	token := s.next[0]
	s.next = s.next[1:]
	return token, nil
}

// Each call gets a new token from the source, and AsPerson does not change the client that it was called on.
func TestPersonPresentsANewTokenOnEachCall(t *testing.T) {
	var seen []string
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	t.Cleanup(srv.Close)
	nobody, err := client.New(client.Config{BaseURL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	person, err := nobody.AsPerson(&tokens{next: []string{"one", "two"}})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	for _, c := range []*client.Client{person, nobody, person} {
		if _, err := c.Issuance(t.Context(), "x"); !errors.Is(err, client.ErrAnswer) {
			t.Errorf("got %v for a redirect, want %v", err, client.ErrAnswer)
		}
	}
	want := []string{"Bearer one", "", "Bearer two"}
	if len(seen) != len(want) {
		t.Fatalf("got %d calls, want %d: a redirect was followed", len(seen), len(want))
	}
	for i, got := range seen {
		if got != want[i] {
			t.Errorf("call %d: got %q, want %q", i, got, want[i])
		}
	}
}

func TestPersonWithoutTokenSendsNoRequest(t *testing.T) {
	c := newClient(t, func(http.ResponseWriter, *http.Request) { t.Error("a call was made") })
	loggedOut := errors.New("logged out")
	person, err := c.AsPerson(&tokens{err: loggedOut})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := person.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"}); !errors.Is(err, loggedOut) {
		t.Errorf("got %v, want %v", err, loggedOut)
	}
	if _, err := c.AsPerson(nil); err == nil {
		t.Error("a person without a source was accepted")
	}
}

// A client can't authenticate both a workload and a person: the server would have to choose.
func TestClientCannotBePersonAndWorkload(t *testing.T) {
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString("acme.test")})
	if err != nil {
		t.Fatal(err)
	}
	svid, err := issuer.X509SVID(spiffeid.RequireFromString("spiffe://acme.test/a"))
	if err != nil {
		t.Fatal(err)
	}
	server := tlsconfig.AuthorizeID(svid.ID)
	for name, tc := range map[string]struct {
		option client.Option
		want   bool
	}{
		"X.509-SVID":  {client.WithX509(svid, issuer.Bundle(), server), false},
		"JWT-SVID":    {client.WithJWT(noSource{}, "https://brevet.test"), false},
		"server only": {client.WithServer(issuer.Bundle(), server), true},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := client.New(client.Config{BaseURL: "https://brevet.test"}, tc.option)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.AsPerson(&tokens{}); (err == nil) != tc.want {
				t.Errorf("got %v, want success: %t", err, tc.want)
			}
		})
	}
}

type noSource struct{}

func (noSource) FetchJWTSVID(context.Context, jwtsvid.Params) (*jwtsvid.SVID, error) {
	return nil, errors.New("none")
}
