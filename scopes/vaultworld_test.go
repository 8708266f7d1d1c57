package scopes_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
)

// vaultScopes has every kind of credential that Vault makes. Its patterns are careless: they allow whatever their place
// allows.
const vaultScopes = `scopes:
  - name: db.reporting
    title: Read reports
    authority: read
    params:
      env: {type: enum, values: [dev, prod]}
    resource: db:{env}
    ttl: {default: 5m, max: 15m}
    credential: {kind: database, mount: team/database, role: '{env}-ro'}
  - name: db.any
    title: Any role
    authority: permission
    params:
      role: {type: string, pattern: '[^/]*', max_length: 1000}
    resource: db:role/{role}
    ttl: {default: 5m, max: 15m}
    credential: {kind: database, mount: database, role: '{role}'}
  - name: web.cert
    title: Certificate of one service
    authority: write
    params:
      service: {type: string, pattern: '[^/]*', max_length: 300}
    resource: web:{service}
    ttl: {default: 5m, max: 15m}
    credential: {kind: pki, mount: pki, role: web, common_name: '{service}.svc.acme.example', dns_names: ['{service}.acme.example', 'www.acme.example']}
  - name: web.full
    title: Certificate with a key
    authority: write
    params:
      service: {type: string, pattern: '[^/]*'}
      n: {type: int, min: -3, max: 3}
    resource: web:{service}/{n}
    ttl: {default: 5m, max: 15m}
    credential: {kind: pki, mount: pki, role: 'web{n}', common_name: '{service}', key: server}
  - name: ssh.login
    title: Log in
    authority: write
    params:
      user: {type: string, pattern: '[^/]*'}
    resource: ssh:{user}
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: ssh, mount: ssh, role: deploy, principals: ['{user}', deploy]}
  - name: kv.agent
    title: An agent's secret
    authority: read
    params:
      name: {type: string, pattern: '[^/]*', max_length: 1000}
    resource: kv:{name}
    ttl: {default: 5m, max: 15m}
    credential: {kind: kv, path: 'secret/data/agents/{name}'}
  - name: aws.creds
    title: Cloud key
    authority: write
    params:
      role: {type: string, pattern: '[^/]*'}
      env: {type: string, pattern: '[^/]*'}
    resource: aws:{env}/{role}
    ttl: {default: 5m, max: 15m}
    credential: {kind: vault, method: read, path: 'aws/{env}/creds/{role}-{env}', within_svid: true}
  - name: gcp.token
    title: Cloud token
    authority: write
    params:
      set: {type: string, pattern: '[^/]*'}
      urgent: {type: bool}
    resource: gcp:{set}
    ttl: {default: 5m, max: 15m}
    credential:
      kind: vault
      method: write
      path: 'gcp/roleset/{set}/token'
      data: {purpose: 'urgent={urgent}; set {set}', version: '1'}
      static: true
  - name: aws.keys
    title: Keys that nobody can revoke
    authority: write
    resource: aws:keys
    ttl: {default: 20m, max: 1h}
    credential: {kind: vault, method: write, path: aws/creds/site, revocable: false, min_ttl: 15m, within_svid: true}
  - name: token.agent
    title: Token
    authority: read
    params:
      agent: {type: enum, values: [planner, coder]}
      n: {type: int, min: 1, max: 3}
      all: {type: bool}
      why: {type: string, pattern: '.*'}
    resource: token:{agent}/{n}/{all}/{why}
    ttl: {default: 5m, max: 15m}
    credential:
      kind: vault-token
      policy:
        - {path: 'secret/data/agents/{agent}/{n}', capabilities: [update, read]}
        - {path: 'secret/metadata/agents/{agent}/*', capabilities: [list]}
        - {path: 'secret/data/+/shared', capabilities: [read]}
        - {path: 'secret/data/all-{all}', capabilities: [read]}
`

const permitAll = `@id("all") permit (principal, action, resource);`

func vaultWorld(tb testing.TB) *scopes.Catalogue {
	tb.Helper()
	return load(tb, vaultScopes, permitAll)
}

// oneScope is a catalogue of one scope with the given credential and parameters of each type.
func oneScope(credential string) []scopes.File {
	yaml := `scopes:
  - name: one.scope
    title: One
    authority: read
    params:
      env: {type: enum, values: [dev, prod]}
      path: {type: enum, values: [a/b, c]}
      name: {type: string, pattern: '[a-z0-9-]+'}
      free: {type: string, pattern: '.*'}
      n: {type: int, min: 1, max: 300}
      few: {type: int, min: 1, max: 128}
      yes: {type: bool}
    resource: one:{name}
    ttl: {default: 5m, max: 15m}
    credential: ` + credential + "\n"
	return []scopes.File{file("s.yaml", yaml), file("p.cedar", permitAll)}
}

// vaultAllows matches a path against a policy path as Vault does: + is one segment, and * at the end is anything. It is
// written independently of the code.
func vaultAllows(pattern, path string) bool {
	prefix := strings.HasSuffix(pattern, "*")
	want, got := strings.Split(strings.TrimSuffix(pattern, "*"), "/"), strings.Split(path, "/")
	if len(got) < len(want) || !prefix && len(got) > len(want) {
		return false
	}
	for i, segment := range want {
		last := i == len(want)-1
		switch {
		case prefix && last:
			if !strings.HasPrefix(got[i], segment) {
				return false
			}
		case segment == "+":
			if got[i] == "" {
				return false
			}
		case segment != got[i]:
			return false
		}
	}
	return true
}
