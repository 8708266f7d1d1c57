package people_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
)

func TestIdentifyRefuses(t *testing.T) {
	for name, bad := range badTokens {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			token := bad.make(t, w)
			person, err := w.Identify(t.Context(), token)
			wantReason(t, person, err, bad.reason)
			if !errors.Is(err, people.ErrToken) || errors.Is(err, people.ErrProviderUnavailable) {
				t.Errorf("got %v, want ErrToken alone", err)
			}
			for part := range strings.SplitSeq(token, ".") {
				if len(part) > 8 && strings.Contains(err.Error(), part) {
					t.Errorf("got the token's bytes in %q", err)
				}
			}
			if !slices.Contains([]string{"id_token_signature", "id_token_key", algorithm, malformed}, bad.reason) && w.fetches() > 0 {
				t.Error("the provider was asked because of a token that no key could make good")
			}
		})
	}
}

func TestIdentifyAccepts(t *testing.T) {
	for name, make := range map[string]func(testing.TB, *world) string{
		"plain":              with(nil),
		"no typ":             head(map[string]any{"typ": nil}),
		"a thumbprint":       head(map[string]any{"x5t": "AA"}),
		"audience as a list": with(map[string]any{"aud": []string{clientID}}),
		"azp":                with(map[string]any{"azp": clientID}),
		"Keycloak's":         with(map[string]any{"typ": "ID"}),
		"nbf in 5 s":         at("nbf", 5),
		"iat in 5 s":         at("iat", 5),
		"500 groups":         with(map[string]any{"groups": manyGroups(500)}),
		"other claims":       with(map[string]any{"nonce": "n", "acr": "1", "address": map[string]any{"country": "NL"}}),
		"ES256 of no use":    underKey("ES256", func(t testing.TB) crypto.Signer { t.Helper(); return ecKey(t, elliptic.P256()) }),
		"RS256":              underKey("RS256", rsaOf(2048)),
		"EdDSA":              underKey("EdDSA", ed),
		"PS256":              pssToken,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			person, err := w.Identify(t.Context(), make(t, w))
			if err != nil {
				t.Fatalf("got %v (%s), want a person", err, refusal.Reason(err))
			}
			if got, want := person.ID(), w.issuer+"#248289761001"; got != want {
				t.Errorf("got id %q, want %q", got, want)
			}
		})
	}
}

func TestOnlyAuthTimeShowsAFreshLogin(t *testing.T) {
	for name, tc := range map[string]struct {
		known bool
		age   time.Duration
		fresh bool
	}{
		"now":              {true, 0, true},
		"five minutes ago": {true, 5 * time.Minute, true},
		"a second longer":  {true, 5*time.Minute + time.Second, false},
		"unknown":          {false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claims, now := w.claims(), w.clock.Now()
			if tc.known {
				claims["auth_time"] = now.Add(-tc.age).Unix()
			}
			person, err := w.Identify(t.Context(), w.token(t, claims))
			if err != nil {
				t.Fatal(err)
			}
			if got := person.LoggedInWithin(5*time.Minute, now.Truncate(time.Second)); got != tc.fresh {
				t.Errorf("got fresh %t, want %t", got, tc.fresh)
			}
		})
	}
}

