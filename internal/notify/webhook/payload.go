package webhook

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/brevet-dev/brevet/broker"
)

// payload is the body of a call in FormatJSON.
type payload struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      data      `json:"data"`
}

type data struct {
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	SPIFFEID  string    `json:"spiffe_id"`
	Scope     string    `json:"scope"`
	Authority string    `json:"authority"`
	Resource  string    `json:"resource"`
	Task      string    `json:"task"`
	Group     string    `json:"group,omitzero"`
	Quorum    int       `json:"quorum,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Link      string    `json:"link,omitzero"`
}

// body returns the request body for a notice. link is the address of the request's page; opening it does not vote.
func (h *hook) body(n broker.Notice, link string) ([]byte, error) {
	if n.Kind == broker.NoticeUnrevoked {
		link = ""
	}
	link = strings.ReplaceAll(link, "{id}", n.Request)
	var out any = payload{
		Type: string(n.Kind), Timestamp: n.Time.UTC(), Data: data{
			ID: n.Request, Status: string(n.Status), SPIFFEID: n.SPIFFEID, Scope: n.Scope, Authority: n.Authority,
			Resource: n.Resource, Task: n.Task, Group: n.Group, Quorum: n.Quorum, ExpiresAt: n.Expires.UTC(), Link: link,
		},
	}
	if h.format == FormatSlack {
		out = slackMessage(n, link)
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encoding a notice: %w", err)
	}
	return text, nil
}

// slack is a message for a Slack incoming webhook. Values from a sandbox are plain text, so Slack renders no links and no
// mentions from them.
type slack struct {
	Text        string  `json:"text"` // text of the notification
	Mrkdwn      bool    `json:"mrkdwn"`
	UnfurlLinks bool    `json:"unfurl_links"`
	UnfurlMedia bool    `json:"unfurl_media"`
	Blocks      []block `json:"blocks"`
}

type block struct {
	Type string    `json:"type"`
	Text slackText `json:"text"`
}

type slackText struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Verbatim bool   `json:"verbatim,omitzero"` // only explicitly marked mentions and links
	Emoji    *bool  `json:"emoji,omitempty"`   // plain text only
}

func slackMessage(n broker.Notice, link string) slack {
	title := map[broker.NoticeKind]string{
		broker.NoticeWaiting:   "Approval requested from " + slackValue(n.Group),
		broker.NoticeDecided:   "Request " + slackValue(string(n.Status)),
		broker.NoticeBroken:    "BREAK GLASS: a member of " + slackValue(n.Group) + " approved a request in place of the approver group; its status: " + slackValue(string(n.Status)),
		broker.NoticeUnrevoked: "The revocation of a credential is not confirmed",
	}[n.Kind]
	head := title
	if link != "" {
		head += "\n<" + slackEscape.Replace(link) + "|Open the request>"
	}
	var facts []string
	for _, f := range [][2]string{
		{"request", n.Request},
		{"sandbox", n.SPIFFEID},
		{"scope", n.Scope + " (" + n.Authority + ")"},
		{"resource", n.Resource},
		{"task", n.Task},
	} {
		facts = append(facts, f[0]+": "+slackValue(f[1]))
	}
	if n.Kind == broker.NoticeWaiting {
		facts = append(facts, "quorum: "+strconv.Itoa(n.Quorum), "expires: "+n.Expires.UTC().Format(time.RFC3339))
	}
	return slack{Text: title, Blocks: []block{
		{"section", slackText{Type: "mrkdwn", Text: head, Verbatim: true}},
		{"section", slackText{Type: "plain_text", Text: strings.Join(facts, "\n"), Emoji: new(bool)}},
	}}
}

// slackEscape escapes the characters that begin a mention or a link.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slackMost is the largest length of one value, in characters. A Slack message has at most 3000.
const slackMost = 300

// slackValue converts a value to one short line without invisible characters.
func slackValue(s string) string {
	var b strings.Builder
	for n, r := range []rune(s) {
		if n == slackMost {
			b.WriteString("…")
			break
		}
		if !unicode.IsGraphic(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Variation_Selector) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return slackEscape.Replace(b.String())
}
