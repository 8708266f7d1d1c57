package people_test

import (
	"testing"

	"github.com/brevet-dev/brevet/internal/people"
)

func owners(t *testing.T, templates ...string) people.Owners {
	t.Helper()
	o, err := people.NewOwners(templates)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOwnerOf(t *testing.T) {
	o := owners(t, "spiffe://acme.test/users/{owner}/**", "spiffe://acme.test/ci/*/{owner}", "spiffe://other.test/{owner}/*/x")
	for _, tc := range []struct{ id, want string }{
		{"spiffe://acme.test/users/alice/a", "alice"},
		{"spiffe://acme.test/users/alice/a/b/c", "alice"},
		{"spiffe://acme.test/users/alice", ""}, // ** is one segment or more
		{"spiffe://acme.test/users", ""},
		{"spiffe://acme.test/userss/alice/a", ""},
		{"spiffe://acme.test/a/users/alice/a", ""},
		{"spiffe://acme.test/ci/build-7/bob", "bob"},
		{"spiffe://acme.test/ci/build-7/bob/x", ""},
		{"spiffe://other.test/carol/1/x", "carol"},
		{"spiffe://other.test/users/alice/a", ""},
		{"spiffe://evil.test/users/alice/a", ""},
		{"spiffe://acme.test", ""},
		{"spiffe://acme.test/users/alice/", ""},
		{"spiffe://acme.test/users/../alice/a", ""},
		{"", ""},
	} {
		owner, ok := o.Of(tc.id)
		if owner != tc.want || ok != (tc.want != "") {
			t.Errorf("%q: got %q, %t, want %q", tc.id, owner, ok, tc.want)
		}
	}
}

// H83: another spelling of a handle does not hide the owner.
func TestOwns(t *testing.T) {
	o := owners(t, "spiffe://acme.test/users/{owner}/**", "spiffe://acme.test/users/*/by/{owner}")
	for _, tc := range []struct {
		handle, id string
		want       bool
	}{
		{"alice", "spiffe://acme.test/users/alice/a", true},
		{"bob", "spiffe://acme.test/users/alice/a", false},
		{"alic", "spiffe://acme.test/users/alice/a", false},
		{"alicee", "spiffe://acme.test/users/alice/a", false},
		{"Alice", "spiffe://acme.test/users/alice/a", true},
		{"alice", "spiffe://acme.test/users/ALICE/a", true},
		{"ａｌｉｃｅ", "spiffe://acme.test/users/alice/a", true},       // full width
		{"al\u0131ce", "spiffe://acme.test/users/alice/a", true},  // dotless i: cannot be compared
		{"\u212Aim", "spiffe://acme.test/users/kim/a", true},      // the Kelvin sign is a K
		{"\u017Fam", "spiffe://acme.test/users/sam/a", true},      // long s
		{"ali\u200Bce", "spiffe://acme.test/users/alice/a", true}, // zero width: cannot be compared
		{"аlice", "spiffe://acme.test/users/alice/a", true},       // Cyrillic: cannot be compared
		{"jürgen", "spiffe://acme.test/users/alice/a", true},      // nor can this
		{"alice ", "spiffe://acme.test/users/alice/a", true},
		{"", "spiffe://acme.test/users/alice/a", true},
		{"@acme.test", "spiffe://acme.test/users/alice/a", true},
		{"alice@acme.test", "spiffe://acme.test/users/alice/a", true},
		{"alice\uFF20acme.test", "spiffe://acme.test/users/alice/a", true},
		{"bob@acme.test", "spiffe://acme.test/users/alice/a", false},
		{"bob", "spiffe://acme.test/users/alice/by/bob", true}, // by either template
		{"alice", "spiffe://acme.test/users/alice/by/bob", true},
		{"carol", "spiffe://acme.test/users/alice/by/bob", false},
		{"alice", "spiffe://acme.test/agents/a", false},
		{"", "spiffe://acme.test/agents/a", false},
		{"alice", "no SPIFFE ID", false},
	} {
		if got := o.Owns(tc.handle, tc.id); got != tc.want {
			t.Errorf("%q and %s: got %t, want %t", tc.handle, tc.id, got, tc.want)
		}
	}
	var none people.Owners
	if none.Owns("alice", "spiffe://acme.test/users/alice/a") {
		t.Error("somebody owns a sandbox without a template")
	}
}

// Two accounts with the same handle both count as the owner, so neither approves for the other.
func TestAccountsWithOneHandleAreAllOwners(t *testing.T) {
	w, o := newWorld(t), owners(t, "spiffe://acme.test/users/{owner}/**")
	ids := map[string]bool{}
	for sub, handle := range map[string]string{"1": "alice", "2": "alice", "3": "Alice@acme.test"} {
		person, err := w.Identify(t.Context(), w.token(t, merged(w.claims(), map[string]any{"sub": sub, "preferred_username": handle})))
		if err != nil {
			t.Fatal(err)
		}
		ids[person.ID()] = true
		if !o.Owns(person.Handle(), "spiffe://acme.test/users/alice/a") || o.Owns(person.Handle(), "spiffe://acme.test/users/bob/a") {
			t.Errorf("%s, called %s, is not the owner of what is alice's and nothing else", person.ID(), handle)
		}
	}
	if len(ids) != 3 {
		t.Errorf("got the ids %v, want three", ids)
	}
}

func TestNewOwnersRefuses(t *testing.T) {
	for _, template := range []string{
		"",
		"/users/{owner}/**",
		"https://acme.test/users/{owner}/**",
		"spiffe:///users/{owner}/**",
		"spiffe://Acme.test/users/{owner}/**",
		"spiffe://*/users/{owner}/**",
		"spiffe://{owner}/users/**",
		"spiffe://acme.test",
		"spiffe://acme.test/",
		"spiffe://acme.test/users/**",
		"spiffe://acme.test/users/{owner}/{owner}",
		"spiffe://acme.test/users/{owner}x/**",
		"spiffe://acme.test/users/u-{owner}/**",
		"spiffe://acme.test/users/{Owner}/**",
		"spiffe://acme.test/users/{owner}/**/x",
		"spiffe://acme.test/**/{owner}",
		"spiffe://acme.test/users/{owner}/a*",
		"spiffe://acme.test/users/{owner}/",
		"spiffe://acme.test//{owner}/**",
		"spiffe://acme.test/users/../{owner}/**",
		"spiffe://acme.test/users/%7Bowner%7D/{owner}",
	} {
		if _, err := people.NewOwners([]string{"spiffe://acme.test/{owner}/**", template}); err == nil {
			t.Errorf("got owners for %q, want an error", template)
		}
	}
}