// A token that was received in time identifies its person later, as long as the provider has the key.
func TestIdentifyAtVerifiesAsOfTheLogin(t *testing.T) {
	w := newWorld(t)
	received, token := w.clock.Now(), w.token(t, w.claims())
	w.clock.advance(2 * time.Hour)
	if person, err := w.IdentifyAt(t.Context(), token, received); err != nil || person.Subject() != "248289761001" {
		t.Errorf("got %+v, %v, want the person", person, err)
	}
	ahead := w.clock.Now().Add(5 * time.Second)
	if person, err := w.IdentifyAt(t.Context(), w.token(t, w.claims()), ahead); err != nil || person.Subject() != "248289761001" {
		t.Errorf("another replica, whose clock is ahead, received it: got %+v, %v, want the person", person, err)
	}
	person, err := w.Identify(t.Context(), token)
	wantReason(t, person, err, "id_token_expired")
	for name, tc := range map[string]struct {
		token  string
		at     time.Time
		reason string
	}{
		"received after its end":        {token, received.Add(11 * time.Minute), "id_token_expired"},
		"received before it was issued": {token, received.Add(-time.Minute), "id_token_not_yet_valid"},
		"received in the future":        {w.token(t, w.claims()), w.clock.Now().Add(6 * time.Second), "id_token_not_yet_valid"},
		"changed":                       {payloadChanged(t, w), w.clock.Now(), "id_token_signature"},
		"of another key":                {otherKey(t, w), w.clock.Now(), "id_token_signature"},
	} {
		t.Run(name, func(t *testing.T) {
			person, err := w.IdentifyAt(t.Context(), tc.token, tc.at)
			wantReason(t, person, err, tc.reason)
		})
	}
}

func TestPersonIsWhatTheTokenSays(t *testing.T) {
	w := newWorld(t)
	person, err := w.Identify(t.Context(), w.token(t, w.claims()))
	if err != nil {
		t.Fatal(err)
	}
	now := w.clock.Now()
	if person.Issuer() != w.issuer || person.Subject() != "248289761001" || person.Name() != "Alice Archer" || person.Handle() != "alice" {
		t.Errorf("got %+v", person)
	}
	if !person.Issued().Equal(now) || !person.Expires().Equal(now.Add(10*time.Minute)) {
		t.Errorf("got a life from %s to %s", person.Issued(), person.Expires())
	}
	groups := person.Groups()
	if want := []string{"engineers", "oncall"}; !slices.Equal(groups, want) {
		t.Fatalf("got groups %q, want %q", groups, want)
	}
	groups[0] = "admins"
	if got := person.Groups()[0]; got != "engineers" {
		t.Errorf("got group %q after a caller changed its copy", got)
	}
	var nobody people.Person
	if !nobody.IsZero() || nobody.ID() != "" || person.IsZero() {
		t.Error("nobody is somebody")
	}
}

func TestNamesAndClaimsOfThePerson(t *testing.T) {
	w := newWorld(t)
	for name, tc := range map[string]struct {
		change       map[string]any
		name, handle string
		groups       int
	}{
		"a name":                       {nil, "Alice Archer", "alice", 2},
		"no name":                      {map[string]any{"name": nil}, "alice", "alice", 2},
		"an address":                   {map[string]any{"name": " ", "preferred_username": nil, "email": "a@acme.test"}, "a@acme.test", "", 2},
		"a sub":                        {map[string]any{"name": nil, "preferred_username": nil}, "248289761001", "", 2},
		"a long name":                  {map[string]any{"name": strings.Repeat("é", 150)}, strings.Repeat("é", 100), "alice", 2},
		"cut between":                  {map[string]any{"name": "x" + strings.Repeat("é", 150)}, "x" + strings.Repeat("é", 99), "alice", 2},
		"a name that moves the cursor": {map[string]any{"name": "\x00Ali\x00ce\x1b[2J\u009b\n"}, "Ali ce [2J", "alice", 2},
		"a name of nothing":            {map[string]any{"name": "\x00\x1b"}, "alice", "alice", 2},
		"no groups":                    {map[string]any{"groups": nil}, "Alice Archer", "alice", 0},
		// Azure names an endpoint if there are too many groups to list. Brevet does not fetch from it.
		"groups elsewhere": {map[string]any{
			"groups": nil, "_claim_names": map[string]any{"groups": "s"}, "_claim_sources": map[string]any{"s": map[string]any{"endpoint": "http://127.0.0.1:1/"}},
		}, "Alice Archer", "alice", 0},
	} {
		t.Run(name, func(t *testing.T) {
			person, err := w.Identify(t.Context(), w.token(t, merged(w.claims(), tc.change)))
			if err != nil {
				t.Fatal(err)
			}
			if person.Name() != tc.name || person.Handle() != tc.handle || len(person.Groups()) != tc.groups {
				t.Errorf("got %q, %q and %d groups, want %q, %q and %d", person.Name(), person.Handle(), len(person.Groups()), tc.name, tc.handle, tc.groups)
			}
		})
	}
	t.Run("claims of other names", func(t *testing.T) {
		v := w.verifier(t, func(cfg *people.Config) { cfg.GroupsClaim, cfg.OwnerClaim = "https://acme.test/roles", "nick" })
		person, err := v.Identify(t.Context(), w.token(t, merged(w.claims(), map[string]any{
			"https://acme.test/roles": []string{"r"}, "nick": "al",
		})))
		if err != nil || person.Handle() != "al" || !slices.Equal(person.Groups(), []string{"r"}) {
			t.Errorf("got %q, %q and %v", person.Handle(), person.Groups(), err)
		}
		person, err = v.Identify(t.Context(), w.token(t, merged(w.claims(), map[string]any{"nick": 7})))
		wantReason(t, person, err, claimed)
	})
}

