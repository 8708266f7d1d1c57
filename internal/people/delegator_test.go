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

// delegated takes the tokens of these tests for what people let others present, and their logins for somebody else's.
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

// What is refused of a login is refused of what somebody else presents too.
func TestDelegatorRefuses(t *testing.T) {
	for name, bad := range badTokens {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			person, err := w.delegated(t).Delegator(t.Context(), bad.make(t, w))
			wantReason(t, person, err, bad.reason)
		})
	}
}

// Neither kind of token serves as the other.
func TestLoginsAndDelegationsAreApart(t *testing.T) {
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

// Where a person has another subject for each client, those who ask on their behalf and those who log in cannot be told to be
// one, who must not decide on it.
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
