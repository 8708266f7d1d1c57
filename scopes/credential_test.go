package scopes_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

func TestCredentialsAreRead(t *testing.T) {
	tests := []struct {
		text    string
		want    scopes.Credential
		summary string
	}{
		{
			"{kind: jwt, audience: 'urn:a:b', bind: dpop}",
			scopes.Credential{Kind: scopes.KindJWT, Audience: "urn:a:b", Bind: scopes.BindDPoP, Algorithm: scopes.AlgorithmES256},
			"jwt urn:a:b",
		},
		{
			"{kind: jwt, audience: 'urn:a:b', bind: mtls, algorithm: ES256}",
			scopes.Credential{Kind: scopes.KindJWT, Audience: "urn:a:b", Bind: scopes.BindMTLS, Algorithm: scopes.AlgorithmES256},
			"jwt urn:a:b",
		},
		{
			"{kind: jwt, audience: 'urn:a:b', uses: 1}",
			scopes.Credential{Kind: scopes.KindJWT, Audience: "urn:a:b", Bind: scopes.BindNone, OneShot: true, Algorithm: scopes.AlgorithmES256},
			"jwt urn:a:b",
		},
		{
			"{kind: jwt, audience: 'urn:a:b', status_list: true, algorithm: EdDSA}",
			scopes.Credential{Kind: scopes.KindJWT, Audience: "urn:a:b", Bind: scopes.BindNone, StatusList: true, Algorithm: scopes.AlgorithmEdDSA},
			"jwt urn:a:b",
		},
		{
			"{kind: database, mount: team/database, role: '{env}-ro', within_svid: true}",
			scopes.Credential{Kind: scopes.KindDatabase, Mount: "team/database", Role: "{env}-ro", WithinSVID: true},
			"database team/database/creds/{env}-ro",
		},
		{
			"{kind: pki, mount: pki, role: web, common_name: '{name}.acme.example', dns_names: [a.example], key: client}",
			scopes.Credential{Kind: scopes.KindPKI, Mount: "pki", Role: "web", CommonName: "{name}.acme.example", DNSNames: []string{"a.example"}},
			"pki pki/sign/web",
		},
		{
			"{kind: pki, mount: pki, role: web, common_name: a.example, key: server, within_svid: false}",
			scopes.Credential{Kind: scopes.KindPKI, Mount: "pki", Role: "web", CommonName: "a.example", ServerKey: true},
			"pki pki/issue/web",
		},
		{
			"{kind: ssh, mount: ssh, role: deploy, principals: ['{name}']}",
			scopes.Credential{Kind: scopes.KindSSH, Mount: "ssh", Role: "deploy", Principals: []string{"{name}"}},
			"ssh ssh/sign/deploy",
		},
		{
			"{kind: kv, path: 'secret/data/agents/{name}'}",
			scopes.Credential{Kind: scopes.KindKV, Path: "secret/data/agents/{name}", Static: true},
			"kv secret/data/agents/{name} (static)",
		},
		{
			"{kind: vault, method: write, path: 'aws/sts/{name}', data: {role_arn: 'arn:aws:iam::12:role/{name}'}}",
			scopes.Credential{
				Kind: scopes.KindVault, Method: scopes.MethodWrite, Path: "aws/sts/{name}",
				Data: map[string]string{"role_arn": "arn:aws:iam::12:role/{name}"},
			},
			"vault aws/sts/{name}",
		},
		{
			"{kind: vault, method: write, path: 'aws/creds/{name}', revocable: false, min_ttl: 5m}",
			scopes.Credential{Kind: scopes.KindVault, Method: scopes.MethodWrite, Path: "aws/creds/{name}", Irrevocable: true, MinTTL: 5 * time.Minute},
			"vault aws/creds/{name} (irrevocable)",
		},
		{
			"{kind: vault, method: read, path: 'nomad/creds/{name}', revocable: true}",
			scopes.Credential{Kind: scopes.KindVault, Method: scopes.MethodRead, Path: "nomad/creds/{name}"},
			"vault nomad/creds/{name}",
		},
		{
			"{kind: vault-token, policy: [{path: 'secret/data/{env}', capabilities: [read, list]}, {path: a/+/b*, capabilities: [patch]}]}",
			scopes.Credential{Kind: scopes.KindVaultToken, Policy: []scopes.Rule{
				{Path: "secret/data/{env}", Capabilities: []string{"read", "list"}}, {Path: "a/+/b*", Capabilities: []string{"patch"}},
			}},
			"vault-token secret/data/{env}, a/+/b*",
		},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			c, err := scopes.Load(oneScope(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			s, _ := c.Scope("one.scope")
			if diff := cmp.Diff(tt.want, s.Credential); diff != "" {
				t.Errorf("credential (-want +got):\n%s", diff)
			}
			if got := s.Credential.Summary(); got != tt.summary {
				t.Errorf("got %q, want %q", got, tt.summary)
			}
		})
	}
}

