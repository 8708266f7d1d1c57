package mint

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

const capabilitiesPath = "sys/capabilities-self"

var policyRight = regexp.MustCompile(`path "([^"]+)" \{\s+capabilities = \[([^\]]+)\]`)

// right is a capability on a path that the broker needs in Vault.
type right struct{ path, capability string }

func (r right) String() string { return r.capability + " on " + r.path }

// rights returns what policy.hcl grants, as far as every broker needs it: see refreshOptional.
func (m *Minter) rights() (needed []right, paths []string) {
	for _, found := range policyRight.FindAllStringSubmatch(Policy(m.cfg.Mount, m.cfg.SigningKey, m.cfg.TokenRole), -1) {
		path := strings.ReplaceAll(found[1], "+", "0")
		optional := slices.ContainsFunc(m.keys[1:], func(k *transitKey) bool {
			return path == m.cfg.Mount+"/sign/"+k.signings.key || path == m.cfg.Mount+"/keys/"+k.signings.key
		})
		if optional || strings.HasPrefix(path, scopes.GitHubTokens) && len(m.gitHub) == 0 {
			continue
		}
		paths = append(paths, path)
		for capability := range strings.SplitSeq(found[2], ",") {
			needed = append(needed, right{path, strings.Trim(capability, ` "`)})
		}
	}
	return needed, paths
}

// checkRights asks Vault which of the needed rights the broker's token lacks. Ready reports them.
func (m *Minter) checkRights(ctx context.Context) {
	missing, err := m.missingRights(func(do func(context.Context, *api.Client) (*api.Secret, error)) (*api.Secret, error) {
		return m.exchange(ctx, "asking for the rights", m.own(), func(ctx context.Context) (*api.Secret, error) { return do(ctx, m.client) })
	})
	if len(missing) > 0 && m.hasStandbys(ctx) { // a standby may not know the policy yet
		again, err := m.missingRights(func(do func(context.Context, *api.Client) (*api.Secret, error)) (*api.Secret, error) {
			return m.atActive(ctx, "asking for the rights", do)
		})
		if err == nil {
			missing = again
		}
	}
	if err != nil { // nothing is known, and the calls themselves show what fails
		return
	}
	var fault error
	if len(missing) > 0 {
		var names []string
		for _, r := range missing {
			names = append(names, r.String())
		}
		fault = &broker.MissingRightsError{Rights: names}
	}
	m.mu.Lock()
	news := fault != nil && m.lacking == nil
	m.lacking = fault
	m.mu.Unlock()
	if news {
		m.cfg.Log.ErrorContext(ctx, "not ready: rights are missing in vault", "error", fault)
	}
}

func (m *Minter) missingRights(ask func(func(context.Context, *api.Client) (*api.Secret, error)) (*api.Secret, error)) ([]right, error) {
	needed, paths := m.rights()
	answer, err := ask(func(ctx context.Context, client *api.Client) (*api.Secret, error) {
		return client.Logical().WriteWithContext(ctx, capabilitiesPath, map[string]any{"paths": paths})
	})
	if statusOf(err) == http.StatusForbidden {
		return []right{{capabilitiesPath, "update"}}, nil
	}
	data, err := dataOf(answer, err)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(needed, func(r right) bool {
		have, known := data[r.path].([]any)
		return !known || slices.Contains(have, any(r.capability)) || slices.Contains(have, any("root"))
	}), nil
}