// An accepted token is refused after it expires, according to Brevet's clock.
func TestIdentifyFollowsTheClock(t *testing.T) {
	w := newWorld(t)
	token := w.token(t, w.claims())
	w.clock.advance(10*time.Minute + 5*time.Second)
	if _, err := w.Identify(t.Context(), token); err != nil {
		t.Errorf("got %v within the leeway, want a person", err)
	}
	w.clock.advance(time.Second)
	person, err := w.Identify(t.Context(), token)
	wantReason(t, person, err, "id_token_expired")
}

func TestNewRefuses(t *testing.T) {
	good := people.Config{Issuer: "https://login.acme.test/realm", ClientID: clientID, Now: time.Now}
	if _, err := people.New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*people.Config){
		"no issuer":             func(cfg *people.Config) { cfg.Issuer = "" },
		"no client":             func(cfg *people.Config) { cfg.ClientID = "" },
		"logins as delegations": func(cfg *people.Config) { cfg.Delegations = []string{"agents", clientID} },
		"an empty audience":     func(cfg *people.Config) { cfg.Delegations = []string{""} },
		"no clock":              func(cfg *people.Config) { cfg.Now = nil },
		"http":                  func(cfg *people.Config) { cfg.Issuer = "http://login.acme.test" },
		"like loopback":         func(cfg *people.Config) { cfg.Issuer = "http://127.0.0.1.evil.test" },
		"another scheme":        func(cfg *people.Config) { cfg.Issuer = "file:///etc" },
		"no host":               func(cfg *people.Config) { cfg.Issuer = "https:login" },
		"userinfo":              func(cfg *people.Config) { cfg.Issuer = "https://me:secret@login.acme.test" },
		"query":                 func(cfg *people.Config) { cfg.Issuer = "https://login.acme.test?a=b" },
		"fragment":              func(cfg *people.Config) { cfg.Issuer = "https://login.acme.test#a" },
		"empty fragment":        func(cfg *people.Config) { cfg.Issuer = "https://login.acme.test#" },
		"no URL":                func(cfg *people.Config) { cfg.Issuer = "https://me:secret@[" },
		"http, by number":       func(cfg *people.Config) { cfg.Issuer = "http://10.0.0.1" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			change(&cfg)
			_, err := people.New(cfg)
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error that quotes nothing", err)
			}
		})
	}
}

func TestReason(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{people.ErrToken, "id_token_invalid"},
		{fmt.Errorf("voting: %w", people.ErrProviderUnavailable), "provider_unavailable"},
		{context.Canceled, "internal"},
	} {
		if got := refusal.Reason(tc.err); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.err, got, tc.want)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	w := newWorld(f)
	for _, bad := range badTokens {
		f.Add(bad.make(f, w))
	}
	good := with(nil)(f, w)
	f.Add(good)
	f.Fuzz(func(t *testing.T, raw string) {
		person, err := w.Identify(t.Context(), raw)
		if (err == nil) == person.IsZero() {
			t.Errorf("got %q and %v", person.ID(), err)
		}
		if err != nil && refusal.Reason(err) == "internal" {
			t.Errorf("got %v, want a reason", err)
		}
	})
}
