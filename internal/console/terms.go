package console

import (
	"html/template"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// Labels for the codes of the record. A code without a label is shown unchanged.
var (
	statusChoices = []choice{
		{string(broker.StatusDenied), "denied"},
		{string(broker.StatusPending), "pending approval"},
		{string(broker.StatusApproved), "approved, not redeemed"},
		{string(broker.StatusRejected), "rejected"},
		{string(broker.StatusWithdrawn), "withdrawn"},
		{string(broker.StatusRedeemed), "redeemed"},
		{string(broker.StatusIntent), "being issued"},
		{string(broker.StatusIssued), "issued"},
		{string(broker.StatusFailed), "failed"},
		{string(broker.StatusUnknown), "outcome unknown, not delivered"},
		{string(broker.StatusCompensated), "cleaned up, not delivered"},
		{string(broker.StatusRevoking), "inactive, revocation pending"},
		{string(broker.StatusRevoked), "revoked"},
		{string(broker.StatusReleased), "released"},
		{string(broker.StatusExpired), "expired"},
		{string(broker.StatusUsed), "used"},
	}
	decisionChoices = []choice{{"allow", "allowed"}, {"deny", "denied"}, {"pending", "pending approval"}}
	codeChoices     = []choice{
		{scopes.ReasonPermitted, "permitted by policy"},
		{scopes.ReasonApprovalRequired, "approval required"},
		{scopes.ReasonApproved, "approved"},
		{scopes.ReasonBreakGlass, "approved by break-glass"},
		{scopes.ReasonNoPermit, "no policy permits the request"},
		{scopes.ReasonForbidden, "forbidden by policy"},
		{scopes.ReasonUnknownScope, "unknown scope"},
		{scopes.ReasonPolicyError, "policy error"},
		{scopes.ReasonBindingRequired, "X.509-SVID required"},
		{scopes.ReasonProofRequired, "DPoP proof required"},
		{scopes.ReasonSVIDExpiring, "SVID expires too soon"},
		{scopes.ReasonUserExpiring, "login of the person expires too soon"},
		{scopes.ReasonLimited, "scope limit reached"},
		{scopes.ReasonQuarantined, "sandbox is quarantined"},
		{scopes.ReasonTaskEnded, "task has ended"},
	}
	detailChoices = []choice{
		{broker.CauseReleased, "by its holder"},
		{broker.CauseTaskEnded, "task ended"},
		{broker.CauseRevoked, "by an admin"},
		{broker.CauseQuarantined, "sandbox quarantined"},
		{broker.CauseUndelivered, "response not delivered"},
		{broker.CauseOverdue, "expired, but still held by Vault"},
		{broker.CauseGone, "ended early in Vault"},
		{broker.CauseParentEnded, "parent credential ended"},
		{"vault_unavailable", "Vault unavailable"},
		{"vault_refused", "refused by Vault"},
		{"mint_mismatch", "Vault returned a different credential"},
	}
	// whyChoices explains why a revocation is incomplete.
	whyChoices = []choice{
		{"vault_unavailable", "Vault is unavailable; Brevet retries"},
		{"vault_refused", "Vault refuses; Brevet retries. Check the configuration of Vault"},
		{"ledger_unavailable", "ledger is unavailable; Brevet retries"},
		{"unfinished", "issuance is unfinished; the credential will not be delivered"},
		{"static", "static secret; only its owner can rotate it"},
	}
	eventChoices = []choice{
		{"request.denied", "Request denied"},
		{"request.pending", "Approval requested"},
		{"issuance.intent", "Request allowed"},
		{"issuance.issued", "Issued"},
		{"issuance.failed", "Issuance failed"},
		{"issuance.unknown", "Outcome unknown"},
		{"issuance.compensated", "Cleaned up"},
		{"issuance.revoking", "Revocation pending in Vault"},
		{"issuance.revoked", "Revoked"},
		{"issuance.released", "Released"},
		{"issuance.expired", "Expired"},
		{"issuance.used", "Used"},
		{"issuance.reported", "Use reported by the holder"},
		{"approval.vote", "Vote"},
		{"approval.remembered", "Approval reused"},
		{"approval.withdrawn", "Withdrawn"},
		{broker.CommandTaskEnd, "Task end ordered"},
		{broker.CommandRevoke, "Revocation ordered"},
		{broker.CommandQuarantineAdd, "Quarantine ordered"},
		{broker.CommandQuarantineRemove, "Quarantine lifted"},
	}
)

// termFunctions translate codes in templates.
var termFunctions = template.FuncMap{
	"status": inWords(statusChoices), "decision": inWords(decisionChoices), "code": inWords(codeChoices),
	"detail": inWords(detailChoices), "event": inWords(eventChoices), "why": inWords(whyChoices),
}

// inWords returns the label of a code. A code that the list lacks is shown escaped.
func inWords(list []choice) func(term any) string {
	return func(term any) string {
		text := ""
		switch term := term.(type) {
		case string:
			text = term
		case broker.Status:
			text = string(term)
		}
		if i := slices.IndexFunc(list, func(c choice) bool { return c.Value == text }); i >= 0 {
			return list[i].Text
		}
		return safetext.Text(text)
	}
}
