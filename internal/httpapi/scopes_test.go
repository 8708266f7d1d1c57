package httpapi_test

import (
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

var manifold = []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z/]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, bind: dpop}
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      count: {type: int, min: 0, max: 9}
      env: {type: enum, values: [dev, prod]}
      urgent: {type: bool}
    resource: git:{env}/{count}
    ttl: {default: 1m, max: 2m}
    approval: {group: oncall}
    credential: {kind: kv, path: 'kv/{env}'}
    egress: [{hosts: [git.test], methods: [POST], paths: ['/{env}/**'], send: {as: header, name: x-key, field: key}}]
  - name: git.mirror.pull
    title: Pull from a mirror
    authority: read
    resource: git:mirror
    ttl: {default: 1m, max: 2m}
    credential: {kind: pki, mount: pki, role: web, common_name: agent.acme.test}
    egress: [{hosts: [mirror.test], methods: [GET], paths: [/], send: {as: certificate}}]
  - name: git.store.read
    title: Read what is stored
    authority: read
    resource: git:store
    ttl: {default: 1m, max: 2m}
    credential: {kind: pki, mount: pki, role: web, common_name: agent.acme.test, key: server}
  - name: git.objects.read
    title: Read objects
    authority: read
    resource: git:objects
    ttl: {default: 1m, max: 2m}
    credential: {kind: kv, path: kv/aws}
    egress: [{hosts: [s3.test], methods: [GET], paths: [/], headers: [x-amz-acl, 'x-amz-grant-*'], send: {as: aws, service: s3, region: eu-central-1}}]
  - name: pay.refund
    title: Refund
    authority: payment
    resource: pay:all
    ttl: {default: 1m, max: 2m}
    credential: {kind: jwt, audience: https://pay.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("agents") permit (principal in Path::"spiffe://acme.test/agents", action in Action::"git.*", resource);
@id("writes") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };
@id("cashier") permit (principal == Sandbox::"spiffe://other.test/agents/a", action == Action::"pay.refund", resource) when { context.ttl < 60 };
`)}}

// A sandbox sees the scopes that it may request, however it authenticates, and no scopes of others.
func TestScopesOfASandbox(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: manifold, Applied: true, Admins: []string{admin}, CatalogueAdmins: []string{chief}})
	zero, nine := int64(0), int64(9)
	digest, err := scopes.Load(manifold)
	if err != nil {
		t.Fatal(err)
	}
	want := openapi.ScopeList{Catalogue: digest.Digest(), Scopes: []openapi.OfferedScope{
		{
			Name: "git.issues.read", Title: "Read issues", Authority: "read", TTLDefault: 300, TTLMax: 900, Approval: "never",
			Params:     map[string]openapi.ScopeParam{"repo": {Type: "string", Pattern: "[a-z/]+", MaxLength: 100}},
			Credential: "jwt", Bind: "dpop",
		},
		{
			Name: "git.issues.write", Title: "Write issues", Authority: "write", TTLDefault: 60, TTLMax: 120, Approval: "always",
			Params: map[string]openapi.ScopeParam{
				"count": {Type: "int", Min: &zero, Max: &nine}, "env": {Type: "enum", Values: []string{"dev", "prod"}}, "urgent": {Type: "bool"},
			},
			Credential: "kv", Bind: "none",
			Egress: []openapi.EgressRule{{
				Hosts: []string{"git.test"}, Methods: []string{"POST"}, Paths: []string{"/{env}/**"},
				Send: openapi.EgressSend{As: "header", Name: "x-key", Field: "key"},
			}},
		},
		{
			Name: "git.mirror.pull", Title: "Pull from a mirror", Authority: "read", TTLDefault: 60, TTLMax: 120, Approval: "never",
			Params: map[string]openapi.ScopeParam{}, Credential: "pki", Bind: "none", Csr: true,
			Egress: []openapi.EgressRule{{Hosts: []string{"mirror.test"}, Methods: []string{"GET"}, Paths: []string{"/"}, Send: openapi.EgressSend{As: "certificate"}}},
		},
		{
			Name: "git.objects.read", Title: "Read objects", Authority: "read", TTLDefault: 60, TTLMax: 120, Approval: "never",
			Params: map[string]openapi.ScopeParam{}, Credential: "kv", Bind: "none",
			Egress: []openapi.EgressRule{{
				Hosts: []string{"s3.test"}, Methods: []string{"GET"}, Paths: []string{"/"}, Headers: []string{"x-amz-acl", "x-amz-grant-*"},
				Send: openapi.EgressSend{As: "aws", Service: "s3", Region: "eu-central-1"},
			}},
		},
		{
			Name: "git.store.read", Title: "Read what is stored", Authority: "read", TTLDefault: 60, TTLMax: 120, Approval: "never",
			Params: map[string]openapi.ScopeParam{}, Credential: "pki", Bind: "none",
		},
	}}
	for name, read := range map[string]func() (openapi.ScopeList, error){
		"X.509": func() (openapi.ScopeList, error) { return s.Client(t, agent).Scopes(t.Context()) },
		"JWT":   func() (openapi.ScopeList, error) { return s.JWTClient(t, agent).Scopes(t.Context()) },
	} {
		got, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// I14. Also, an admin sees only the scopes that policy permits.
	for who, want := range map[string][]string{"spiffe://other.test/agents/a": {"pay.refund"}, "spiffe://other.test/agents/b": {}, admin: {}} {
		got, err := s.Client(t, who).Scopes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, scope := range got.Scopes {
			names = append(names, scope.Name)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", who, diff)
		}
	}
	if got := (wire{method: "GET", target: "/v1/scopes", auth: "Bearer " + s.JWT(t, "spiffe://other.test/agents/b")}).send(t, s); got.status != 200 || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %s, want an empty list that nobody keeps", got.status, got.text)
	}
	if got := (wire{method: "GET", target: "/v1/scopes?spiffe_id=" + agent, auth: "Bearer " + s.JWT(t, agent)}).send(t, s); got.status != 400 {
		t.Errorf("got %d %s for somebody else's, want 400", got.status, got.text)
	}
	apply(t, s.Client(t, chief), changed(t, manifold, "git.issues.read", "git.issues.look"))
	if got, err := s.Client(t, agent).Scopes(t.Context()); err != nil || got.Scopes[0].Name != "git.issues.look" || got.Catalogue == want.Catalogue {
		t.Errorf("got %+v, %v after the change", got, err)
	}
}

// Each call evaluates all policies and scopes, so the rate is limited for each sandbox separately.
func TestScopeListingIsRateLimited(t *testing.T) {
	t.Parallel()
	s, stop := stoppedStack(t, testkit.Options{Catalogue: manifold})
	c, other := s.Client(t, agent), s.Client(t, helper)
	stop()
	for range 10 {
		if _, err := c.Scopes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Scopes(t.Context()); code(err) != openapi.CodeRateLimited {
		t.Errorf("got %v, want rate_limited", err)
	}
	if _, err := other.Scopes(t.Context()); err != nil {
		t.Errorf("another sandbox: got %v", err)
	}
}
