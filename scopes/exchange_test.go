package scopes_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit/testscopes"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	awsExchange = "as: aws, role: 'arn:aws:iam::123456789012:role/agents/site-{env}', region: eu-central-1"
	googlePool  = "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/agents/providers/brevet"
	platform    = "https://www.googleapis.com/auth/cloud-platform"
	tenant      = "11111111-2222-3333-4444-555555555555"
)

// exchanged is a catalogue with one scope that has this exchange.
func exchanged(audience, exchange, rest string) []scopes.File {
	return oneScope("{kind: jwt, audience: '" + audience + "', federation: {subject: 'a:b', exchange: {" + exchange + "}}" + rest + "}")
}

func TestExchangeIsRead(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	for _, tt := range []struct {
		audience, exchange string
		want               scopes.Exchange
		text               string
	}{
		{
			"sts.amazonaws.com", awsExchange, scopes.Exchange{
				As: "aws", URL: "https://sts.eu-central-1.amazonaws.com", Role: "arn:aws:iam::123456789012:role/agents/site-{env}", Region: "eu-central-1",
			}, "aws arn:aws:iam::123456789012:role/agents/site-{env}",
		},
		{
			"sts.amazonaws.com", "as: aws, role: 'arn:aws-cn:iam::123456789012:role/site', region: cn-north-1", scopes.Exchange{
				As: "aws", URL: "https://sts.cn-north-1.amazonaws.com.cn", Role: "arn:aws-cn:iam::123456789012:role/site", Region: "cn-north-1",
			}, "aws arn:aws-cn:iam::123456789012:role/site",
		},
		{
			"sts.amazonaws.com", "as: aws, role: 'arn:aws:iam::123456789012:role/site', region: eu-central-1, url: 'http://127.0.0.1:4566'", scopes.Exchange{
				As: "aws", URL: "http://127.0.0.1:4566", Role: "arn:aws:iam::123456789012:role/site", Region: "eu-central-1",
			}, "aws arn:aws:iam::123456789012:role/site",
		},
		{
			googlePool, "as: google", scopes.Exchange{
				As: "google", URL: "https://sts.googleapis.com", IAM: "https://iamcredentials.googleapis.com", Scopes: []string{platform},
			}, "google",
		},
		{
			"https:" + googlePool, "as: google, service_account: 'agent-{env}@acme.iam.gserviceaccount.com', scopes: [" + platform + ".read-only], " +
				"url: 'https://sts.acme.example', iam_url: 'https://iam.acme.example:8443'", scopes.Exchange{
				As: "google", URL: "https://sts.acme.example", IAM: "https://iam.acme.example:8443", Scopes: []string{platform + ".read-only"},
				ServiceAccount: "agent-{env}@acme.iam.gserviceaccount.com",
			}, "google agent-{env}@acme.iam.gserviceaccount.com",
		},
		{
			"api://AzureADTokenExchange", "as: azure, tenant: " + tenant + ", client: " + tenant + ", scope: 'https://storage.azure.com/.default'", scopes.Exchange{
				As: "azure", URL: "https://login.microsoftonline.com", Tenant: tenant, Client: tenant, Scope: "https://storage.azure.com/.default",
			}, "azure " + tenant,
		},
		{
			"https://api.anthropic.com", "as: anthropic, organization: " + tenant + ", rule: fdrl_1, service_account: 'svac_{env}', workspace: default", scopes.Exchange{
				As: "anthropic", URL: "https://api.anthropic.com", Organization: tenant, Rule: "fdrl_1", ServiceAccount: "svac_{env}", Workspace: "default",
			}, "anthropic svac_{env} fdrl_1",
		},
		{
			"https://api.openai.com/v1", "as: openai, identity_provider: idp_1, service_account: sa-1, client: app", scopes.Exchange{
				As: "openai", URL: "https://auth.openai.com", IdentityProvider: "idp_1", ServiceAccount: "sa-1", Client: "app",
			}, "openai sa-1 app",
		},
	} {
		files := exchanged(tt.audience, tt.exchange, "")
		c, err := scopes.Load(files)
		if err != nil {
			t.Errorf("%s: %v", tt.exchange, err)
			continue
		}
		if err := asEditor(schema, string(files[0].Data)); err != nil {
			t.Errorf("%s: the schema for editors refuses it: %v", tt.exchange, err)
		}
		s, _ := c.Scope("one.scope")
		if diff := cmp.Diff(tt.want, s.Credential.Federation.Exchange); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.exchange, diff)
		}
		if got := s.Credential.Summary(); !strings.HasSuffix(got, "(federation) for "+tt.text) {
			t.Errorf("%s: the summary is %q, want it to end in %q", tt.exchange, got, tt.text)
		}
	}
}

