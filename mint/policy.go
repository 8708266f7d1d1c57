package mint

import (
	_ "embed"
	"strings"
)

//go:embed policy.hcl
var policyText string

// Policy is the Vault policy that the broker's login needs, and no more, for a Transit mount and key. A name
// that is not plain gives an empty policy, which grants nothing: in a path, a star would grant a great deal.
func Policy(mount, key string) string {
	if !mountName.MatchString(mount) || !keyName.MatchString(key) {
		return ""
	}
	return strings.NewReplacer("{{mount}}", mount, "{{key}}", key).Replace(policyText)
}
