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
	codeChoices = []choice{
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

// termFunctions show states and codes in templates.
var termFunctions = template.FuncMap{
	"badge": badge, "code": inWords(codeChoices), "detail": inWords(detailChoices), "event": inWords(eventChoices), "why": inWords(whyChoices),
}

// inWords returns the label of a code. A code that the list lacks is shown escaped.
func inWords(list []choice) func(code string) string {
	return func(code string) string {
		if i := slices.IndexFunc(list, func(c choice) bool { return c.Value == code }); i >= 0 {
			return list[i].Text
		}
		return safetext.Text(code)
	}
}