// A caller cannot modify the catalogue's own credentials through a copy.
func TestCredentialsAreCopies(t *testing.T) {
	c := vaultWorld(t)
	change := func(name string, change func(*scopes.Credential)) {
		before, _ := vaultWorld(t).Scope(name)
		s, _ := c.Scope(name)
		change(&s.Credential)
		after, _ := c.Scope(name)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s changed (-before +after):\n%s", name, diff)
		}
	}
	change("gcp.token", func(c *scopes.Credential) { c.Data["version"] = "2" })
	change("web.cert", func(c *scopes.Credential) { c.DNSNames[0] = "evil.example" })
	change("ssh.login", func(c *scopes.Credential) { c.Principals[0] = "root" })
	change("token.agent", func(c *scopes.Credential) { c.Policy[0].Path = "sys/*" })
	change("token.agent", func(c *scopes.Credential) { c.Policy[0].Capabilities[0] = "sudo" })
}

const (
	slashPattern = ", whose pattern could match a /; write one that cannot, such as [a-z0-9-]+"
	badBraces    = ", but braces may contain only the name of a parameter"
	below        = "must begin with the mount path of an engine, without a leading slash, and continue below it, such as secret/data/app"
	capability   = " is not allowed; choose create, read, update, patch, delete or list"
)

// The algorithms are those for which Vault needs a key.
func TestCatalogueNamesItsAlgorithms(t *testing.T) {
	for credential, want := range map[string][]string{
		"{kind: jwt, audience: 'urn:a:b'}":                                         {"ES256"},
		"{kind: jwt, audience: 'urn:a:b', algorithm: EdDSA}":                       {"EdDSA"},
		"{kind: jwt, audience: sts.amazonaws.com, federation: {subject: 'a:b'}}":   {"RS256"},
		"{kind: jwt, audience: a, federation: {subject: 'a:b', algorithm: ES256}}": {"ES256"},
		"{kind: kv, path: 'secret/data/a'}":                                        nil,
	} {
		c, err := scopes.Load(oneScope(credential))
		if err != nil {
			t.Fatalf("%s: %v", credential, err)
		}
		if got := c.Algorithms(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", credential, got, want)
		}
	}
	if got := world(t).Algorithms(); !slices.Equal(got, []string{"ES256"}) {
		t.Errorf("several scopes: got %v, want each algorithm once", got)
	}
}

