package scopes_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const agent = "spiffe://td.example/agents/a"

// policyOf finds a scope's policy whose text contains holds.
func policyOf(tb testing.TB, c *scopes.Catalogue, scope, holds string) string {
	tb.Helper()
	var names []string
	for _, p := range c.VaultPolicies() {
		if strings.HasPrefix(p.Name, scopes.PolicyPrefix+scope+".") && strings.Contains(p.Text, holds) {
			names = append(names, p.Name)
		}
	}
	if len(names) != 1 {
		tb.Fatalf("got policies %v of %s with %q, want one", names, scope, holds)
	}
	return names[0]
}

func TestGrants(t *testing.T) {
	c := vaultWorld(t)
	request, line := newCSR(t, nil), newSSHKey(t)
	tests := []struct {
		ask   scopes.Ask
		holds string // in the policy
		want  scopes.Grant
	}{
		{
			scopes.Ask{Scope: "db.reporting", Params: map[string]any{"env": "prod"}},
			"team/database/creds/prod-ro",
			scopes.Grant{Method: "read", Path: "team/database/creds/prod-ro", Leased: true},
		},
		{
			scopes.Ask{Scope: "web.cert", Params: map[string]any{"service": "pay.eu"}, CSR: request},
			"pki/sign/web",
			scopes.Grant{Method: "write", Path: "pki/sign/web", Leased: true, Data: map[string]string{
				"csr": request, "common_name": "pay.eu.svc.acme.example", "alt_names": "pay.eu.acme.example,www.acme.example",
				"exclude_cn_from_sans": "false", "format": "pem",
			}},
		},
		{
			scopes.Ask{Scope: "web.full", Params: map[string]any{"service": "pay", "n": 2}},
			"pki/issue/web2",
			scopes.Grant{Method: "write", Path: "pki/issue/web2", Leased: true, Data: map[string]string{
				"common_name": "pay", "exclude_cn_from_sans": "false", "format": "pem",
			}},
		},
		{
			scopes.Ask{Scope: "ssh.login", Params: map[string]any{"user": "alice"}, PublicKey: line + " alice@laptop"},
			"ssh/sign/deploy",
			scopes.Grant{Method: "write", Path: "ssh/sign/deploy", Data: map[string]string{
				"public_key": line, "valid_principals": "alice,deploy", "cert_type": "user",
			}},
		},
		{
			scopes.Ask{Scope: "kv.agent", Params: map[string]any{"name": "a@b:c"}},
			"secret/data/agents/+",
			scopes.Grant{Method: "read", Path: "secret/data/agents/a@b:c", Static: true},
		},
		{
			scopes.Ask{Scope: "aws.creds", Params: map[string]any{"role": "r1", "env": "eu"}},
			"aws/+/creds/+",
			scopes.Grant{Method: "read", Path: "aws/eu/creds/r1-eu", Leased: true},
		},
		{
			scopes.Ask{Scope: "gcp.token", Params: map[string]any{"set": "s", "urgent": true}},
			"gcp/roleset/+/token",
			scopes.Grant{Method: "write", Path: "gcp/roleset/s/token", Static: true, Data: map[string]string{"purpose": "urgent=true; set s", "version": "1"}},
		},
		{
			scopes.Ask{Scope: "token.agent", Params: map[string]any{"agent": "coder", "n": 2, "all": false, "why": "x"}},
			"secret/data/agents/coder/2\" {\n  capabilities = [\"read\", \"update\"]\n}\npath \"secret/data/all-false",
			scopes.Grant{Leased: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.ask.Scope, func(t *testing.T) {
			tt.ask.Task = "t"
			d, err := c.Decide(subject(agent), tt.ask, noon)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Policy = policyOf(t, c, tt.ask.Scope, tt.holds)
			if diff := cmp.Diff(&tt.want, d.Grant); diff != "" {
				t.Errorf("grant (-want +got):\n%s", diff)
			}
			template, _ := c.Scope(tt.ask.Scope)
			if diff := cmp.Diff(template.Credential, d.Scope.Credential); diff != "" {
				t.Errorf("the decision's scope is not the template (-want +got):\n%s", diff)
			}
		})
	}
}

// A denial and a JWT have no grant. A pending decision already has its grant.
func TestGrantsFollowTheOutcome(t *testing.T) {
	login := scopes.Ask{Scope: "ssh.login", Params: map[string]any{"user": "alice"}, PublicKey: newSSHKey(t), RequestContext: scopes.RequestContext{Task: "t"}}
	for outcome, policy := range map[scopes.Outcome]string{
		scopes.Allow:   permitAll,
		scopes.Pending: `@id("p") permit (principal, action, resource) when { context.approved };`,
		scopes.Deny:    `@id("p") permit (principal, action, resource == Resource::"ssh:bob");`,
	} {
		d, err := load(t, vaultScopes, policy).Decide(subject(agent), login, noon)
		if err != nil || d.Outcome != outcome || (d.Grant != nil) != (outcome != scopes.Deny) {
			t.Errorf("got %s, grant %v and %v, want %s", d.Outcome, d.Grant, err, outcome)
		}
	}
	d, err := world(t).Decide(subject(agent), scopes.Ask{Scope: "git.issues.read", Params: repo("acme/api"), RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil || d.Outcome != scopes.Allow || d.Grant != nil {
		t.Errorf("a JWT: got %s with grant %v and %v", d.Outcome, d.Grant, err)
	}
}

// The explanation says that a static secret is static.
func TestStaticIsExplained(t *testing.T) {
	d, err := ask(t, vaultWorld(t), "kv.agent", map[string]any{"name": "a"})
	want := "Permitted by all. The secret is static: Brevet cannot revoke it; only its owner can change it."
	if err != nil || d.Explanation != want {
		t.Errorf("got %q and %v", d.Explanation, err)
	}
}

// A credential that nobody can revoke is granted for as long as the other system gives at least, or not at all.
func TestIrrevocableCredentialsAreNotGrantedForLess(t *testing.T) {
	c := vaultWorld(t)
	request := scopes.Ask{Scope: "aws.keys", TTL: 15 * time.Minute, RequestContext: scopes.RequestContext{Task: "t"}}
	who := subject(agent)
	who.Expires = noon.Add(time.Hour)
	d, err := c.Decide(who, request, noon)
	want := "Permitted by all. Nobody can revoke the credential: the other system accepts it until it expires."
	if err != nil || d.Outcome != scopes.Allow || d.Explanation != want {
		t.Fatalf("got %s, %q and %v", d.Outcome, d.Explanation, err)
	}
	if g := d.Grant; g.Leased || g.Static || g.MinTTL != 15*time.Minute || g.Path != "aws/creds/site" || g.Method != scopes.MethodWrite {
		t.Errorf("got grant %+v", g)
	}
	request.TTL -= time.Second
	bad, ok := errors.AsType[*scopes.InvalidAsk](second(c.Decide(who, request, noon)))
	if !ok || bad.Error() != "ttl must be at least 15m, the shortest life that the other system gives" {
		t.Errorf("a shorter TTL: got %v", bad)
	}
	request.TTL, who.Expires = 0, noon.Add(15*time.Minute-time.Second)
	d, err = c.Decide(who, request, noon)
	if err != nil || d.Outcome != scopes.Deny || d.Reason != scopes.ReasonSVIDExpiring || d.Grant != nil || d.TTL != 0 ||
		!strings.HasPrefix(d.Explanation, "The SVID expires within 15m, and") {
		t.Errorf("an SVID that expires earlier: got %s (%s), TTL %s, %q and %v", d.Outcome, d.Reason, d.TTL, d.Explanation, err)
	}
}

func second[T any](_ T, err error) error { return err }

// I3: within_svid applies however the SVID was presented, with or without mTLS.
func TestWithinSVID(t *testing.T) {
	c := vaultWorld(t)
	cloud := scopes.Ask{Scope: "aws.creds", Params: map[string]any{"role": "r", "env": "e"}, TTL: 10 * time.Minute, RequestContext: scopes.RequestContext{Task: "t"}}
	for _, bound := range []bool{true, false} {
		who := subject(agent)
		who.Bound, who.Expires = bound, noon.Add(90*time.Second+time.Millisecond)
		d, err := c.Decide(who, cloud, noon)
		want := []scopes.Clamp{{Bound: scopes.BoundSVID, From: 10 * time.Minute, To: 90 * time.Second}}
		if err != nil || d.Outcome != scopes.Allow || d.TTL != 90*time.Second || !slices.Equal(d.Clamps, want) {
			t.Errorf("bound %v: got %s for %s, clamps %v and %v", bound, d.Outcome, d.TTL, d.Clamps, err)
		}
		who.Expires = time.Time{}
		if d, err = c.Decide(who, cloud, noon); err != nil || d.Outcome != scopes.Deny || d.Reason != scopes.ReasonSVIDExpiring || d.Grant != nil {
			t.Errorf("bound %v, SVID without end: got %s (%s), grant %v and %v", bound, d.Outcome, d.Reason, d.Grant, err)
		}
	}
	// Without it, the SVID's expiry does not bound the credential.
	who := subject(agent)
	who.Expires = noon.Add(time.Second)
	d, err := c.Decide(who, scopes.Ask{Scope: "kv.agent", Params: map[string]any{"name": "a"}, RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil || d.TTL != 5*time.Minute {
		t.Errorf("got %s and %v, want 5m", d.TTL, err)
	}
}

// A key is required for the scopes that certify it, and refused for all others.
func TestKeyIsRequiredOnlyWhereItIsCertified(t *testing.T) {
	c := vaultWorld(t)
	request, line := newCSR(t, nil), newSSHKey(t)
	service, user := map[string]any{"service": "a"}, map[string]any{"user": "alice"}
	tests := []struct {
		name string
		ask  scopes.Ask
		want string
	}{
		{"no CSR", scopes.Ask{Scope: "web.cert", Params: service}, "csr is required"},
		{"no public key", scopes.Ask{Scope: "ssh.login", Params: user}, "public_key is required"},
		{"CSR for a login", scopes.Ask{Scope: "ssh.login", Params: user, CSR: request, PublicKey: line}, "csr is not used by this scope; leave it out"},
		{"public key for a certificate", scopes.Ask{Scope: "web.cert", Params: service, CSR: request, PublicKey: line}, "public_key is not used by this scope; leave it out"},
		{"CSR where Vault makes the key", scopes.Ask{Scope: "web.full", Params: map[string]any{"service": "a", "n": 1}, CSR: request}, "csr is not used by this scope; leave it out"},
		{"public key for a secret", scopes.Ask{Scope: "kv.agent", Params: map[string]any{"name": "a"}, PublicKey: line}, "public_key is not used by this scope; leave it out"},
		{"long CSR for nothing", scopes.Ask{Scope: "no.such", CSR: strings.Repeat("x", 8193)}, "csr must be at most 8192 bytes long"},
		{"long public key for nothing", scopes.Ask{Scope: "no.such", PublicKey: strings.Repeat("x", 8193)}, "public_key must be at most 8192 bytes long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.ask.Task = "t"
			d, err := c.Decide(subject(agent), tt.ask, noon)
			var bad *scopes.InvalidAsk
			if !errors.As(err, &bad) || err.Error() != tt.want || d.Outcome != "" {
				t.Errorf("got %v and %q, want %q", d.Outcome, err, tt.want)
			}
		})
	}
	d, err := c.Decide(subject(agent), scopes.Ask{Scope: "no.such", CSR: "x", PublicKey: "y", RequestContext: scopes.RequestContext{Task: "t"}}, noon)
	if err != nil || d.Reason != scopes.ReasonUnknownScope {
		t.Errorf("unknown scope: got %s and %v", d.Reason, err)
	}
	if _, err := world(t).Decide(boundSubject(agent), scopes.Ask{Scope: "mail.read", CSR: request, RequestContext: scopes.RequestContext{Task: "t"}}, noon); err == nil {
		t.Errorf("a JWT with a CSR was decided")
	}
}

// A hint for a certificate includes the caller's key. Otherwise the hint could not be requested.
func TestHintsKeepTheKey(t *testing.T) {
	c := load(t, vaultScopes, `@id("p") permit (principal, action == Action::"web.cert", resource) when { context.ttl <= 60 };`)
	a := scopes.Ask{Scope: "web.cert", Params: map[string]any{"service": "a"}, CSR: newCSR(t, nil), TTL: 5 * time.Minute, RequestContext: scopes.RequestContext{Task: "t"}}
	for _, name := range []string{"web.cert", "web.certs"} {
		a.Scope = name
		if name == "web.certs" {
			a.TTL = time.Minute
		}
		d, err := c.Decide(subject(agent), a, noon)
		if err != nil || d.Narrowest == nil || d.Narrowest.CSR != a.CSR || d.Narrowest.Scope != "web.cert" || d.Narrowest.TTL != time.Minute {
			t.Errorf("%s: got %+v and %v", name, d.Narrowest, err)
		}
	}
	c = load(t, vaultScopes, `@id("p") permit (principal, action == Action::"ssh.login", resource);`)
	login := scopes.Ask{Scope: "ssh.logins", Params: map[string]any{"user": "alice"}, PublicKey: newSSHKey(t), CSR: a.CSR, RequestContext: scopes.RequestContext{Task: "t"}}
	d, err := c.Decide(subject(agent), login, noon)
	if err != nil || d.Narrowest == nil || d.Narrowest.PublicKey != login.PublicKey || d.Narrowest.CSR != "" {
		t.Errorf("got %+v and %v", d.Narrowest, err)
	}
}

// H52 to H55, H57 to H59, in each place where a parameter becomes part of a request to Vault. The patterns allow
// everything but a slash.
func TestHostileValuesReachNoGrant(t *testing.T) {
	c := vaultWorld(t)
	hostile := []string{
		"../sys/seal", ".", "..", "%2e%2e", "a/b", "/", "a/..", // H52
		"x/../../auth/token/create",    // H53
		"+", "*", "a*", "a+", "a/", "", // H54
		"deploy,root", "deploy root", // H55
		"a\r\nb", "a\n", "a#b", "a?b", "a\x00", // H57
		"{{identity.entity.id}}", "${env}", "{env}", // H58
		"ro'; DROP ROLE x --", `ro"`, "ro;--", // H59
	}
	key, request := newSSHKey(t), newCSR(t, nil)
	asks := []scopes.Ask{
		{Scope: "db.any", Params: map[string]any{"role": nil}},
		{Scope: "web.cert", Params: map[string]any{"service": nil}, CSR: request},
		{Scope: "web.full", Params: map[string]any{"service": nil, "n": 1}},
		{Scope: "ssh.login", Params: map[string]any{"user": nil}, PublicKey: key},
		{Scope: "kv.agent", Params: map[string]any{"name": nil}},
		{Scope: "aws.creds", Params: map[string]any{"role": nil, "env": "e"}},
		{Scope: "gcp.token", Params: map[string]any{"set": nil, "urgent": false}},
		{Scope: "token.agent", Params: map[string]any{"agent": nil, "n": 1, "all": true, "why": "w"}},
	}
	for _, a := range asks {
		for name, value := range a.Params {
			if value != nil {
				continue
			}
			for _, value := range hostile {
				refused(t, c, a, name, value)
			}
		}
	}
}

func refused(t *testing.T, c *scopes.Catalogue, a scopes.Ask, name, value string) {
	t.Helper()
	a.Params[name], a.Task = value, "t"
	defer func() { a.Params[name] = nil }()
	d, err := c.Decide(subject(agent), a, noon)
	var bad *scopes.InvalidAsk
	if !errors.As(err, &bad) || bad.Field != "params."+name || d.Grant != nil {
		t.Errorf("%s with %s=%q: got %v and %v, want params.%s refused", a.Scope, name, value, d.Grant, err, name)
	}
}

// A valid parameter value is not necessarily valid in every place.
func TestValuesAreValidatedForTheirPlace(t *testing.T) {
	c := vaultWorld(t)
	key, request := newSSHKey(t), newCSR(t, nil)
	const (
		label = "params.service produces a DNS name that has a label that is not 1 to 63 letters, digits and inner dashes"
		user  = "params.user produces a principal that is not a user name: a lower-case letter or _, then letters, digits, _ and -, at most 64"
	)
	service := func(s string) scopes.Ask {
		return scopes.Ask{Scope: "web.cert", Params: map[string]any{"service": s}, CSR: request}
	}
	full := func(s string) scopes.Ask {
		return scopes.Ask{Scope: "web.full", Params: map[string]any{"service": s, "n": 1}}
	}
	login := func(s string) scopes.Ask {
		return scopes.Ask{Scope: "ssh.login", Params: map[string]any{"user": s}, PublicKey: key}
	}
	tests := []struct {
		ask  scopes.Ask
		want string
	}{
		{service("a..b"), label},
		{service("a."), label},
		{service(".a"), label},
		{service("a-"), label},
		{service(strings.Repeat("a", 64)), label},
		{service("Pay"), "params.service cannot be part of a DNS name"},
		{service("a_b"), "params.service cannot be part of a DNS name"},
		{service("a@b"), "params.service cannot be part of a DNS name"},
		{service("a:1"), "params.service cannot be part of a DNS name"},
		{service(strings.Repeat("a.", 125) + "a"), "params.service produces a DNS name that is longer than 253 bytes"},
		{full("10.0.0.1"), "params.service produces a DNS name that ends in a number"},
		{full("7"), "params.service produces a DNS name that ends in a number"},
		{login("Root"), "params.user cannot be part of a principal"},
		{login("a.b"), "params.user cannot be part of a principal"},
		{login("a@b"), "params.user cannot be part of a principal"},
		{login("7a"), user},
		{login(strings.Repeat("a", 65)), user},
		{
			scopes.Ask{Scope: "aws.creds", Params: map[string]any{"role": "r-x", "env": "e"}},
			`params.role must not contain "-", which separates it from env in the path`,
		},
		{
			scopes.Ask{Scope: "kv.agent", Params: map[string]any{"name": strings.Repeat("a", 990)}},
			"params.name produces a path that is longer than 1000 bytes",
		},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.ask.Scope, tt.ask.Params), func(t *testing.T) {
			tt.ask.Task = "t"
			if _, err := c.Decide(subject(agent), tt.ask, noon); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// grantWithinShape returns what is wrong with a grant, or "". It encodes vaultScopes independently of the code that reads
// them.
func grantWithinShape(c *scopes.Catalogue, scope string, g *scopes.Grant) string {
	shapes := map[string]string{
		"db.reporting": "team/database/creds/+", "db.any": "database/creds/+", "web.cert": "pki/sign/web", "web.full": "pki/issue/+",
		"ssh.login": "ssh/sign/deploy", "kv.agent": "secret/data/agents/+", "aws.creds": "aws/+/creds/+", "gcp.token": "gcp/roleset/+/token",
	}
	policies := c.VaultPolicies()
	i := slices.IndexFunc(policies, func(p scopes.VaultPolicy) bool { return p.Name == g.Policy })
	if i < 0 {
		return "its policy is not one of the catalogue"
	}
	shape, wrapped := shapes[scope]
	if !wrapped {
		if g.Path+g.Method != "" || len(g.Data) > 0 {
			return "a token that asks for something"
		}
		return ""
	}
	if !vaultAllows(shape, g.Path) {
		return "its path is outside " + shape
	}
	for segment := range strings.SplitSeq(g.Path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsAny(segment, "+*%?#{}$ \r\n\"'\\,;") {
			return fmt.Sprintf("its path has the segment %q", segment)
		}
	}
	rules := rulesOf(policies[i].Text)
	capability := map[string]string{"read": "read", "write": "update"}[g.Method]
	covered := 0
	for path, may := range rules {
		if path != shape && !vaultAllows(shape, path) || !slices.Contains(may, capability) {
			return fmt.Sprintf("its policy allows %v at %s, outside %s", may, path, shape)
		}
		if vaultAllows(path, g.Path) {
			covered++
		}
	}
	if covered != 1 {
		return fmt.Sprintf("its policy allows the path %d times", covered)
	}
	if principals, ok := g.Data["valid_principals"]; ok && len(strings.Split(principals, ",")) > 2 {
		return "more principals than the scope has"
	}
	if names, ok := g.Data["alt_names"]; ok && strings.Count(names, ",") != 1 {
		return "other names than the scope has"
	}
	return ""
}

// Every grant stays within its scope's definition, and its policy covers it.
func TestGrantsStayWithinTheirScope(t *testing.T) {
	c := vaultWorld(t)
	request, line := newCSR(t, nil), newSSHKey(t)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[a-z0-9._/:@-]{1,12}`), rapid.StringMatching(`[a-z][a-z0-9-]{0,8}`), rapid.String())
		a := vaultAsk(rapid.SampledFrom(vaultNames).Draw(t, "scope"), text.Draw(t, "one"), text.Draw(t, "two"), rapid.IntRange(-4, 4).Draw(t, "n"))
		checkGrant(t, c, withKeys(a, request, line))
	})
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkGrant(t fataler, c *scopes.Catalogue, a scopes.Ask) {
	t.Helper()
	d, err := c.Decide(subject(agent), a, noon)
	var bad *scopes.InvalidAsk
	if err != nil {
		if !errors.As(err, &bad) {
			t.Fatalf("deciding %+v: %v", a, err)
		}
		return
	}
	if d.Grant == nil {
		t.Fatalf("%+v is %s without a grant", a, d.Outcome)
	}
	if why := grantWithinShape(c, a.Scope, d.Grant); why != "" {
		t.Fatalf("%+v of %+v: %s", d.Grant, a, why)
	}
}

var vaultNames = []string{"db.reporting", "db.any", "web.cert", "web.full", "ssh.login", "kv.agent", "aws.creds", "gcp.token", "token.agent"}

// vaultAsk builds a request for any scope of vaultScopes from two texts and a number.
func vaultAsk(scope, one, two string, n int) scopes.Ask {
	params := map[string]map[string]any{
		"db.reporting": {"env": one}, "db.any": {"role": one}, "web.cert": {"service": one}, "web.full": {"service": one, "n": n},
		"ssh.login": {"user": one}, "kv.agent": {"name": one}, "aws.creds": {"role": one, "env": two},
		"gcp.token": {"set": one, "urgent": n > 0}, "token.agent": {"agent": one, "n": n, "all": n > 1, "why": two},
	}[scope]
	return scopes.Ask{Scope: scope, Params: params, RequestContext: scopes.RequestContext{Task: "t"}}
}

func withKeys(a scopes.Ask, request, line string) scopes.Ask {
	switch a.Scope {
	case "web.cert":
		a.CSR = request
	case "ssh.login":
		a.PublicKey = line
	}
	return a
}
