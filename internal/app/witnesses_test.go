package app

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/prometheus/client_golang/prometheus"
)

const someWitnesses = `
witnesses:
  - {name: remora, url: 'https://remora.n621.de', key: remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2}
anchors:
  - {name: disk, file: kept/checkpoints}
  - {name: wall, url: 'https://wall.acme.example/brevet', allow_private_cidrs: [10.1.0.0/16], every: 10s}
  - {name: git, git: kept/tree}
`

// TestConfiguredWitnessesAreOpened checks that the configured witnesses and anchors are opened as configured.
func TestConfiguredWitnessesAreOpened(t *testing.T) {
	path := write(t, goodConfig+someWitnesses)
	cfg, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if a := cfg.Anchors[0]; a.File != filepath.Join(filepath.Dir(path), "kept/checkpoints") || a.Every != time.Minute {
		t.Errorf("got %+v, want an absolute path, and a copy each minute", a)
	}
	if a := cfg.Anchors[1]; a.Every != 10*time.Second || len(a.AllowPrivateCIDRs) != 1 {
		t.Errorf("got %+v, want what is configured", a)
	}
	gauges, err := httpapi.NewGauges(prometheus.NewRegistry(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Process: Process{Log: slog.New(slog.DiscardHandler)}, cfg: cfg, book: new(ledger.Ledger), gauges: gauges}
	if _, err := s.openCarrier(); err != nil {
		t.Errorf("got %v, want all to be sound", err)
	}
	for name, tc := range map[string]struct{ from, to, want string }{
		"no key":         {"key: remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2", "key: ''", "witnesses.remora.key: is required"},
		"no URL":         {"url: 'https://remora.n621.de'", "url: ''", "witnesses.remora.url: is required"},
		"two places":     {"git: kept/tree", "git: kept/tree, file: x", "anchors.git: set exactly one of file, url, git; 2 are set"},
		"no name":        {"name: disk", "name: ''", "anchors.name: is required"},
		"no network":     {"10.1.0.0/16", "10.1", "anchors.wall.allow_private_cidrs"},
		"an unknown key": {"every: 10s", "often: 10s", "often"},
	} {
		changed := strings.Replace(someWitnesses, tc.from, tc.to, 1)
		if _, err := Load(write(t, goodConfig+changed)); changed == someWitnesses || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