func TestLoadRefusesCredentials(t *testing.T) {
	tests := []struct{ text, want string }{
		{"7", "credential must be a mapping (key: value)"},
		{"{audience: 'urn:a:b'}", "credential needs a kind, such as {kind: jwt, audience: https://gateway.example}"},
		{"{kind: 7}", "credential.kind must be text; put it in quotes"},
		{"{kind: vault_token}", `credential.kind "vault_token" is unknown; choose jwt, vault-token, database, pki, ssh, kv, vault, github or none`},
		// Each kind has its own keys.
		{"{kind: jwt, audience: 'urn:a:b', within_svid: true}", `credential of kind jwt: unknown key "within_svid"; the keys are kind, audience, algorithm, bind, uses, status_list, federation`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: RS256}", `credential.algorithm "RS256" is unknown; choose ES256 or EdDSA`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: Ed25519}", `credential.algorithm "Ed25519" is unknown; choose ES256 or EdDSA`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: eddsa}", `credential.algorithm "eddsa" is unknown; choose ES256 or EdDSA`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: none}", `credential.algorithm "none" is unknown; choose ES256 or EdDSA`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: ''}", `credential.algorithm "" is unknown; choose ES256 or EdDSA`},
		{"{kind: jwt, audience: 'urn:a:b', algorithm: [EdDSA]}", "credential.algorithm must be text; put it in quotes"},
		{"{kind: kv, path: a/b, algorithm: EdDSA}", `credential of kind kv: unknown key "algorithm"; the keys are kind, path, within_svid`},
		{"{kind: jwt, audience: 'urn:a:b', uses: 2}", "credential.uses must be a whole number from 1 to 1"},
		{"{kind: kv, path: a/b, bind: mtls}", `credential of kind kv: unknown key "bind"; the keys are kind, path, within_svid`},
		{"{kind: kv, path: a/b, static: false}", `credential of kind kv: unknown key "static"; the keys are kind, path, within_svid`},
		{"{kind: database, mount: database}", "credential of kind database: role is missing; example: {kind: database, mount: database, role: reporting}"},
		{"{kind: vault, method: read}", "credential of kind vault: path is missing; example: {kind: vault, method: read, path: 'aws/creds/{role}'}"},
		{"{kind: kv, path: a/b, within_svid: 'yes'}", "credential.within_svid must be true or false"},
		// What nobody can revoke.
		{"{kind: vault, method: write, path: a/b, revocable: 7}", "credential.revocable must be true or false"},
		{"{kind: vault, method: read, path: a/b, revocable: false}", "credential.revocable: false requires method: write, because Brevet sends the lifetime as ttl"},
		{"{kind: vault, method: write, path: a/b, revocable: false, static: true}", "credential.revocable: false cannot be used with static: true, which is for secrets that do not expire"},
		{"{kind: vault, method: write, path: a/b, revocable: false, data: {ttl: 15m}}", "credential.data.ttl cannot be used with revocable: false: Brevet sends the granted lifetime as ttl"},
		{"{kind: vault, method: write, path: a/b, min_ttl: 5m}", "credential.min_ttl requires revocable: false; Brevet can end every other credential earlier"},
		{"{kind: vault, method: write, path: a/b, revocable: false, min_ttl: 0s}", "credential.min_ttl must be whole seconds from 1s to 24h, such as 90s or 5m"},
		// Mounts and roles.
		{"{kind: database, mount: '{env}', role: a}", `credential.mount "{env}" must be letters, digits and . _ - with / between parts, at most 200 bytes, without parameters`},
		{"{kind: database, mount: /database, role: a}", `credential.mount "/database" must be letters, digits and . _ - with / between parts, at most 200 bytes, without parameters`},
		{"{kind: database, mount: sys, role: a}", `credential.mount "sys" is below sys/, which Vault reserves`},
		{"{kind: ssh, mount: auth/token, role: a, principals: [a]}", `credential.mount "auth/token" is below auth/, which Vault reserves`},
		{"{kind: database, mount: a/../sys, role: a}", `credential.mount "a/../sys" has an empty, . or .. segment`},
		{"{kind: database, mount: database, role: a/b}", `credential.role "a/b" may contain only {param} and letters, digits and . _ -`},
		{"{kind: database, mount: database, role: ..}", `credential.role ".." has an empty, . or .. segment`},
		{"{kind: database, mount: database, role: ''}", `credential.role "" has an empty, . or .. segment`},
		{"{kind: database, mount: database, role: 'a+'}", `credential.role "a+" may contain only {param} and letters, digits and . _ -`},
		{"{kind: database, mount: database, role: 'x;DROP'}", `credential.role "x;DROP" may contain only {param} and letters, digits and . _ -`}, // H59
		{"{kind: database, mount: database, role: '{free}'}", "credential.role has {free}" + slashPattern},
		{"{kind: database, mount: database, role: '{path}'}", "credential.role has {path}, whose value a/b cannot be part of a role"},
		{"{kind: database, mount: database, role: '{nobody}'}", "credential.role names {nobody}, which is not in params (env, few, free, n, name, path, yes)"},
		{"{kind: database, mount: database, role: '{env}{name}'}", `credential.role "{env}{name}" has {env}{name} with nothing between them; put a separator between them`},
		// H58: other systems' templates.
		{"{kind: kv, path: 'secret/data/{{identity.entity.id}}'}", `credential.path "secret/data/{{identity.entity.id}}" has {{identity.entity.id}` + badBraces},
		{"{kind: kv, path: 'secret/data/${env}'}", `credential.path "secret/data/${env}" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: kv, path: 'secret/data/{env'}", `credential.path "secret/data/{env" has a { without a }`},
		{"{kind: vault, method: write, path: a/b, data: {k: '${env}'}}", `credential.data.k "${env}" may contain only {param} and visible ASCII without { } $`},
		{"{kind: vault, method: write, path: a/b, data: {k: '{{env}}'}}", `credential.data.k "{{env}}" has {{env}` + badBraces},
		{"{kind: vault-token, policy: [{path: 'secret/{{identity.entity.id}}', capabilities: [read]}]}", `credential.policy[0].path "secret/{{identity.entity.id}}" has {{identity.entity.id}` + badBraces},
		{"{kind: ssh, mount: ssh, role: a, principals: ['{{identity.entity.name}}']}", `credential.principals[0] "{{identity.entity.name}}" has {{identity.entity.name}` + badBraces},
		// H52 to H54, H57: paths.
		{"{kind: kv, path: /secret/data}", `credential.path "/secret/data" ` + below},
		{"{kind: kv, path: secret}", `credential.path "secret" ` + below},
		{"{kind: kv, path: '{name}/data'}", `credential.path "{name}/data" ` + below},
		{"{kind: kv, path: ../sys/seal}", `credential.path "../sys/seal" has an empty, . or .. segment`},
		{"{kind: kv, path: secret/./a}", `credential.path "secret/./a" has an empty, . or .. segment`},
		{"{kind: kv, path: secret//a}", `credential.path "secret//a" has an empty, . or .. segment`},
		{"{kind: kv, path: secret/a/}", `credential.path "secret/a/" has an empty, . or .. segment`},
		{"{kind: kv, path: 'secret/%2e%2e/a'}", `credential.path "secret/%2e%2e/a" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: kv, path: 'secret/a?b'}", `credential.path "secret/a?b" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: kv, path: 'secret/a#b'}", `credential.path "secret/a#b" may contain only {param} and letters, digits and / . _ -`},
		{`{kind: kv, path: "secret/a\r\n"}`, `credential.path "secret/a\r\n" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: kv, path: secret/+/a}", `credential.path "secret/+/a" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: vault, method: read, path: secret/*}", `credential.path "secret/*" may contain only {param} and letters, digits and / . _ -`},
		{"{kind: vault, method: read, path: sys/seal}", `credential.path "sys/seal" is below sys/, which Vault reserves`},
		{"{kind: vault, method: write, path: auth/token/create}", `credential.path "auth/token/create" is below auth/, which Vault reserves`},
		{"{kind: vault, method: write, path: identity/entity}", `credential.path "identity/entity" is below identity/, which Vault reserves`},
		{"{kind: vault, method: write, path: cubbyhole/a}", `credential.path "cubbyhole/a" is below cubbyhole/, which Vault reserves`},
		{"{kind: vault, method: read, path: 'aws/{free}'}", "credential.path has {free}" + slashPattern},
		{"{kind: vault, method: delete, path: a/b}", `credential.method "delete" is unknown; choose read or write`},
		{"{kind: vault, method: read, path: a/b, data: {a: b}}", "credential.data requires method: write"},
		{"{kind: vault, method: write, path: a/b, data: [a]}", "credential.data must be a mapping (key: value)"},
		{"{kind: vault, method: write, path: a/b, data: {'a b': c}}", `credential.data: key "a b" must be letters, digits, _ and -, at most 64`},
		{"{kind: vault, method: write, path: a/b, data: {a: 7}}", "credential.data.a must be text; put it in quotes"},
		// Names.
		{"{kind: pki, mount: pki, role: web, common_name: '*.acme.example'}", `credential.common_name "*.acme.example" may contain only {param} and lower-case letters, digits and . -`},
		{"{kind: pki, mount: pki, role: web, common_name: a..example}", `credential.common_name "a..example" has a label that is not 1 to 63 letters, digits and inner dashes`},
		{"{kind: pki, mount: pki, role: web, common_name: 10.0.0.1}", `credential.common_name "10.0.0.1" ends in a number`},
		{"{kind: pki, mount: pki, role: web, common_name: '{free}.example'}", "credential.common_name has {free}" + slashPattern},
		{"{kind: pki, mount: pki, role: web, common_name: '{path}.example'}", "credential.common_name has {path}, whose value a/b cannot be part of a DNS name"},
		{"{kind: pki, mount: pki, role: web, common_name: a.example, dns_names: ['b,c.example']}", `credential.dns_names[0] "b,c.example" may contain only {param} and lower-case letters, digits and . -`},
		{"{kind: pki, mount: pki, role: web, common_name: a.example, dns_names: b.example}", "credential.dns_names must be a list"},
		{"{kind: pki, mount: pki, role: web, common_name: a.example, key: both}", `credential.key "both" is unknown; choose client or server`},
		{"{kind: pki, mount: pki, role: web, common_name: a.example, dns_names: [" + strings.Repeat("a.example,", 21) + "]}", "credential.dns_names: 21 are too many; at most 20"},
		// H55: principals.
		{"{kind: ssh, mount: ssh, role: a, principals: []}", "credential.principals is empty; a certificate without principals would be valid for every user"},
		{"{kind: ssh, mount: ssh, role: a}", "credential of kind ssh: principals is missing; example: {kind: ssh, mount: ssh, role: deploy, principals: ['{user}']}"},
		{"{kind: ssh, mount: ssh, role: a, principals: 'deploy,root'}", "credential.principals must be a list"},
		{"{kind: ssh, mount: ssh, role: a, principals: ['deploy,root']}", `credential.principals[0] "deploy,root" may contain only {param} and lower-case letters, digits and _ -`},
		{"{kind: ssh, mount: ssh, role: a, principals: ['']}", `credential.principals[0] "" is not a user name: a lower-case letter or _, then letters, digits, _ and -, at most 64`},
		{"{kind: ssh, mount: ssh, role: a, principals: ['*']}", `credential.principals[0] "*" may contain only {param} and lower-case letters, digits and _ -`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			want := "s.yaml:15: scope one.scope: " + tt.want
			if diff := cmp.Diff(want, refusal(t, oneScope(tt.text)...)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadRefusesTokenPolicies(t *testing.T) {
	const manyCombinations = "credential.policy: the values of its parameters have more than 256 combinations; each is a policy in Vault"
	path := func(path string) string {
		return "{kind: vault-token, policy: [{path: '" + path + "', capabilities: [read]}]}"
	}
	tests := []struct{ text, want string }{
		{"{kind: vault-token, policy: []}", "credential.policy must list 1 to 16 paths"},
		{"{kind: vault-token, policy: {path: a/b}}", "credential.policy must be a list"},
		{"{kind: vault-token, policy: [a/b]}", "credential.policy[0] must be a mapping (key: value)"},
		{"{kind: vault-token, policy: [{path: a/b}]}", "credential.policy[0] needs path and capabilities, such as {path: 'secret/data/agents/{agent}', capabilities: [read]}"},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: []}]}", "credential.policy[0].capabilities is empty; choose create, read, update, patch, delete or list"},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [sudo]}]}", `credential.policy[0].capabilities: "sudo"` + capability},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [root]}]}", `credential.policy[0].capabilities: "root"` + capability},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [deny]}]}", `credential.policy[0].capabilities: "deny"` + capability},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [read, read]}]}", "credential.policy[0].capabilities: read is listed twice"},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [read], max_ttl: 1}]}", `credential.policy[0]: unknown key "max_ttl"; the keys are path, capabilities`},
		{"{kind: vault-token, policy: [{path: a/b, capabilities: [read]}, {path: a/b, capabilities: [list]}]}", "credential.policy[1].path is listed twice"},
		{path("secret/data/{name}"), "credential.policy[0].path has {name}, a string; the paths of a token may contain only enum, int and bool parameters"},
		{path("secret/data/{n}"), manyCombinations},
		{path("secret/data/{few}/{env}/{yes}"), manyCombinations},
		{path("secret/data/{path}"), "credential.policy[0].path has {path}, whose value a/b cannot be part of a path"},
		{path("secret/data/{env}*"), "credential.policy[0].path has a parameter and a * in one segment; put a / between them"},
		{path("secret/data/{env}+"), `credential.policy[0].path "secret/data/{env}+" has a + that is not a whole segment`},
		{path("secret/a+/b"), `credential.policy[0].path "secret/a+/b" has a + that is not a whole segment`},
		{path("secret/*/b"), `credential.policy[0].path "secret/*/b" has a * that is not at the end`},
		{path("secret/**"), `credential.policy[0].path "secret/**" has a * that is not at the end`},
		{path("secret/+*"), `credential.policy[0].path "secret/+*" has a * after a +; write /+/*`},
		{path("*"), `credential.policy[0].path "*" ` + below},
		{path("s*"), `credential.policy[0].path "s*" ` + below},
		{path("+/seal"), `credential.policy[0].path "+/seal" ` + below},
		{path("sys/*"), `credential.policy[0].path "sys/*" is below sys/, which Vault reserves`},
		{path("auth/+/login"), `credential.policy[0].path "auth/+/login" is below auth/, which Vault reserves`},
		{path("secret//*"), `credential.policy[0].path "secret//*" has an empty, . or .. segment`},
		{path("secret/../sys/*"), `credential.policy[0].path "secret/../sys/*" has an empty, . or .. segment`},
		{path("secret/"), `credential.policy[0].path "secret/" has an empty, . or .. segment`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			want := "s.yaml:15: scope one.scope: " + tt.want
			if diff := cmp.Diff(want, refusal(t, oneScope(tt.text)...)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := scopes.Load(oneScope(path("secret/data/{few}/{env}"))); err != nil {
		t.Errorf("256 combinations: %v", err)
	}
}

// canHold checks the parts of an expression, and returns true if in doubt.
func TestPatternsThatCouldMatchASlash(t *testing.T) {
	for pattern, could := range map[string]bool{
		"[a-z0-9-]+": false, "a|b": false, `\w+`: false, `[^/]+`: false, `\d{3}`: false, `(?i)abc`: false, `[[:alnum:]]`: false, `a?`: false,
		"a/b": true, ".*": true, "(?s).": true, "[ -~]": true, `\W`: true, `[^a]`: true, "(a|(b|/))": true, `\x2f`: true, `[.-9]`: true,
		`[[:punct:]]`: true, `\Q/\E`: true, `a(/)?`: true, `(?:/){0}`: true, `\S+`: true,
	} {
		files := oneScope("{kind: kv, path: 'secret/data/{name}'}")
		files[0].Data = []byte(strings.Replace(string(files[0].Data), "'[a-z0-9-]+'", "'"+pattern+"'", 1))
		if _, err := scopes.Load(files); (err != nil) != could {
			t.Errorf("%s: got %v, want refused %v", pattern, err, could)
		}
	}
}