func TestLoadRefusesExchanges(t *testing.T) {
	const what = "credential.federation.exchange"
	azure := "as: azure, tenant: t, client: c, scope: "
	for exchange, want := range map[string]string{
		"":                                   what + " needs as, such as {as: aws, role: 'arn:aws:iam::123456789012:role/site', region: eu-central-1}",
		"role: a":                            what + " needs as, such as",
		"as: oracle":                         what + `.as "oracle" is unknown; choose aws, google, azure, anthropic or openai`,
		"as: [aws]":                          what + ".as must be text",
		"as: aws, role: a":                   what + " with as: aws requires region; example: {as: aws,",
		awsExchange + ", service_account: a": what + ` with as: aws: unknown key "service_account"; the keys are as, role, region, url`,
		awsExchange + ", DurationSeconds: 1": `unknown key "DurationSeconds"`,
		"as: anthropic, organization: a":     what + " with as: anthropic requires rule",
		"as: openai, identity_provider: a":   what + " with as: openai requires service_account",
		azure + "https://storage.azure.com":  what + `.scope "https://storage.azure.com" must match`,
		"as: google, scopes: []":             what + ".scopes must list 1 to 16 OAuth scopes",
		"as: google, scopes: [openid]":       what + `.scopes[0] "openid" must match`,

		"as: aws, region: r, role: 'arn:aws:iam::{n}:role/a'":                                        what + `.role "arn:aws:iam::{n}:role/a" must begin with the ARN of an account's roles`,
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:user/a'":                               "must begin with the ARN of an account's roles",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/a//b'":                            "has an empty, . or .. segment",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/../a'":                            "has an empty, . or .. segment",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/a:b'":                             "has a colon in the name of the role",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/a*'":                              "may contain only {param} and letters, digits",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/{path}'":                          what + ".role has {path}, whose value a/b cannot be part of a role",
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/{who}'":                           "names {who}, which is not in params",
		"as: aws, region: 'r/x', role: 'arn:aws:iam::123456789012:role/a'":                           what + `.region "r/x" must match`,
		"as: aws, region: r, role: 'arn:aws:iam::123456789012:role/" + strings.Repeat("a", 65) + "'": "has a name of more than 64 bytes",

		"as: google, service_account: a":                         "is not the e-mail address of a service account",
		"as: google, service_account: 'a@b@c.example'":           "is not the e-mail address of a service account",
		"as: google, service_account: '{free}@acme.example'":     "whose pattern could match a @",
		"as: google, service_account: 'a/b@acme.example'":        "may contain only {param} and lower-case letters",
		"as: openai, identity_provider: a, service_account: '-'": "is not an id of 1 to 100",

		"as: google, url: 'http://sts.example'":      what + `.url "http://sts.example" must be an https URL`,
		"as: google, url: 'https://sts.example/v1'":  "must be an https URL",
		"as: google, url: 'https://sts.example/'":    "must be an https URL",
		"as: google, url: 'https://sts.example?a=b'": "must be an https URL",
		"as: google, url: 'https://u@sts.example'":   "must be an https URL",
		"as: google, url: 'https://{env}.example'":   "must be an https URL",
		"as: google, url: 'https://:443'":            "must be an https URL",
		"as: google, url: sts.example":               "must be an https URL",
		"as: google, iam_url: 'http://10.0.0.1'":     what + `.iam_url "http://10.0.0.1" must be an https URL`,
		"as: google, url: 7":                         what + ".url must be text",
	} {
		if _, err := scopes.Load(exchanged(googlePool, exchange, "")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("{%s}: got %v, want %q", exchange, err, want)
		}
	}
	if _, err := scopes.Load(exchanged("sts.amazonaws.com", "as: google", "")); err == nil || !strings.Contains(err.Error(), "credential.audience must be the name of the identity provider in Google Cloud") {
		t.Errorf("google with another audience: got %v", err)
	}
	_, err := scopes.Load(federated("{subject: 'a:b', algorithm: ES256, exchange: {" + azure + "'api://x/.default'}}"))
	if err == nil || !strings.Contains(err.Error(), "credential.federation.algorithm must be RS256 if exchange has as: azure") {
		t.Errorf("azure with ES256: got %v", err)
	}
	if _, err := scopes.Load(oneScope("{kind: jwt, audience: 'https://a.example', exchange: {as: google}}")); err == nil || !strings.Contains(err.Error(), `unknown key "exchange"`) {
		t.Errorf("exchange without federation: got %v", err)
	}
}

func TestScopesSchemaRefusesExchanges(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	for _, exchange := range []string{"", "as: oracle", "as: aws", "as: aws, role: a, region: r", "as: google, region: r", "as: google, url: sts.example", "as: google, scopes: []", "as: openai, identity_provider: 7, service_account: a"} {
		if err := asEditor(schema, string(exchanged(googlePool, exchange, "")[0].Data)); err == nil {
			t.Errorf("the schema accepts {%s}", exchange)
		}
	}
}

