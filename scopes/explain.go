package scopes

import (
	"fmt"
	"strings"
	"time"
)

// explain says in plain sentences what was decided, by which policies, and what to do next. then is the outcome of
// requesting d.Narrowest. It repeats only those parts of the request that have been checked.
func explain(ask Ask, d Decision, then Outcome) string {
	sentences := []string{outcomeSentence(ask, d)}
	if d.Outcome != Deny {
		for _, clamp := range d.Clamps {
			why := map[string]string{
				BoundScopeMax: "the maximum of this scope", BoundSVID: "the remaining lifetime of the SVID",
				BoundUser: "the remaining lifetime of the person's ID token", BoundBreakGlass: "the maximum for break-glass",
			}[clamp.Bound]
			sentences = append(sentences, fmt.Sprintf("The TTL was reduced from %s to %s, %s.", FormatDuration(clamp.From), FormatDuration(clamp.To), why))
		}
		if d.Scope.Credential.Static {
			sentences = append(sentences, "The secret is static: Brevet cannot revoke it; only its owner can change it.")
		}
		if d.Scope.Credential.Irrevocable {
			sentences = append(sentences, "Nobody can revoke the credential: the other system accepts it until it expires.")
		}
	}
	if hint := d.Narrowest; hint != nil {
		var parts []string
		for _, name := range sortedKeys(hint.Params) {
			if value := hint.Params[name]; hint.Scope != ask.Scope || fmt.Sprint(value) != fmt.Sprint(ask.Params[name]) {
				parts = append(parts, fmt.Sprintf("%s=%v", name, value))
			}
		}
		if hint.TTL >= time.Second && hint.TTL != ask.TTL {
			parts = append(parts, "ttl="+FormatDuration(hint.TTL))
		}
		with := ""
		if len(parts) > 0 {
			with = " with " + strings.Join(parts, ", ")
		}
		if then == Pending {
			with += ", which requires approval"
		}
		sentences = append(sentences, fmt.Sprintf("You could request %s%s.", hint.Scope, with))
	}
	return strings.Join(sentences, " ")
}

func outcomeSentence(ask Ask, d Decision) string {
	by := strings.Join(d.Policies, ", ")
	switch d.Reason {
	case ReasonPermitted:
		return "Permitted by " + by + "."
	case ReasonApproved:
		return "Permitted by " + by + " after approval."
	case ReasonBreakGlass:
		return "Break-glass: permitted by " + by + " after approval by the break-glass group."
	case ReasonApprovalRequired:
		sentence := fmt.Sprintf("%s of the group %s must approve within %s (%s).",
			people(d.Approval.Quorum), d.Approval.Group, FormatDuration(d.Approval.Expires), by)
		if d.Approval.BreakGlass != "" {
			sentence += fmt.Sprintf(" In an emergency, %s of the group %s can approve instead.", people(BreakGlassQuorum), d.Approval.BreakGlass)
		}
		if d.Approval.Passkey == PasskeyRequired {
			sentence += " Each approver signs with a passkey in the console."
		}
		return sentence
	case ReasonNoPermit:
		sentence := fmt.Sprintf("No policy permits %s on %s for this sandbox.", ask.Scope, d.Resource)
		var near []string
		for _, miss := range d.NearMisses {
			if miss.Told {
				near = append(near, strings.TrimSuffix(fmt.Sprintf("%s (%s)", miss.Policy, strings.Join(miss.Fields, ", ")), " ()"))
			}
		}
		if len(near) > 0 {
			sentence += " A condition does not hold in: " + strings.Join(near, ", ") + "."
		}
		return sentence
	case ReasonForbidden:
		return fmt.Sprintf("Forbidden by %s.", by)
	case ReasonUnknownScope:
		return fmt.Sprintf("The scope %s does not exist.", ask.Scope)
	case ReasonPolicyError:
		return fmt.Sprintf("Denied because a policy could not be evaluated (%s); an admin must correct it.", by)
	case ReasonBindingRequired:
		return "This scope binds its credential to an X.509-SVID; present one over mTLS and try again."
	case ReasonProofRequired:
		return "This scope binds its token to a key of the caller; send a DPoP proof (RFC 9449) by that key and try again."
	case ReasonSVIDExpiring:
		return "The SVID expires within " + shortest(d) + ", and the credential may not outlive it; try again with a fresh one."
	case ReasonUserExpiring:
		return "The person's ID token expires within " + shortest(d) + ", and the credential may not outlive it; try again with a fresh one."
	default:
		return "Denied."
	}
}

// shortest is the life below which a credential of the decision's scope cannot be made.
func shortest(d Decision) string {
	if d.Scope.Credential.MinTTL == 0 {
		return "a second"
	}
	return FormatDuration(d.Scope.Credential.MinTTL)
}

func people(n int) string {
	if n == 1 {
		return "1 person"
	}
	return fmt.Sprintf("%d people", n)
}

// FormatDuration writes whole seconds as people do: 5m, not 5m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
