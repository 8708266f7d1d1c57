package mint

import (
	_ "embed"
	"strings"
)

//go:embed policy.hcl
var policyText string

// Policy is the Vault policy that the broker's login needs, and no more, for a Transit mount and key and a role of the
// token store. A name that is not plain gives an empty policy, which grants nothing: in a path, a star would grant a
// great deal.
func Policy(mount, key, tokenRole string) string {
	if !mountName.MatchString(mount) || !keyName.MatchString(key) || !keyName.MatchString(tokenRole) {
		return ""
	}
	return strings.NewReplacer("{{mount}}", mount, "{{key}}", key, "{{role}}", tokenRole).Replace(policyText)
}

// scopePolicies is what the names of the policies of scopes begin with: the only ones that the token role gives.
const scopePolicies = "brevet-scope."
