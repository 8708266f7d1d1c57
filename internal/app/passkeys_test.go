package app

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/scopes"
)

func TestRelyingPartyIsTheConsoleURL(t *testing.T) {
	for url, want := range map[string]passkey.RelyingParty{
		"https://brevet.acme.example":       {ID: "brevet.acme.example", Origins: []string{"https://brevet.acme.example"}},
		"https://brevet.acme.example:8443/": {ID: "brevet.acme.example", Origins: []string{"https://brevet.acme.example:8443"}},
		"http://localhost:8080":             {ID: "localhost", Origins: []string{"http://localhost:8080"}},
	} {
		got, err := relyingParty(&ConsoleConfig{URL: url})
		if err != nil || got.ID != want.ID || !slices.Equal(got.Origins, want.Origins) {
			t.Errorf("%s: got %+v, %v, want %+v", url, got, err, want)
		}
	}
	if got, err := relyingParty(nil); err != nil || got.Configured() {
		t.Errorf("without a console: got %+v, %v", got, err)
	}
	if _, err := relyingParty(&ConsoleConfig{URL: "https://127.0.0.1"}); err == nil {
		t.Error("an address is taken for a site")
	}
}

func TestUnsignableScopesAreLogged(t *testing.T) {
	catalogue, err := scopes.Load([]scopes.File{
		{Name: "a.yaml", Data: []byte(`scopes:
  - name: git.push
    title: Push
    authority: write
    resource: git:all
    ttl: {default: 1m, max: 5m}
    approval: {group: oncall, passkey: required}
    credential: {kind: jwt, audience: https://git.test}
`)},
		{Name: "p.cedar", Data: []byte(`@id("p") permit (principal, action, resource);`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	warnUnsignable(t.Context(), log, passkey.RelyingParty{ID: "x", Origins: []string{"https://x"}}, catalogue)
	if said.Len() != 0 {
		t.Errorf("with a console: said %s", said.String())
	}
	warnUnsignable(t.Context(), log, passkey.RelyingParty{}, catalogue)
	if !strings.Contains(said.String(), "level=WARN") || !strings.Contains(said.String(), "git.push") {
		t.Errorf("without a console: said %s", said.String())
	}
}

func TestApprovalsWithoutOwnersAreLogged(t *testing.T) {
	load := func(approval string) *scopes.Catalogue {
		catalogue, err := scopes.Load([]scopes.File{
			{Name: "a.yaml", Data: []byte(`scopes:
  - name: git.push
    title: Push
    authority: write
    resource: git:all
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://git.test}
` + approval)},
			{Name: "p.cedar", Data: []byte(`@id("p") permit (principal, action, resource);`)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return catalogue
	}
	const approval = "    approval: {group: oncall}\n"
	for name, tc := range map[string]struct {
		people    *PeopleConfig
		catalogue *scopes.Catalogue
		warned    bool
	}{
		"no owners":    {&PeopleConfig{}, load(approval), true},
		"owners":       {&PeopleConfig{Owners: []string{"spiffe://acme.test/users/{owner}/**"}}, load(approval), false},
		"no approvals": {&PeopleConfig{}, load(""), false},
		"no people":    {nil, load(approval), false},
	} {
		var said bytes.Buffer
		warnUnowned(t.Context(), slog.New(slog.NewTextHandler(&said, nil)), tc.people, tc.catalogue)
		if got := strings.Contains(said.String(), "level=WARN"); got != tc.warned {
			t.Errorf("%s: got a warning %t, want %t: %s", name, got, tc.warned, said.String())
		}
	}
}