// The description of every member is in the schema, so that editors can show it.
func TestScopesSchemaDescribesExchanges(t *testing.T) {
	var names []string
	var walk func(any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, one := range node {
				walk(one)
			}
		case map[string]any:
			if as, ok := node["as"].(map[string]any); ok && (node["url"] != nil) {
				names = append(names, as["const"].(string))
			}
			for _, one := range node {
				walk(one)
			}
		}
	}
	var schema any
	if err := json.Unmarshal(scopes.ScopesSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	walk(schema)
	if diff := cmp.Diff([]string{"aws", "google", "azure", "anthropic", "openai"}, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A gateway sends the result of an exchange, which is not the token.
func TestEgressOfExchanges(t *testing.T) {
	schema := compiled(t, scopes.ScopesSchema())
	load := func(exchange, send string) (error, error) {
		if send != "" {
			send = ", send: {" + send + "}"
		}
		files := exchanged(googlePool, exchange, "}\n    egress: [{hosts: [api.example], methods: [GET], paths: ['/']"+send+"}]\n    #")
		_, err := scopes.Load(files)
		return err, asEditor(schema, string(files[0].Data))
	}
	for _, tt := range [][2]string{
		{awsExchange, "as: aws, service: s3, region: eu-central-1"},
		{"as: google", ""},
		{"as: google", "as: bearer"},
		{"as: google", "as: header, name: x-key"},
	} {
		err, editor := load(tt[0], tt[1])
		if err != nil || editor != nil {
			t.Errorf("%s, send {%s}: got %v, %v", tt[0], tt[1], err, editor)
		}
	}
	for _, tt := range [][3]string{
		{awsExchange, "", "egress[0].send is missing: it says for which service the gateway signs a call; example: {as: aws, service: s3, region: eu-central-1}"},
		{awsExchange, "as: bearer", "egress[0].send with as: bearer cannot send what aws gives for the token; choose aws"},
		{awsExchange, "as: aws, service: s3", "egress[0].send with as: aws requires region"},
		{awsExchange, "as: aws, service: s3, region: r, field: a", "does not take field"},
		{"as: google", "as: aws, service: s3, region: r", "egress[0].send with as: aws cannot send what google gives for the token; choose bearer or header"},
		{"as: google", "as: basic, user: a", "cannot send what google gives"},
		{"as: google", "as: query, name: a", "cannot send what google gives"},
		{"as: google", "as: certificate", "cannot send what google gives"},
		{"as: google", "as: bearer, field: a", "egress[0].send.field cannot be used with kind jwt"},
	} {
		if err, _ := load(tt[0], tt[1]); err == nil || !strings.Contains(err.Error(), tt[2]) {
			t.Errorf("%s, send {%s}: got %v, want %q", tt[0], tt[1], err, tt[2])
		}
	}
}

// Parameters reach the exchange when the request is decided, and no value can name a role of another path or account.
func TestDecisionFillsTheExchangeIn(t *testing.T) {
	files := []scopes.File{file("s.yaml", `scopes:
  - name: one.scope
    title: One
    authority: read
    params:
      team: {type: string, pattern: '[A-Za-z0-9._@:-]+'}
    resource: one:{team}
    ttl: {default: 5m, max: 15m}
    credential:
      kind: jwt
      audience: sts.amazonaws.com
      federation: {subject: 'a:b', exchange: {as: aws, role: 'arn:aws:iam::123456789012:role/agents/{team}', region: eu-central-1}}
`), file("p.cedar", permitAll)}
	c, err := scopes.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	who := scopes.Subject{ID: spiffeid.RequireFromString("spiffe://td.example/a"), Expires: testscopes.Noon.AddDate(1, 0, 0), Bound: true}
	decide := func(team string) (scopes.Decision, error) {
		return c.Decide(who, scopes.Ask{Scope: "one.scope", Params: map[string]any{"team": team}, RequestContext: scopes.RequestContext{Task: "t"}}, testscopes.Noon)
	}
	d, err := decide("web")
	if err != nil || d.Exchange.Role != "arn:aws:iam::123456789012:role/agents/web" || d.Exchange.URL != "https://sts.eu-central-1.amazonaws.com" {
		t.Errorf("got %+v, %v", d.Exchange, err)
	}
	if got := d.Scope.Credential.Federation.Exchange.Role; got != "arn:aws:iam::123456789012:role/agents/{team}" {
		t.Errorf("the scope now has the role %q", got)
	}
	for _, team := range []string{"a:b", "..", ".", "a/b", "", strings.Repeat("a", 65)} {
		var bad *scopes.InvalidAsk
		if d, err := decide(team); !errors.As(err, &bad) {
			t.Errorf("%q: got %q, %v, want an invalid request", team, d.Exchange.Role, err)
		}
	}
}
