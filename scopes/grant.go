package scopes

import (
	"slices"
	"strings"
	"sync"
)

// recipe is a scope's credential, compiled. It makes the Grant.
type recipe struct {
	path                 template // for every kind but jwt and vault-token
	commonName           template
	dnsNames, principals []template
	data                 map[string]template
	rules                []rule      // vault-token
	policy               VaultPolicy // limits the token that calls Vault; a vault-token has one policy per combination instead
}

// keyProofs holds what a caller sent about its own keys. request parses the CSR once for all hints that are tried,
// because verifying its signature is expensive.
type keyProofs struct {
	request func() (request, *InvalidAsk)
	// Only Assess sets csr and publicKey: such a key was sent, but is not available.
	csr, publicKey bool
}

func newKeyProofs(ask Ask) keyProofs {
	return keyProofs{request: sync.OnceValues(func() (request, *InvalidAsk) { return parseCSR(ask.CSR) })}
}

// certifies reports which of the caller's own keys the credential is made for.
func (c Credential) certifies() (csr, publicKey bool) {
	return c.Kind == KindPKI && !c.ServerKey, c.Kind == KindSSH
}

// grant builds the request for Vault; nil for a JWT.
func (d *definition) grant(params map[string]any, ask Ask, sent keyProofs) (*Grant, *InvalidAsk) {
	c := d.scope.Credential
	if bad := c.checkProofs(ask, sent); bad != nil {
		return nil, bad
	}
	g := &Grant{Policy: d.recipe.policy.Name, Method: MethodWrite, Leased: c.Leased(), Static: c.Static}
	var bad *InvalidAsk
	switch c.Kind {
	case KindVaultToken:
		g.Method = ""
		g.Policy, bad = d.tokenPolicy(params)
		return g, bad
	case KindDatabase, KindKV:
		g.Method = MethodRead
	case KindPKI:
		g.Data, bad = d.recipe.certificate(params, !c.ServerKey, sent)
	case KindSSH:
		g.Data, bad = d.recipe.userCertificate(params, ask.PublicKey, sent)
	case KindVault:
		g.Method = c.Method
		g.Data, bad = d.recipe.written(params)
	default:
		return nil, nil // a JWT: Vault is asked for a signature only
	}
	if bad != nil {
		return nil, bad
	}
	g.Path, bad = d.recipe.path.render(params)
	return g, bad
}

func (c Credential) checkProofs(ask Ask, sent keyProofs) *InvalidAsk {
	csr, publicKey := c.certifies()
	switch {
	case csr && ask.CSR == "" && !sent.csr:
		return invalid("csr", "is required")
	case !csr && ask.CSR != "":
		return invalid("csr", "is not used by this scope; leave it out")
	case publicKey && ask.PublicKey == "" && !sent.publicKey:
		return invalid("public_key", "is required")
	case !publicKey && ask.PublicKey != "":
		return invalid("public_key", "is not used by this scope; leave it out")
	default:
		return nil
	}
}

// certificate returns the data for the pki engine. It contains every name, for a role that takes none from the CSR.
func (r recipe) certificate(params map[string]any, withCSR bool, sent keyProofs) (map[string]string, *InvalidAsk) {
	commonName, bad := r.commonName.render(params)
	if bad != nil {
		return nil, bad
	}
	dnsNames, bad := renderAll(r.dnsNames, params)
	if bad != nil {
		return nil, bad
	}
	data := map[string]string{"common_name": commonName, "exclude_cn_from_sans": "false", "format": "pem"}
	if len(dnsNames) > 0 {
		data["alt_names"] = strings.Join(dnsNames, ",")
	}
	if !withCSR || sent.csr {
		return data, nil
	}
	csr, bad := sent.request()
	if bad != nil {
		return nil, bad
	}
	if !csr.matches(commonName, dnsNames) {
		return nil, invalid("csr", csrNames)
	}
	data["csr"] = csr.pem
	return data, nil
}

func (r recipe) userCertificate(params map[string]any, publicKey string, sent keyProofs) (map[string]string, *InvalidAsk) {
	principals, bad := renderAll(r.principals, params)
	if bad != nil || sent.publicKey {
		return nil, bad
	}
	key, bad := parsePublicKey(publicKey)
	if bad != nil {
		return nil, bad
	}
	// No principal contains a comma, so joining them adds none (H55).
	return map[string]string{"public_key": key, "valid_principals": strings.Join(principals, ","), "cert_type": "user"}, nil
}

func (r recipe) written(params map[string]any) (map[string]string, *InvalidAsk) {
	if r.data == nil {
		return nil, nil
	}
	out := make(map[string]string, len(r.data))
	for _, key := range sortedKeys(r.data) {
		text, bad := r.data[key].render(params)
		if bad != nil {
			return nil, bad
		}
		out[key] = text
	}
	return out, nil
}

// renderAll renders each template and drops duplicate results.
func renderAll(templates []template, params map[string]any) ([]string, *InvalidAsk) {
	var out []string
	for _, t := range templates {
		text, bad := t.render(params)
		if bad != nil {
			return nil, bad
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out, nil
}
