package people_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/go-jose/go-jose/v4"
)

// delegated returns a verifier for which the tokens of these tests are delegation tokens, and logins use another client.
func (w *world) delegated(t testing.TB) *people.Verifier {
	t.Helper()
	return w.verifier(t, func(cfg *people.Config) { cfg.ClientID, cfg.Delegations = "logins", []string{"another", clientID} })
}

func TestDelegator(t *testing.T) {
	w := newWorld(t)
	person, err := w.delegated(t).Delegator(t.Context(), w.token(t, w.claims()))
	if err != nil || person.ID() != w.issuer+"#248289761001" || len(person.Groups()) != 2 {
		t.Errorf("got %+v, %v, want the person of the token", person, err)
	}
}

// Delegator refuses every token that Identify refuses.
func TestDelegatorRefuses(t *testing.T) {
	for name, bad := range badTokens {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			person, err := w.delegated(t).Delegator(t.Context(), bad.make(t, w))
			wantReason(t, person, err, bad.reason)
		})
	}
}

// A login token is no delegation token, and a delegation token is no login token.
func TestLoginTokenIsNotADelegationToken(t *testing.T) {
	w := newWorld(t)
	v := w.verifier(t, func(cfg *people.Config) { cfg.Delegations = []string{"agents", "more"} })
	login := w.token(t, w.claims())
	person, err := v.Delegator(t.Context(), login)
	wantReason(t, person, err, "id_token_audience")
	for _, audience := range []any{"agents", "more", []string{"agents"}} {
		delegation := w.token(t, merged(w.claims(), map[string]any{"aud": audience}))
		if person, err := v.Delegator(t.Context(), delegation); err != nil || person.IsZero() {
			t.Errorf("%v: got %v, want a person", audience, err)
		}
		person, err := v.Identify(t.Context(), delegation)
		wantReason(t, person, err, "id_token_audience")
	}
	for name, claims := range map[string]map[string]any{
		"both":                 {"aud": []string{clientID, "agents"}},
		"two of ours":          {"aud": []string{"agents", "more"}},
		"got by another party": {"aud": "agents", "azp": clientID},
		"nearly":               {"aud": "agents/"},
	} {
		person, err := v.Delegator(t.Context(), w.token(t, merged(w.claims(), claims)))
		if refusal.Reason(err) != "id_token_audience" || !person.IsZero() {
			t.Errorf("%s: got %v, want id_token_audience", name, err)
		}
	}
	person, err = w.Delegator(t.Context(), w.token(t, merged(w.claims(), map[string]any{"aud": "agents"})))
	if !errors.Is(err, people.ErrNoDelegation) || !person.IsZero() {
		t.Errorf("with no audience for it: got %v, want ErrNoDelegation", err)
	}
}

// With pairwise subjects, Brevet cannot recognize a person who logs in as the one on whose behalf a sandbox asks, so it
// cannot keep them from deciding on that request.
func TestDelegatorRefusesPairwiseSubjects(t *testing.T) {
	for _, tc := range []struct{ subjects, reason string }{
		{`["pairwise"]`, "id_token_pairwise"}, {`["pairwise", "public"]`, ""}, {`["public"]`, ""},
	} {
		w := newWorld(t)
		keys := marshal(t, jose.JSONWebKeySet{Keys: w.keys})
		w.set(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/jwks" {
				_, _ = rw.Write(keys)
				return
			}
			_, _ = fmt.Fprintf(rw, `{"issuer": %q, "jwks_uri": %q, "subject_types_supported": %s}`, w.issuer, w.issuer+"/jwks", tc.subjects)
		})
		if _, err := w.delegated(t).Delegator(t.Context(), w.token(t, w.claims())); refusal.Reason(err) != tc.reason {
			t.Errorf("%s: got %v, want %q", tc.subjects, err, tc.reason)
		}
		if person, err := w.verifier(t, nil).Identify(t.Context(), w.token(t, w.claims())); err != nil || person.IsZero() {
			t.Errorf("%s: got %v of a login, want a person", tc.subjects, err)
		}
	}
}
