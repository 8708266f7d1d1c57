package console

import (
	"fmt"
	"html/template"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// tone is the class of a badge, and so its colour. The word says the same, so the colour carries nothing alone.
type tone string

const (
	toneGood tone = "good"
	toneWait tone = "wait" // somebody or something is waited for, or should be looked at
	toneBad  tone = "bad"
	toneInfo tone = "info"
	toneOver tone = "over" // the end of something that was in order
)

// state is a state with its standard word. meaning is shown on hover, and in the search form.
type state struct {
	word    string
	tone    tone
	meaning string
}

// states are all states that pages show, by code: of requests and credentials, decisions, votes, catalogue changes,
// dependencies and signing keys.
var states = map[string]state{
	string(broker.StatusDenied):      {"Denied", toneBad, ""},
	string(broker.StatusPending):     {"Pending", toneWait, "waits for approval"},
	string(broker.StatusApproved):    {"Approved", toneGood, ""},
	string(broker.StatusRejected):    {"Rejected", toneBad, "denied by a person"},
	string(broker.StatusWithdrawn):   {"Withdrawn", toneOver, ""},
	string(broker.StatusRedeemed):    {"Redeemed", toneOver, "approved, and the credential was requested"},
	string(broker.StatusIntent):      {"Issuing", toneInfo, ""},
	string(broker.StatusIssued):      {"Issued", toneGood, ""},
	string(broker.StatusFailed):      {"Failed", toneBad, "no credential was minted"},
	string(broker.StatusUnknown):     {"Unknown", toneWait, "outcome unknown, not delivered"},
	string(broker.StatusCompensated): {"Rolled back", toneOver, "not delivered"},
	string(broker.StatusRevoking):    {"Revoking", toneWait, "inactive; Vault has not confirmed the revocation"},
	string(broker.StatusRevoked):     {"Revoked", toneOver, ""},
	string(broker.StatusReleased):    {"Released", toneOver, "given back by the holder"},
	string(broker.StatusExpired):     {"Expired", toneOver, ""},
	string(broker.StatusUsed):        {"Used", toneOver, "for one use"},

	"allow": {"Allowed", toneGood, ""},
	"deny":  {"Denied", toneBad, ""},

	string(approval.Approve):    {"Approved", toneGood, ""},
	string(approval.BreakGlass): {"Break-glass", toneWait, "approved in place of the approver group"},

	string(broker.CatalogueProposed):   {"Pending", toneWait, "waits for another admin"},
	string(broker.CatalogueApplied):    {"Applied", toneGood, ""},
	string(broker.CatalogueSuperseded): {"Superseded", toneOver, "another change was applied first"},

	stateOK:       {stateOK, toneGood, ""},
	stateDegraded: {stateDegraded, toneWait, ""},
	stateDown:     {stateDown, toneBad, ""},

	"signing":   {"Signing", toneGood, ""},
	"scheduled": {"Scheduled", toneInfo, "signs after verifiers have fetched it"},
	"retired":   {"Retired", toneOver, "no longer signs"},
}

// badge returns the badge of a state. A code without a word is shown escaped.
func badge(code any) template.HTML {
	text := fmt.Sprint(code)
	s, known := states[text]
	if !known {
		s = state{safetext.Text(text), toneOver, ""}
	}
	hover := ""
	if s.meaning != "" {
		hover = ` title="` + template.HTMLEscapeString(s.meaning) + `"`
	}
	//nolint:gosec // every part is escaped or constant
	return template.HTML(`<span class="badge ` + string(s.tone) + `"` + hover + `>` + template.HTMLEscapeString(s.word) + `</span>`)
}

// choicesOf returns the options of a search by state.
func choicesOf(codes ...string) []choice {
	var all []choice
	for _, code := range codes {
		one := choice{code, states[code].word}
		if m := states[code].meaning; m != "" {
			one.Text += " (" + m + ")"
		}
		all = append(all, one)
	}
	return all
}

var (
	statusChoices = choicesOf(
		string(broker.StatusDenied), string(broker.StatusPending), string(broker.StatusApproved), string(broker.StatusRejected),
		string(broker.StatusWithdrawn), string(broker.StatusRedeemed), string(broker.StatusIntent), string(broker.StatusIssued),
		string(broker.StatusFailed), string(broker.StatusUnknown), string(broker.StatusCompensated), string(broker.StatusRevoking),
		string(broker.StatusRevoked), string(broker.StatusReleased), string(broker.StatusExpired), string(broker.StatusUsed),
	)
	decisionChoices = choicesOf("allow", "deny", string(broker.StatusPending))
)
