package hostile_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

var readingRows = []row{
	{h: "H96", sent: "webhooks to 169.254.169.254, `::ffff:127.0.0.1`, `fd00::`, decimal and other numeric hosts, a name that resolves to another address the next time, a redirect", then: "no call is made", apart: true, tries: []try{{"each", undialled}}},
	{h: "H97", sent: "a token of an unknown issuer or trust domain", then: "401, and nothing is fetched", tries: []try{
		unproven("an ID token", malformed, unknownIssuer(testkit.Audience)),
		unproven("an ID token for people", malformed, unknownIssuer("brevet")),
		unproven("a trust domain", "unknown_trust_domain", with("sub", "spiffe://unknown.test/agents/a")),
		unproven("an issuer beside the SVID", "id_token_issuer", func(t *testing.T, w *world) string {
			return signed(t, w, nil, map[string]any{"iss": unvisited(t), "sub": "alice"})
		}),
	}},
	{h: "H98", sent: "a cursor that was changed, forged, or issued to somebody else", then: "400", tries: []try{
		cursor("a bit flipped", "cursor_seal", func(t *testing.T, c string) string {
			raw, err := base64.RawURLEncoding.DecodeString(c)
			if err != nil {
				t.Fatal(err)
			}
			raw[len(raw)/2] ^= 1
			return b64(raw)
		}),
		cursor("cut", "cursor_seal", func(_ *testing.T, c string) string { return c[:len(c)-4] }),
		cursor("a number", "cursor_seal", func(*testing.T, string) string { return b64([]byte{0, 0, 0, 0, 0, 0, 0, 9}) }),
		cursor("a word", "cursor_seal", func(*testing.T, string) string { return marker }),
		cursor("padded", "cursor_encoding", func(_ *testing.T, c string) string { return c + "%3D%3D" }),
		cursor("SQL", "cursor_encoding", func(*testing.T, string) string { return url.QueryEscape("1'; DROP TABLE entries; --") }),
		{"of another reader", cursorOfAnother},
	}},
	{h: "H99", sent: "a limit of -1 or 10⁹", then: "400", tries: []try{
		limited("-1", "parameter_query"), limited("0", "parameter_query"), limited("1000000000", "parameter_query"), limited("501", "parameter_query"),
		limited("1.5", "parameter_form"), limited(marker, "parameter_form"), limited("", "parameter_form"), limited("1&limit=2", "parameter_form"),
	}},
	{h: "H100", sent: "somebody else's record", then: "404, as if it did not exist", tries: []try{{"to read and to end", foreignRecord}}},
	{h: "H101", sent: "an auditor or admin who asks for a credential", then: "403", tries: []try{
		denied("an auditor's SVID", auditor, issues.Scope, "no_permit"), denied("an admin's SVID", admin, issues.Scope, "no_permit"),
		person("an auditor", "dave"), person("an admin", "alice"), person("an approver", "bob"),
	}},
	{h: "H102", sent: "an admin who extends their own rights", then: "403; the change waits for a second admin", tries: []try{{"proposed and approved by one", ownProposal}}},
}

// unknownIssuer signs an ID token of alice for an issuer that exists and that Brevet must not call.
func unknownIssuer(aud string) tokenMaker {
	return func(t *testing.T, w *world) string {
		t.Helper()
		claims := changed(claims(w), map[string]any{"iss": unvisited(t), "sub": "alice", "aud": aud, "groups": []string{"oncall"}, "preferred_username": "alice"})
		return jws(t, ecKey(t), `{"alg":"ES256","kid":"k","typ":"JWT","iss":"`+marker+`"}`, string(marshal(t, claims)))
	}
}

// page reads the first page that an auditor may read, and returns the cursor to the next page.
func page(t *testing.T, w *world, who string) string {
	t.Helper()
	for range 2 {
		w.token(t, agent, issues)
	}
	got, err := w.s[0].Client(t, who).Page(t.Context(), client.Filter{Limit: 1})
	if err != nil || got.Next == "" {
		t.Fatalf("got %+v, %v, want a first page", got, err)
	}
	return got.Next
}

func cursor(name, detail string, spoil func(*testing.T, string) string) try {
	return refusedBy(name, func(t *testing.T, w *world, s *testkit.Stack) call {
		return call{method: "GET", target: "/v1/issuances?limit=1&cursor=" + spoil(t, page(t, w, agent))}
	}, refusal{400, "invalid_cursor", detail})
}

