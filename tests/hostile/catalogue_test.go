package hostile_test

import (
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	agent     = "spiffe://acme.test/agents/a"
	twin      = "spiffe://acme.test/agents/ab"
	aliceBot  = "spiffe://acme.test/users/alice/bot"
	foreign   = "spiffe://other.test/agents/a"
	auditor   = "spiffe://acme.test/audit"
	inspector = "spiffe://acme.test/inspector"
	admin     = "spiffe://acme.test/admin"
	chief     = "spiffe://acme.test/chief"
	deputy    = "spiffe://other.test/deputy"
	gitServer = "spiffe://acme.test/services/git"
)

// catalogue has a scope for each kind of parameter and credential. The pattern of any.thing is that of a careless admin.
var catalogue = []scopes.File{{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+|[a-z]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.issues.once
    title: Read issues, for one call
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test, uses: 1}
  - name: git.issues.write
    title: Write issues
    authority: write
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 1}
    credential: {kind: jwt, audience: https://git.test}
  - name: git.repo.delete
    title: Delete a repository
    authority: delete
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: git:repo/{repo}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall, quorum: 2}
    credential: {kind: jwt, audience: https://git.test}
  - name: mail.read
    title: Read mail
    authority: read
    resource: mail:all
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://mail.test, bind: dpop}
  - name: any.thing
    title: Anything
    authority: read
    params:
      value: {type: string, pattern: '(?s).*', max_length: 1000}
    resource: any:{value}
    ttl: {default: 1m, max: 1m}
    credential: {kind: jwt, audience: urn:example:any}
  - name: vault.note.read
    title: Read a note
    authority: read
    params:
      name: {type: string, pattern: '[^/]*', max_length: 1000}
    resource: vault:note/{name}
    ttl: {default: 1m, max: 5m}
    credential: {kind: kv, path: 'secret/data/agents/{name}'}
  - name: db.rows.read
    title: Read rows
    authority: read
    params:
      rows: {type: int, min: 1, max: 9000}
      fresh: {type: bool}
    resource: db:rows
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://db.test}
  - name: db.login.read
    title: Log in to the database
    authority: read
    resource: db:login
    ttl: {default: 1m, max: 5m}
    credential: {kind: database, mount: database, role: reporting}
  - name: ssh.login.open
    title: Log in
    authority: read
    params:
      principal: {type: string, pattern: '[^/]*'}
    resource: ssh:{principal}
    ttl: {default: 1m, max: 5m}
    credential: {kind: ssh, mount: ssh, role: deploy, principals: ['{principal}']}
  - name: pki.cert.read
    title: Get a certificate
    authority: read
    params:
      host: {type: string, pattern: '[a-z0-9-]+'}
    resource: pki:{host}
    ttl: {default: 5m, max: 10m}
    credential: {kind: pki, mount: pki, role: web, common_name: '{host}.acme.test'}
  - name: vault.seal.write
    title: Seal
    authority: write
    resource: vault:seal
    ttl: {default: 1m, max: 5m}
    credential: {kind: jwt, audience: https://vault.test}
`)}, {Name: "policies.cedar", Data: []byte(`@id("agents-read")
permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"authority:read", resource);

@id("agents-write")
permit (principal in Path::"spiffe://acme.test/agents/a", action in Action::"git.*", resource);

@id("bots-write")
permit (principal in Path::"spiffe://acme.test/users", action in Action::"git.*", resource);

@id("others-write")
permit (principal in TrustDomain::"other.test", action in Action::"git.*", resource);

@id("writes-need-people")
forbid (principal, action in [Action::"authority:write", Action::"authority:delete"], resource) unless { context.approved };

@id("secret-repo")
forbid (principal, action, resource == Resource::"git:repo/acme/secret");

@id("overflows")
forbid (principal, action == Action::"db.rows.read", resource)
when { context.params.rows > 5000 && context.params.rows * 9223372036854775807 > 0 };
`)}}

// staffed has people and workloads with roles, and an applied catalogue that two admins change.
var staffed = testkit.Options{
	Catalogue: catalogue, Applied: true, SecondAdmin: true,
	Auditors: []string{auditor}, Admins: []string{admin}, CatalogueAdmins: []string{chief, deputy},
	CatalogueAuditors: []string{inspector},
	ResourceServers:   map[string][]string{gitServer: {"https://git.test", "https://mail.test"}},
	People: []devstack.DevPerson{
		{Username: "alice", Name: "Alice", Groups: []string{"oncall", "admins"}},
		{Username: "bob", Name: "Bob", Groups: []string{"oncall"}},
		{Username: "carol", Name: "Carol", Groups: []string{"oncall", "admins"}},
		{Username: "dave", Name: "Dave", Groups: []string{"auditors"}},
		{Username: "mallory", Name: "Mallory", Groups: []string{"staff"}},
	},
	Rules: []people.Rule{
		{Role: people.RoleApprover, Group: "oncall", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleApprover, Group: "staff", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleAdmin, Group: "admins"},
		{Role: people.RoleAuditor, Group: "auditors"},
	},
	Owners: []string{"spiffe://acme.test/users/{owner}/**"},
}
