package mint

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed policy.hcl
var policyText string

// Policy returns the Vault policy with exactly the rights that the broker's login needs, for a Transit mount and key, the log's
// key next to it, and a role of the token store. If a name is not plain, the policy is empty and grants nothing: a star in a path
// would grant a great deal.
func Policy(mount, key, tokenRole string) string {
	if !mountName.MatchString(mount) || !keyName.MatchString(key) || !keyName.MatchString(tokenRole) {
		return ""
	}
	return strings.NewReplacer("{{mount}}", mount, "{{key}}", key, "{{role}}", tokenRole).Replace(policyText)
}

// scopePolicies is the prefix of the names of scope policies, the only policies that the token role may assign.
const scopePolicies = "brevet-scope."

// scopePolicy matches every text that is allowed as a scope's policy, and policyPath finds the paths in it.
var (
	scopePolicy = regexp.MustCompile(`^(?:path "[A-Za-z0-9][A-Za-z0-9_.+*/-]*" \{[^{}"]*(?:"[a-z]+"[^{}"]*)+\}\s*)+$`)
	policyPath  = regexp.MustCompile(`(?m)^path "([^"]*)" \{`)
)

// mayReach reports whether a path of a policy could match anything below a mount. A + stands for any one segment, and a * at the
// end for any rest.
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