func cursorOfAnother(t *testing.T, w *world) {
	next := page(t, w, auditor)
	if got := (call{method: "GET", target: "/v1/issuances?limit=1&cursor=" + next, auth: "Bearer " + w.s[1].JWT(t, auditor)}).send(t, w.s[1]); got.status != http.StatusOK {
		t.Errorf("its own reader on the other replica: got %d %s", got.status, got.text)
	}
	for who, target := range map[string]string{agent: "", foreign: "", auditor: "&scope=git.issues.read"} {
		s := w.next()
		c := call{method: "GET", target: "/v1/issuances?limit=1&cursor=" + next + target, auth: "Bearer " + s.JWT(t, who)}
		refusal{400, "invalid_cursor", "cursor_seal"}.of(t, w, c, s)
	}
}

func limited(limit, detail string) try {
	return refused("limit "+limit, call{method: "GET", target: "/v1/issuances?limit=" + limit}, refusal{400, "invalid_parameter", detail})
}

func foreignRecord(t *testing.T, w *world) {
	mine := w.token(t, agent, issues)
	const nowhere = "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21"
	for _, c := range []call{
		{method: "GET", target: "/v1/issuances/%s"},
		{method: "GET", target: "/v1/requests/%s"},
		{method: "DELETE", target: "/v1/requests/%s"},
		{method: "POST", target: "/v1/issuances/%s/release", body: nothing},
	} {
		for _, who := range []string{twin, foreign, deputy} {
			var texts []string
			for _, id := range []string{mine.ID, nowhere} {
				s := w.next()
				one := c
				one.target, one.auth = fmt.Sprintf(c.target, id), "Bearer "+s.JWT(t, who)
				if who == deputy {
					one.auth = "Bearer " + s.JWT(t, twin+"/x")
				}
				got := refusal{404, "not_found", "id"}.of(t, w, one, s)
				texts = append(texts, got.code+got.detail)
			}
			if texts[0] != texts[1] {
				t.Errorf("%s: got %q and %q, want the same", c.target, texts[0], texts[1])
			}
		}
	}
	if state, err := w.s[0].Client(t, agent).State(t.Context(), mine.ID); err != nil || state.Status != openapi.StatusIssued {
		t.Errorf("got %+v, %v, want it untouched", state, err)
	}
}

// person requests a credential with an ID token.
func person(name, username string) try {
	return refusedBy(name, func(t *testing.T, _ *world, s *testkit.Stack) call {
		return call{auth: "Bearer " + s.IDToken(t, username)}
	}, refusal{403, "not_allowed", "person"})
}

// ownProposal lets an admin propose a wider grant and try to approve the proposal alone.
func ownProposal(t *testing.T, w *world) {
	wider := changedFiles(t, catalogue, `permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"authority:read", resource);`,
		`permit (principal, action, resource);`)
	proposed := proposing(t, w.s[0], wider).send(t, w.s[0])
	if proposed.status != http.StatusAccepted || !strings.Contains(proposed.text, `"proposed"`) {
		t.Fatalf("proposing: got %d %s", proposed.status, proposed.text)
	}
	deciding := func(s *testkit.Stack, who, verdict string) call {
		return call{
			target: "/v1/catalogue/proposals/" + digest(t, wider), auth: "Bearer " + s.JWT(t, who),
			headers: []string{`If-Match: "` + digest(t, catalogue) + `"`}, body: `{"verdict":"` + verdict + `","reason":"` + marker + `"}`,
		}
	}
	for _, s := range w.s {
		refusal{403, "own_proposal", "own_proposal"}.of(t, w, deciding(s, chief, "approve"), s)
	}
	denied("as before", chief, issues.Scope, "no_permit").do(t, w)
	for _, who := range []string{agent, auditor, admin} {
		s := w.next()
		refusal{403, "not_allowed", "role"}.of(t, w, deciding(s, who, "approve"), s)
	}
	if got := deciding(w.s[1], deputy, "reject").send(t, w.s[1]); got.status != http.StatusOK {
		t.Errorf("a second admin rejects: got %d %s", got.status, got.text)
	}
	denied("after the no", chief, issues.Scope, "no_permit").do(t, w)
}
