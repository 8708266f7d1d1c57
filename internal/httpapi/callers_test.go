package httpapi_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The operations under /v1 by who may call them.
var (
	forSandboxes = []wire{
		{target: "/v1/tokens"},
		{method: "GET", target: "/v1/scopes"},
		{method: "GET", target: "/v1/requests/" + someID},
		{method: "DELETE", target: "/v1/requests/" + someID},
		{target: "/v1/requests/" + someID + "/token", body: `{}`},
		{target: "/v1/in-force", body: `{"ids":["` + someID + `"]}`},
		{target: "/v1/issuances/" + someID + "/release", body: nothing},
		{target: "/v1/issuances/" + someID + "/uses", body: `{"calls":1}`},
		{target: "/v1/tasks/t-1/calls", body: `{}`},
	}
	forPeople = []wire{
		{method: "GET", target: "/v1/approvals"},
		{method: "GET", target: "/v1/approvals/events"},
		{method: "GET", target: "/v1/approvals/" + someID},
		{target: "/v1/approvals/" + someID + "/votes", body: `{"hash":"` + strings.Repeat("0", 64) + `","verdict":"approve"}`},
	}
	forBoth = []wire{
		{method: "GET", target: "/v1/whoami"},
		{method: "GET", target: "/v1/issuances"},
		{method: "GET", target: "/v1/issuances/events"},
		{method: "GET", target: "/v1/issuances/" + someID},
		{method: "GET", target: "/v1/issuances/" + someID + "/timeline"},
		{method: "GET", target: "/v1/issuances/" + someID + "/receipt"},
		{method: "GET", target: "/v1/audit/usage"},
		{method: "GET", target: "/v1/tasks/t-1/timeline?spiffe_id=" + chemist},
		{method: "GET", target: "/v1/tasks/t-1/calls?spiffe_id=" + chemist},
		{method: "GET", target: "/v1/tasks/t-1/receipt?spiffe_id=" + chemist},
		{method: "GET", target: "/v1/ledger/checkpoint"},
		{method: "GET", target: "/v1/ledger/keys"},
		{method: "GET", target: "/v1/ledger/entries"},
		{method: "GET", target: "/v1/ledger/proof/inclusion?index=0"},
		{method: "GET", target: "/v1/ledger/proof/consistency?from=1"},
		{method: "GET", target: "/v1/ledger/tiles/0/0"},
		{target: "/v1/tasks/t-1/end", body: `{"spiffe_id":"` + chemist + `"}`},
		{target: "/v1/revocations", body: `{"scope":"x","reason":"x"}`},
		{method: "GET", target: "/v1/quarantines"},
		{target: "/v1/quarantines", body: `{"spiffe_id":"` + lab + `","reason":"x"}`},
		{method: "DELETE", target: "/v1/quarantines?spiffe_id=" + lab},
		{method: "GET", target: "/v1/catalogue"},
		{method: "PUT", target: "/v1/catalogue"},
		{method: "GET", target: "/v1/catalogue/history"},
		{method: "GET", target: "/v1/catalogue/sha256:" + strings.Repeat("0", 64)},
		{target: "/v1/catalogue/proposals/sha256:" + strings.Repeat("0", 64), body: `{}`},
	}
)

// forGateways is for resource servers, and needs the proof of another caller in addition to their own: check_test.go.
var forGateways = []wire{{method: "GET", target: "/v1/check"}}

// forAnybody needs no authentication: statuslist_test.go.
var forAnybody = []wire{{method: "GET", target: "/v1/status-lists/" + someID}}

var inPath = regexp.MustCompile(`\{[a-z]+\}`)

// Every operation is in one of the lists that the tests below use.
func TestEveryOperationHasAnAccessTest(t *testing.T) {
	t.Parallel()
	operations, err := httpapi.Operations()
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range operations {
		method, path, _ := strings.Cut(operation, " ")
		form := regexp.MustCompile("^" + inPath.ReplaceAllString(path, "[^/]+") + "$")
		if strings.HasPrefix(path, "/v1/") && !slices.ContainsFunc(slices.Concat(forSandboxes, forPeople, forBoth, forGateways, forAnybody), func(call wire) bool {
			target, _, _ := strings.Cut(call.target, "?")
			return cmp.Or(call.method, "POST") == method && form.MatchString(target)
		}) {
			t.Errorf("%s is in none of the lists", operation)
		}
	}
}

