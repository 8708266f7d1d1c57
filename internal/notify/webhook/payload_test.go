package webhook_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
)

// The test vector of Standard Webhooks.
const (
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

func TestSignatures(t *testing.T) {
	t.Parallel()
	got, err := webhook.Sign(whsec, vectorID, vectorTime, []byte(vectorBody))
	if err != nil || got != vectorSignature {
		t.Errorf("got %q, %v, want that of the test vector", got, err)
	}
	const next = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	both, err := webhook.Sign(whsec+" "+next, vectorID, vectorTime, []byte(vectorBody))
	if err != nil || !strings.HasPrefix(both, vectorSignature+" v1,") {
		t.Errorf("got %q, %v, want a signature by each secret", both, err)
	}
	header := func(name, value string) http.Header {
		h := http.Header{}
		h.Set("webhook-id", vectorID)
		h.Set("webhook-timestamp", "1614265330")
		h.Set("webhook-signature", both)
		if name != "" {
			h.Set(name, value)
		}
		return h
	}
	for _, key := range []string{whsec, next} {
		id, err := client.VerifyWebhook(header("", ""), []byte(vectorBody), secret.New(key), vectorTime.Add(4*time.Minute))
		if err != nil || id != vectorID {
			t.Errorf("got %q, %v, want it verified by either secret", id, err)
		}
	}
	for name, tc := range map[string]struct {
		header http.Header
		body   string
		now    time.Time
	}{
		"H89: old":             {header("", ""), vectorBody, vectorTime.Add(5*time.Minute + time.Second)},
		"H89: ahead":           {header("", ""), vectorBody, vectorTime.Add(-5*time.Minute - time.Second)},
		"H89: signature":       {header("webhook-signature", "v1,"+strings.Repeat("A", 43)+"="), vectorBody, vectorTime},
		"H89: no signature":    {header("webhook-signature", ""), vectorBody, vectorTime},
		"H89: another version": {header("webhook-signature", "v1a"+vectorSignature[2:]), vectorBody, vectorTime},
		"H89: another id":      {header("webhook-id", "msg_x"), vectorBody, vectorTime},
		"H89: no id":           {header("webhook-id", ""), vectorBody, vectorTime},
		"H89: another time":    {header("webhook-timestamp", "1614265331"), vectorBody, vectorTime},
		"H89: no time":         {header("webhook-timestamp", "x"), vectorBody, vectorTime},
		"H89: another body":    {header("", ""), vectorBody + " ", vectorTime},
	} {
		if _, err := client.VerifyWebhook(tc.header, []byte(tc.body), secret.New(whsec), tc.now); !errors.Is(err, client.ErrWebhook) {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	if _, err := client.VerifyWebhook(header("", ""), []byte(vectorBody), secret.New("x"), vectorTime); err == nil || errors.Is(err, client.ErrWebhook) {
		t.Errorf("a malformed secret: got %v", err)
	}
}

// H75, H71 to H79: Slack renders no mention and no link from a sandbox's text.
func TestSlackMessagesAreInert(t *testing.T) {
	t.Parallel()
	const hostile = "<!channel> <@U1> <https://evil.example|ok> https://evil.example @here *b* `c` &lt; \u202egnp\u200b\x1b[2J\r\n> A request is approved"
	spec := webhook.Spec{
		Name: "slack", Target: safehttp.Target{URL: secret.New("https://hooks.example/services/x")}, Format: webhook.FormatSlack,
		Events: []broker.NoticeKind{broker.NoticeWaiting}, Within: []string{people.Everywhere},
	}
	n := broker.Notice{
		Kind: broker.NoticeWaiting, Request: "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21", SPIFFEID: agent, Scope: hostile, Authority: "write",
		Resource: hostile + strings.Repeat("x", 5000), Task: hostile, Group: hostile, Quorum: 2, Expires: vectorTime,
	}
	text, err := webhook.Body(spec, n, "https://brevet.test/v1/approvals/{id}")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Text   string
		Mrkdwn *bool
		Blocks []struct {
			Text struct {
				Type, Text string
				Verbatim   bool
				Emoji      *bool
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil || len(got.Blocks) != 2 {
		t.Fatalf("got %s, %v, want two blocks", text, err)
	}
	head, facts := got.Blocks[0].Text, got.Blocks[1].Text
	if head.Type != "mrkdwn" || !head.Verbatim || facts.Type != "plain_text" || facts.Emoji == nil || *facts.Emoji {
		t.Errorf("got %+v and %+v, want nothing of a sandbox where Slack looks for mentions and links", head, facts)
	}
	const link = "\n<https://brevet.test/v1/approvals/019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21|Open the request>"
	if !strings.HasSuffix(head.Text, link) {
		t.Errorf("got %q, want one link, to the request", head.Text)
	}
	n.Kind = broker.NoticeBroken
	broken, err := webhook.Body(spec, n, "")
	if err != nil {
		t.Fatal(err)
	}
	var alarm struct{ Text string }
	if err := json.Unmarshal(broken, &alarm); err != nil || !strings.HasPrefix(alarm.Text, "BREAK GLASS: a member of ") || strings.ContainsAny(alarm.Text, "<>\x1b\r") {
		t.Errorf("got %s, %v, want the alarm, and no mention", broken, err)
	}
	for _, shown := range []string{got.Text, strings.TrimSuffix(head.Text, link), facts.Text} {
		if strings.ContainsAny(shown, "<>\u202e\u200b\x1b\r") || len(shown) > 3000 {
			t.Errorf("got %q, want it short, and nothing that begins a mention", shown)
		}
	}
	if n := strings.Count(facts.Text, "\n"); n != 6 {
		t.Errorf("got %d lines, want that no fact adds one: %q", n+1, facts.Text)
	}
}
