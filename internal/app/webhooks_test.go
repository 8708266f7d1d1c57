package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/webhook"
)

const twoWebhooks = `
webhooks:
  - name: pager
    url: https://pager.acme.example/hook
    secret_file: pager
    events: [approval.waiting, approval.decided, credential.unrevoked]
    within: [spiffe://acme.example/research]
    allow_private_cidrs: [10.1.0.0/16]
  - {name: slack, url_file: slack, format: slack, events: [approval.waiting]}
`

// TestConfiguredWebhooksAreOpened checks that the configured webhooks are opened as configured.
func TestConfiguredWebhooksAreOpened(t *testing.T) {
	path := write(t, goodConfig+twoWebhooks)
	for name, text := range map[string]string{
		"pager": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "slack": "https://hooks.slack.example/services/CANARY\n",
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var specs []webhook.Spec
	for _, w := range cfg.Webhooks {
		spec, err := w.spec()
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, spec)
	}
	if _, err := webhook.New(webhook.Config{Webhooks: specs, Outbox: new(ledger.Outbox), Now: time.Now, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Errorf("got %v, want both to be sound", err)
	}
	for name, tc := range map[string]struct{ from, to, want string }{
		"two URLs":       {"    url: ", "    url_file: x\n    url: ", "webhooks.pager: set exactly one of url, url_file; 2 are set"},
		"no network":     {"10.1.0.0/16", "10.1", "is not a network"},
		"no SPIFFE ID":   {"spiffe://acme.example/research", "research", "webhooks.pager.within"},
		"no name":        {"name: pager", "name: ''", "webhooks.name: is required"},
		"an unknown key": {"secret_file", "secret", "secret"},
	} {
		if _, err := Load(write(t, goodConfig+strings.Replace(twoWebhooks, tc.from, tc.to, 1))); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