// refusedOnce sends a call, and checks that it is refused and leaves exactly one entry, which names the person if there is one.
func refusedOnce(t *testing.T, s *testkit.Stack, h hostile, person string) {
	t.Helper()
	before, signings := entriesOf(t, s), s.Signings(t)
	got := h.call.send(t, s)
	if got.status != h.status || got.code != h.code {
		t.Errorf("%s: got %d %s, want %d %s", h.name, got.status, got.text, h.status, h.code)
	}
	added := entriesOf(t, s)
	added.skip(before)
	if len(added.requests) != 0 || len(added.refusals) != 1 || s.Signings(t) != signings {
		t.Errorf("%s: got %+v recorded, want one refusal", h.name, added)
		return
	}
	body := added.refusals[0].Body
	if body["detail"] != h.detail || fmt.Sprint(body["person_id"]) != person {
		t.Errorf("%s: the entry says %v, want %s of %s", h.name, body, h.detail, person)
	}
}

// H101: people get no credential, whatever roles they have. H94: workloads cannot vote, whatever roles they have.
func TestPeopleGetNoCredentialsAndWorkloadsCannotVote(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	root := s.Issuer() + "#root"
	for _, call := range forSandboxes {
		call.auth = "Bearer " + s.IDToken(t, "root")
		refusedOnce(t, s, hostile{"H101 " + call.method + call.target, call, 403, "not_allowed", "person"}, root)
	}
	for _, call := range forPeople {
		call.auth = "Bearer " + s.JWT(t, labAdmin)
		refusedOnce(t, s, hostile{"H94 " + call.method + call.target, call, 403, "not_allowed", "workload"}, "<nil>")
		call.auth, call.svid = "none", s.X509(t, labAdmin)
		refusedOnce(t, s, hostile{"H94 mTLS " + call.method + call.target, call, 403, "not_allowed", "workload"}, "<nil>")
	}
	s.DB.Check(t)
}

// H30: a call with a certificate and an ID token has two callers, so it is not authenticated.
func TestCertificateWithIDToken(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	for _, calls := range [][]wire{forSandboxes, forPeople, forBoth} {
		for _, call := range calls {
			call.auth, call.svid = "Bearer "+s.IDToken(t, "root"), s.X509(t, admin)
			refusedOnce(t, s, hostile{"H30 " + call.method + call.target, call, 401, "unauthenticated", "spiffe_id_invalid"}, "<nil>")
		}
	}
	s.DB.Check(t)
}

// The response to an unauthenticated call names the cause by a fixed text. For all causes, the rest of the response is the same.
func TestUnauthenticatedResponsesAreUniform(t *testing.T) {
	t.Parallel()
	// The ledger records at most 50 refusals each second, so the clock advances with every call.
	var calls atomic.Int64
	o := staffed
	o.Now = func() time.Time { return time.Now().Add(time.Duration(calls.Load()) * 30 * time.Millisecond) }
	s := testkit.NewStack(t, o)
	evil, err := devstack.NewProvider(devstack.ProviderConfig{Address: "127.0.0.1:0", ClientID: "brevet", People: staffed.People})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = evil.Close() })
	elsewhere, err := evil.IDToken("root")
	if err != nil {
		t.Fatal(err)
	}
	ours := s.IDToken(t, "root")
	spoiled := ours[:strings.LastIndexByte(ours, '.')] + elsewhere[strings.LastIndexByte(elsewhere, '.'):]
	otherKid := elsewhere[:strings.IndexByte(elsewhere, '.')] + ours[strings.IndexByte(ours, '.'):]
	var told string
	for name, tc := range map[string]struct{ token, detail string }{
		"of another provider":            {elsewhere, "id_token_issuer"},
		"with the signature of another":  {spoiled, "id_token_signature"},
		"with the key id of another":     {otherKid, "id_token_key"},
		"malformed":                      {canary, "svid_malformed"},
		"an SVID signed by another":      {mixed(t, s), "svid_signature"},
		"an SVID for another audience":   {audience(t, s), "svid_audience"},
		"ours, with something behind it": {ours + ".", "svid_malformed"},
	} {
		for _, call := range forBoth {
			calls.Add(2)
			call.auth = "Bearer " + tc.token
			refusedOnce(t, s, hostile{name + " " + call.method + call.target, call, 401, "unauthenticated", tc.detail}, "<nil>")
			text := causeless(t, anonymous(call.send(t, s).text))
			if told != "" && text != told {
				t.Errorf("%s: got\n%s\nand for other reasons\n%s", name, text, told)
			}
			told = text
		}
	}
	s.DB.Check(t)
}

