package mint

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed policy.hcl
var policyText string

// Policy is the Vault policy that the broker's login needs, and no more, for a Transit mount and key, the log's key beside
// it, and a role of the token store. A name that is not plain gives an empty policy, which grants nothing: in a path, a star would grant a
// great deal.
func Policy(mount, key, tokenRole string) string {
	if !mountName.MatchString(mount) || !keyName.MatchString(key) || !keyName.MatchString(tokenRole) {
		return ""
	}
	return strings.NewReplacer("{{mount}}", mount, "{{key}}", key, "{{role}}", tokenRole).Replace(policyText)
}

// scopePolicies is what the names of the policies of scopes begin with: the only ones that the token role gives.
const scopePolicies = "brevet-scope."

// scopePolicy is all that the policy of a scope may be, and policyPath finds its paths.
var (
	scopePolicy = regexp.MustCompile(`^(?:path "[A-Za-z0-9][A-Za-z0-9_.+*/-]*" \{[^{}"]*(?:"[a-z]+"[^{}"]*)+\}\s*)+$`)
	policyPath  = regexp.MustCompile(`(?m)^path "([^"]*)" \{`)
)

// mayReach tells whether a path of a policy could match anything below a mount: a + stands for any one segment, and a
// * at its end for any rest.
func mayReach(path, mount string) bool {
	segments := strings.Split(path, "/")
	for i, name := range strings.Split(mount, "/") {
		if i == len(segments) {
			return false
		}
		if rest, any := strings.CutSuffix(segments[i], "*"); any && i == len(segments)-1 {
			return strings.HasPrefix(name, rest) || strings.HasPrefix(rest, "+")
		}
		if segments[i] != name && segments[i] != "+" {
			return false
		}
	}
	return true
}
