package console

import (
	"html/template"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// What the record says in fixed words, as people say it. What is in none of these lists is shown as it is.
var (
	statusChoices = []choice{
		{string(broker.StatusDenied), "denied"},
		{string(broker.StatusPending), "waits for people"},
		{string(broker.StatusApproved), "approved, not fetched yet"},
		{string(broker.StatusRejected), "rejected by people"},
		{string(broker.StatusWithdrawn), "withdrawn by the sandbox"},
		{string(broker.StatusRedeemed), "approved and fetched"},
		{string(broker.StatusIntent), "about to be made"},
		{string(broker.StatusIssued), "issued"},
		{string(broker.StatusFailed), "not made"},
		{string(broker.StatusUnknown), "lost on its way; dies undelivered"},
		{string(broker.StatusCompensated), "lost on its way; dead"},
		{string(broker.StatusRevoking), "being revoked; dead here"},
		{string(broker.StatusRevoked), "revoked"},
		{string(broker.StatusReleased), "given back"},
		{string(broker.StatusExpired), "over at its time"},
		{string(broker.StatusUsed), "used up"},
	}
	decisionChoices = []choice{{"allow", "allowed"}, {"deny", "denied"}, {"pending", "left to people"}}
	codeChoices     = []choice{
		{scopes.ReasonPermitted, "a policy permits it"},
		{scopes.ReasonApprovalRequired, "people have to agree"},
		{scopes.ReasonApproved, "people have agreed"},
		{scopes.ReasonBreakGlass, "others broke the glass"},
		{scopes.ReasonNoPermit, "no policy permits it"},
		{scopes.ReasonForbidden, "a policy forbids it"},
		{scopes.ReasonUnknownScope, "there is no such scope"},
		{scopes.ReasonPolicyError, "a policy has an error"},
		{scopes.ReasonBindingRequired, "it takes an X.509-SVID"},
		{scopes.ReasonProofRequired, "it takes a proof of a key"},
		{scopes.ReasonSVIDExpiring, "the SVID ends too soon"},
		{scopes.ReasonUserExpiring, "the person's login ends too soon"},
		{scopes.ReasonLimited, "a limit is reached"},
		{scopes.ReasonQuarantined, "the sandbox is in quarantine"},
		{scopes.ReasonTaskEnded, "the task has ended"},
	}
	detailChoices = []choice{
		{broker.CauseReleased, "by its holder"},
		{broker.CauseTaskEnded, "its task has ended"},
		{broker.CauseRevoked, "by an admin"},
		{broker.CauseQuarantined, "the sandbox was put into quarantine"},
		{broker.CauseUndelivered, "the answer did not reach the caller"},
		{broker.CauseOverdue, "its time has passed, and Vault still held it"},
		{broker.CauseGone, "found dead in Vault before its time"},
		{broker.CauseParentEnded, "what it was handed down from has ended"},
		{"vault_unavailable", "Vault did not answer"},
		{"vault_refused", "Vault refused"},
		{"mint_mismatch", "Vault made something else"},
	}
	// whyChoices say why something is not over.
	whyChoices = []choice{
		{"vault_unavailable", "Vault does not answer; it is tried again"},
		{"vault_refused", "Vault refuses; it is tried again, and somebody has to look at its configuration"},
		{"ledger_unavailable", "the record does not answer; it is tried again"},
		{"unfinished", "its making is under way or lost; it dies undelivered"},
		{"static", "a stored secret: only its owner can change it"},
	}
	eventChoices = []choice{
		{"request.denied", "Asked, and denied"},
		{"request.pending", "Asked, and left to people"},
		{"issuance.intent", "Asked, and allowed"},
		{"issuance.issued", "Made"},
		{"issuance.failed", "Not made"},
		{"issuance.unknown", "Lost on its way"},
		{"issuance.compensated", "Lost on its way, and dead"},
		{"issuance.revoking", "Ended here; Vault has to confirm"},
		{"issuance.revoked", "Revoked"},
		{"issuance.released", "Given back"},
		{"issuance.expired", "Over at its time"},
		{"issuance.used", "Used up"},
		{"issuance.reported", "Its holder tells of its use"},
		{"approval.vote", "A person voted"},
		{"approval.remembered", "An earlier yes stands for it"},
		{"approval.withdrawn", "Withdrawn by the sandbox"},
		{broker.CommandTaskEnd, "End of the task ordered"},
		{broker.CommandRevoke, "Revocation ordered"},
		{broker.CommandQuarantineAdd, "Quarantine ordered"},
		{broker.CommandQuarantineRemove, "Quarantine lifted"},
	}
)

// termFunctions are what templates say terms by.
var termFunctions = template.FuncMap{
	"status": inWords(statusChoices), "decision": inWords(decisionChoices), "code": inWords(codeChoices),
	"detail": inWords(detailChoices), "event": inWords(eventChoices), "why": inWords(whyChoices),
}

// inWords is how a list says a term; a term that it lacks, harmless.
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