// I14: a caller with forged tokens learns neither which trust domains are accepted nor which keys they have. Only the record
// distinguishes these.
func TestTrustDomainsCannotBeGuessed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	stranger, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: spiffeid.RequireTrustDomainFromString("unknown.test")})
	if err != nil {
		t.Fatal(err)
	}
	ours := s.JWT(t, agent)
	forged := func(td, audience, head string) string {
		t.Helper()
		claims := fmt.Sprintf(`{"sub":"spiffe://%s/agents/a","aud":[%q],"exp":%d}`, td, audience, time.Now().Add(time.Minute).Unix())
		if head == "" {
			head = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"x"}`))
		}
		return head + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	}
	head, _, _ := strings.Cut(ours, ".")
	foreign, err := stranger.JWTSVID(spiffeid.RequireFromString("spiffe://unknown.test/agents/a"), testkit.Audience)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		tokens  []string
		details []string
	}{
		"for this server": {
			[]string{
				forged("acme.test", testkit.Audience, ""), forged("acme.test", testkit.Audience, head), forged("unknown.test", testkit.Audience, ""), foreign,
			},
			[]string{"svid_authority", "svid_signature", "unknown_trust_domain", "unknown_trust_domain"},
		},
		"for another": {
			[]string{forged("acme.test", "https://elsewhere.test", ""), forged("unknown.test", "https://elsewhere.test", "")},
			[]string{"svid_audience", "svid_audience"},
		},
	} {
		told := ""
		for i, token := range tc.tokens {
			before := entriesOf(t, s)
			text := anonymous(wire{method: "GET", target: "/v1/whoami", auth: "Bearer " + token}.send(t, s).text)
			if told != "" && text != told {
				t.Errorf("%s: got\n%s\nand of another token\n%s", name, text, told)
			}
			told = text
			added := entriesOf(t, s)
			added.skip(before)
			if len(added.refusals) != 1 || added.refusals[0].Body["detail"] != tc.details[i] {
				t.Errorf("%s: got %+v recorded, want one refusal with %s", name, added.refusals, tc.details[i])
			}
		}
	}
}

// causeless returns a refusal without its cause, and checks that the cause is in the table.
func causeless(t *testing.T, text string) string {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	reason, _ := p["reason"].(string)
	if p["explanation"] != httpapi.Causes[reason] || reason == "" {
		t.Errorf("got the cause %q and the text %v", reason, p["explanation"])
	}
	delete(p, "reason")
	delete(p, "explanation")
	rest, _ := json.Marshal(p)
	return string(rest)
}

// audience returns a JWT-SVID for another audience.
func audience(t *testing.T, s *testkit.Stack) string {
	t.Helper()
	token, err := s.Acme.JWTSVID(s.X509(t, admin).ID, "https://elsewhere.test")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// H92 and I14: for a caller limited to a path, the response about a record outside the path is identical to the response about an
// unknown one. Errors of malformed calls reveal nothing either.
func TestRecordOutsideReachLooksUnknown(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	theirs := token(t, s.Client(t, neighbour), read)
	for _, pair := range [][2]wire{
		{{method: "GET", target: "/v1/issuances/" + theirs.ID}, {method: "GET", target: "/v1/issuances/" + someID}},
		{{target: "/v1/revocations", body: `{"id":"` + theirs.ID + `","reason":"x"}`}, {target: "/v1/revocations", body: `{"id":"` + someID + `","reason":"x"}`}},
		{
			{target: "/v1/tasks/" + theirs.Task + "/end", body: `{"spiffe_id":"` + neighbour + `"}`},
			{target: "/v1/tasks/nothing/end", body: `{"spiffe_id":"spiffe://nowhere.test/a"}`},
		},
		{
			{target: "/v1/quarantines", body: `{"spiffe_id":"` + neighbour + `","reason":"x"}`},
			{target: "/v1/quarantines", body: `{"spiffe_id":"spiffe://nowhere.test/a","reason":"x"}`},
		},
	} {
		for _, who := range []string{"lena", labAdmin} {
			var got [2]answer
			for i, call := range pair {
				call.auth = "Bearer " + proofOf(t, s, who)
				got[i] = call.send(t, s)
			}
			if got[0].status != 404 || anonymous(got[0].text) != anonymous(got[1].text) {
				t.Errorf("%s at %s: got %d\n%s\nand for nothing\n%s", who, pair[0].target, got[0].status, got[0].text, got[1].text)
			}
		}
	}
	for _, who := range []string{"lena", labAdmin} {
		bad := wire{method: "GET", target: "/v1/issuances?limit=x", auth: "Bearer " + proofOf(t, s, who)}.send(t, s)
		if bad.status != 400 || bad.code != "invalid_parameter" {
			t.Errorf("%s: got %d %s for a malformed limit, want 400", who, bad.status, bad.text)
		}
	}
	if state, err := s.Client(t, neighbour).State(t.Context(), theirs.ID); err != nil || state.Status != "issued" {
		t.Errorf("got %+v, %v, want it untouched", state, err)
	}
}

// proofOf returns a JWT-SVID of a workload, or an ID token of a person.
func proofOf(t *testing.T, s *testkit.Stack, who string) string {
	t.Helper()
	if strings.HasPrefix(who, "spiffe://") {
		return s.JWT(t, who)
	}
	return s.IDToken(t, who)
}
