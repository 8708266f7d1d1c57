package hostile_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// badIDs are texts that are not valid SPIFFE IDs.
var badIDs = []struct{ name, text string }{
	{"uppercase domain", "spiffe://ACME.test/" + marker},
	{"uppercase scheme", "SPIFFE://acme.test/" + marker},
	{"encoded dots", "spiffe://acme.test/%2e%2e/" + marker},
	{"encoded slash", "spiffe://acme.test/a%2f" + marker},
	{"empty segment", "spiffe://acme.test//" + marker},
	{"dot segment", "spiffe://acme.test/./" + marker},
	{"two dots", "spiffe://acme.test/a/../" + marker},
	{"trailing slash", "spiffe://acme.test/" + marker + "/"},
	{"port", "spiffe://acme.test:443/" + marker},
	{"user", "spiffe://root@acme.test/" + marker},
	{"query", "spiffe://acme.test/" + marker + "?b"},
	{"fragment", "spiffe://acme.test/" + marker + "#b"},
	{"2,049 bytes", "spiffe://acme.test/" + marker + strings.Repeat("a", 2049-len("spiffe://acme.test/"+marker))},
}

var idRows = []row{
	{h: "H32", sent: "capitals in the domain, escapes, empty or dotted segments, port, user, query, fragment, 2,049 bytes", then: "401 or a failed handshake; 422 in a catalogue", tries: idTries()},
	{h: "H33", sent: "`/agents/ab` where `/agents/a` is permitted", then: "403", tries: []try{
		denied("a longer name", twin, issues.Scope, "no_permit"),
		denied("a name before it", "spiffe://acme.test/agents", issues.Scope, "no_permit"),
		denied("other case", "spiffe://acme.test/agents/A", issues.Scope, "no_permit"),
	}},
	{h: "H34", sent: "a domain that only begins or looks like an accepted one", then: "401, or a failed handshake", tries: []try{
		unproven("suffix", "unknown_trust_domain", with("sub", "spiffe://acme.test.evil/agents/a")),
		unshaken("suffix in a certificate", "unknown_trust_domain", named("spiffe://acme.test.evil/agents/a")),
		unproven("Cyrillic", "id_token_issuer", with("sub", "spiffe://аcme.test/agents/a")),
		unshaken("Cyrillic in a certificate", "", named("spiffe://аcme.test/agents/a")),
		unproven("punycode", "unknown_trust_domain", with("sub", "spiffe://xn--cme-5cd.test/agents/a")),
		uncatalogued("Cyrillic in a catalogue", `Sandbox::"spiffe://аcme.test/agents/a"`),
	}},
	{h: "H35", sent: "an ID in a policy that is written as a pattern, and IDs that a pattern could match across segments", then: "422; 403", tries: []try{
		uncatalogued("a star", `Sandbox::"spiffe://acme.test/agents/*"`),
		uncatalogued("two stars", `Path::"spiffe://acme.test/**"`),
		uncatalogued("a name in braces", `Path::"spiffe://acme.test/{x}"`),
		denied("deeper", "spiffe://acme.test/agents/ab/a", issues.Scope, "no_permit"),
		denied("below another", "spiffe://acme.test/x/agents/a", issues.Scope, "no_permit"),
		denied("joined", "spiffe://acme.test/agents.a", issues.Scope, "no_permit"),
	}},
}

func idTries() []try {
	var all []try
	for _, bad := range badIDs {
		// A text that is not a SPIFFE ID could be the subject of a person, and is checked as such.
		all = append(all,
			unproven(bad.name, "id_token_issuer", with("sub", bad.text)),
			unshaken(bad.name+" in a certificate", "spiffe_id_invalid", named(bad.text)),
			uncatalogued(bad.name+" in a catalogue", fmt.Sprintf("Sandbox::%q", strings.ReplaceAll(bad.text, marker, "harmless"))))
	}
	return all
}

// uncatalogued lets an admin apply a catalogue with a policy about an invalid principal, which is refused. The answer quotes
// errors in the admin's own files, so the files hold no marker.
func uncatalogued(name, principal string) try {
	return refusedBy(name, func(t *testing.T, w *world, s *testkit.Stack) call {
		return proposing(t, s, append(catalogue[:1:1], scopes.File{Name: "policies.cedar", Data: []byte(
			`@id("x") permit (principal == ` + strings.Replace(principal, "Path::", "Sandbox::", 1) + `, action, resource);`)}))
	}, refusal{422, "invalid_catalogue", "catalogue"})
}

// proposing is a call by which an admin replaces the applied catalogue.
func proposing(t *testing.T, s *testkit.Stack, files []scopes.File) call {
	t.Helper()
	order := openapi.CatalogueOrder{Reason: "because"}
	for _, f := range files {
		order.Files = append(order.Files, openapi.CatalogueFile{Name: f.Name, Text: string(f.Data)})
	}
	return call{
		method: http.MethodPut, target: "/v1/catalogue", auth: "Bearer " + s.JWT(t, chief), body: string(marshal(t, order)),
		headers: []string{`If-Match: "` + digest(t, catalogue) + `"`},
	}
}

func digest(t *testing.T, files []scopes.File) string {
	t.Helper()
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return c.Digest()
}

// denied is a request that policy denies: 403, one entry, and no call to Vault.
func denied(name, who, scope, reason string) try {
	return deniedAsk(name, who, `{"scope":"`+scope+`","params":{"repo":"acme/api"},"task":"t-1"}`, reason)
}

func deniedAsk(name, who, body, reason string) try {
	return try{name, func(t *testing.T, w *world) {
		s := w.next()
		asked := len(w.vault.since(0))
		w.added(t)
		got := call{auth: "Bearer " + s.JWT(t, who), body: body}.send(t, s)
		refusal{403, "denied", "policy"}.check(t, got)
		if !strings.Contains(got.text, `"reason":"`+reason+`"`) {
			t.Errorf("got %s, want the reason %s", got.text, reason)
		}
		if calls := w.vault.since(asked); len(calls) != 0 {
			t.Errorf("Vault was asked for %v, want nothing", calls)
		}
		decided(t, w.added(t), who, "deny", reason)
		w.hush(t)
	}}
}

// decided checks that the ledger got one entry with that decision.
func decided(t *testing.T, entries []testkit.Entry, who, outcome, reason string) {
	t.Helper()
	if len(entries) != 1 {
		t.Fatalf("got %+v, want one entry", entries)
	}
	decision, _ := entries[0].Body["decision"].(map[string]any)
	if text := fmt.Sprint(entries[0].Body); !strings.Contains(text, who) || decision["outcome"] != outcome || decision["code"] != reason {
		t.Errorf("got %s, want %s of %s for %s", text, outcome, who, reason)
	}
}
