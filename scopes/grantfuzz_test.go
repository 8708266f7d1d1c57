package scopes_test

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/crypto/ssh"
)

// FuzzGrant: for all accepted parameters, the path stays within the shape that the scope declares, and the Vault policies
// cover it.
func FuzzGrant(f *testing.F) {
	for i, s := range []string{"a", "../sys/seal", "x/../../auth/token/create", "+", "*", "deploy,root", "a\n", "{{a}}", "a-b", "prod", "planner", "..", "A", "7"} {
		f.Add(uint8(i), s, "b", i-4)
	}
	c := vaultWorld(f)
	request, line := newCSR(f, nil), newSSHKey(f)
	f.Fuzz(func(t *testing.T, which uint8, one, two string, n int) {
		a := vaultAsk(vaultNames[int(which)%len(vaultNames)], one, two, n)
		checkGrant(t, c, withKeys(a, request, line))
	})
}

// FuzzCredential: any credential is either refused with Problems or has policies that allow none of Vault's own paths.
func FuzzCredential(f *testing.F) {
	for _, s := range []string{
		"{kind: vault-token, policy: [{path: 'a/{env}/+/b*', capabilities: [read]}]}", "{kind: vault, method: write, path: 'a/{name}', data: {k: '{n}'}}",
		"{kind: database, mount: d, role: '{env}-{name}'}", "{kind: pki, mount: p, role: r, common_name: '{env}.x', key: server}",
		"{kind: kv, path: sys/raw}", "{kind: ssh, mount: s, role: r, principals: [a]}", "{kind: vault-token, policy: [{path: '+/a', capabilities: [sudo]}]}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, credential string) {
		c, err := scopes.Load(oneScope(credential))
		if err != nil {
			return
		}
		for _, p := range c.VaultPolicies() {
			rules := rulesOf(p.Text)
			if len(rules) == 0 || ruleText.ReplaceAllString(p.Text, "") != "" {
				t.Fatalf("policy %q is no policy", p.Text)
			}
			for path, may := range rules {
				for _, forbidden := range []string{"sys/seal", "auth/token/create", "identity/entity", "cubbyhole/response", "sys/policies/acl/x"} {
					if vaultAllows(path, forbidden) {
						t.Fatalf("%s allows %s", path, forbidden)
					}
				}
				if slices.Contains(may, "sudo") || slices.Contains(may, "root") || slices.Contains(may, "deny") {
					t.Fatalf("%s may %v", path, may)
				}
			}
		}
	})
}

// FuzzCSR: a forwarded CSR requests nothing except what the scope grants.
func FuzzCSR(f *testing.F) {
	f.Add(newCSR(f, nil))
	f.Add(newCSR(f, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.svc.acme.example"} }))
	f.Add(newCSR(f, func(r *x509.CertificateRequest) { r.Subject.CommonName, r.EmailAddresses = "b", []string{"a@b"} }))
	c := vaultWorld(f)
	f.Fuzz(func(t *testing.T, csr string) {
		d, err := askCert(t, c, csr)
		if err != nil {
			return
		}
		block, rest := pem.Decode([]byte(d.Grant.Data["csr"]))
		if block == nil || len(rest) > 0 {
			t.Fatalf("got %q", d.Grant.Data["csr"])
		}
		r, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || r.CheckSignature() != nil || len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs) > 0 {
			t.Fatalf("got a request that Vault should not see: %+v and %v", r, err)
		}
		allowed := []string{"a.svc.acme.example", "a.acme.example", "www.acme.example"}
		if slices.ContainsFunc(r.DNSNames, func(name string) bool { return !slices.Contains(allowed, name) }) {
			t.Fatalf("got names %v", r.DNSNames)
		}
	})
}

// FuzzPublicKey: exactly one key is forwarded, without any text around it.
func FuzzPublicKey(f *testing.F) {
	f.Add(newSSHKey(f))
	f.Add(`command="id",no-pty ` + newSSHKey(f) + " x")
	f.Add("ssh-rsa AAAA\n")
	c := vaultWorld(f)
	f.Fuzz(func(t *testing.T, line string) {
		d, err := askLogin(t, c, line)
		if err != nil {
			return
		}
		key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(d.Grant.Data["public_key"]))
		if err != nil || comment != "" || len(options)+len(rest) > 0 || strings.Contains(key.Type(), "cert") {
			t.Fatalf("got %q", d.Grant.Data["public_key"])
		}
	})
}
