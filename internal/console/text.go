package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/diff"
)

// functions returns the functions for templates.
func (c *Console) functions() template.FuncMap {
	return template.FuncMap{
		"static":  c.static.address,
		"inert":   safetext.Text,
		"kindof":  credentialKind,
		"pieces":  safetext.Pieces,
		"utc":     utc,
		"iso":     iso,
		"when":    func(t time.Time) template.HTML { return when(t, c.cfg.Now()) },
		"lasting": lasting,
		"params":  paramsOf,
		"short":   short,
		"list":    func(of ...string) []string { return of },
		"mixes":   safetext.MixesAlphabets,
		"prose":   prose,
		"reach": func(r diff.Reach) string { // marks the changes to review closely
			return map[diff.Reach]string{
				diff.Widened: "widens reach", diff.Narrowed: "narrows reach", diff.Changed: "changes reach, review closely",
			}[r]
		},
		"shiftsof": shiftsOf,
		"textdiff": func(before, after string) fileDiff { // of one policy
			room := room{lines: maxLines, bytes: maxDiff}
			return room.diff("", before, after)
		},
		"these": func(of ...any) []any { return of },

		// States and codes of the record. Unknown ones are shown escaped.
		"badge": badge, "code": inWords(codeChoices), "detail": inWords(detailChoices),
		"event": inWords(eventChoices), "why": inWords(whyChoices),
	}
}

// credentialKind describes the kind of a credential.
func credentialKind(kind string) string {
	if kind == scopes.KindNone {
		return scopes.Credential{Kind: kind}.Summary()
	}
	return safetext.Text(kind)
}

func utc(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// when shows a time: relative to now, with the UTC time on hover. The styles show both in print, and on the pages that are
// evidence. A script keeps the relative time current.
func when(t, now time.Time) template.HTML {
	if t.IsZero() {
		return "never"
	}
	//nolint:gosec // every part is a formatted time
	return template.HTML(`<time datetime="` + iso(t) + `" title="` + utc(t) + `">` + relative(t, now) + `</time>`)
}

// relative describes a time relative to now, such as "3 min ago" or "in 1 h 20 min". It rounds down.
func relative(t, now time.Time) string {
	seconds := int64(t.Sub(now) / time.Second)
	switch {
	case seconds < 0:
		return spell(-seconds, false) + " ago"
	case seconds > 0:
		return "in " + spell(seconds, true)
	}
	return "now"
}

// spell formats a number of seconds with its largest unit. If exact is set, minutes follow hours.
func spell(seconds int64, exact bool) string {
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	switch minutes := seconds % hour / minute; {
	case seconds < minute:
		return fmt.Sprintf("%d s", seconds)
	case seconds < hour:
		return fmt.Sprintf("%d min", minutes)
	case seconds < day && exact && minutes > 0:
		return fmt.Sprintf("%d h %d min", seconds/hour, minutes)
	case seconds < day:
		return fmt.Sprintf("%d h", seconds/hour)
	case seconds < 2*day:
		return "1 day"
	}
	return fmt.Sprintf("%d days", seconds/day)
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return relative(t, now)
}

// lasting formats a duration with at most its two largest units.
func lasting(d time.Duration) string {
	d = d.Round(time.Second)
	units := []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		n := d / u.length
		if n == 0 {
			continue
		}
		text := fmt.Sprintf("%d%s", n, u.name)
		if i+1 < len(units) {
			if rest := d % u.length / units[i+1].length; rest > 0 {
				text += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return text
	}
	return "0s"
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// param is one parameter of a request.
type param struct{ Name, Value string }

func paramsOf(params map[string]any) []param {
	var all []param
	for _, name := range sortedKeys(params) {
		text, ok := params[name].(string)
		if !ok {
			data, err := json.Marshal(params[name])
			if err != nil {
				continue // a value decoded from JSON can be encoded
			}
			text = string(data)
		}
		all = append(all, param{name, text})
	}
	return all
}

// short truncates a text that is longer than most characters.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return strings.TrimSpace(string(runes[:most-1])) + "…"
	}
	return text
}

// span is a piece of a paragraph. Code is set for text between backticks.
type span struct {
	Text string
	Code bool
}

// prose parses Brevet's own texts: empty lines separate paragraphs, and backticks enclose code. No other markup has a
// meaning.
func prose(text string) [][]span {
	var paragraphs [][]span
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		var spans []span
		for i, piece := range strings.Split(paragraph, "`") {
			if piece != "" {
				spans = append(spans, span{piece, i%2 == 1})
			}
		}
		if len(spans) > 0 {
			paragraphs = append(paragraphs, spans)
		}
	}
	return paragraphs
}

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
	string(broker.StatusVoid):        {"Void", toneOver, "the catalogue changed first; the sandbox has to ask again"},
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
	string(broker.StatusUsed):        {"Used", toneOver, "single-use token, used up"},

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
		string(broker.StatusWithdrawn), string(broker.StatusVoid), string(broker.StatusRedeemed), string(broker.StatusIntent), string(broker.StatusIssued),
		string(broker.StatusFailed), string(broker.StatusUnknown), string(broker.StatusCompensated), string(broker.StatusRevoking),
		string(broker.StatusRevoked), string(broker.StatusReleased), string(broker.StatusExpired), string(broker.StatusUsed),
	)
	decisionChoices = choicesOf("allow", "deny", string(broker.StatusPending))
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
		{"github_unavailable", "GitHub unavailable"},
		{"github_refused", "refused by GitHub"},
		{"mint_mismatch", "a different credential was returned"},
	}
	// whyChoices explains why a revocation is incomplete.
	whyChoices = []choice{
		{"vault_unavailable", "Vault is unavailable; Brevet retries"},
		{"vault_refused", "Vault refuses; Brevet retries. Check the configuration of Vault"},
		{"github_unavailable", "GitHub is unavailable; Brevet retries"},
		{"github_refused", "GitHub refuses; Brevet retries. Check the App in the server's configuration"},
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
		{"calls.recorded", "Calls reported by the egress gateway"},
		{"approval.vote", "Vote"},
		{"approval.remembered", "Approval reused"},
		{"approval.withdrawn", "Withdrawn"},
		{broker.CommandTaskEnd, "Task end ordered"},
		{broker.CommandRevoke, "Revocation ordered"},
		{broker.CommandQuarantineAdd, "Quarantine ordered"},
		{broker.CommandQuarantineRemove, "Quarantine lifted"},
	}
)

// inWords returns the label of a code. A code that the list lacks is shown escaped.
func inWords(list []choice) func(code string) string {
	return func(code string) string {
		if i := slices.IndexFunc(list, func(c choice) bool { return c.Value == code }); i >= 0 {
			return list[i].Text
		}
		return safetext.Text(code)
	}
}
