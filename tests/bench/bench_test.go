package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRun measures for moments only. It checks that the targets answer from real servers, that each figure is present, and
// that the last lines have the form that programs read.
func TestRun(t *testing.T) {
	binary, figures := built(t), filepath.Join(t.TempDir(), "figures.json")
	var out bytes.Buffer
	o := options{binary: binary, json: figures, rounds: 1, connections: 4, lasts: 300 * time.Millisecond, between: 300 * time.Millisecond}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`\ncpu( (issue|login|dynamic-long|dynamic|creds|issue-eddsa)=\d+\([a-z0-9:,]*\)){6}\nratio issue/login=\d+\.\d\d issue/sign=\d+\.\d\d dynamic/creds=\d+\.\d\d issue-eddsa/login=\d+\.\d\d\n$`).Match(out.Bytes()) {
		t.Errorf("got %s, want the processor time and the ratios in the last lines", &out)
	}
	text, err := os.ReadFile(figures)
	if err != nil {
		t.Fatal(err)
	}
	var saved struct {
		AtFirst map[string][]figuresRead `json:"at_first"`
		Between map[string]int
		Rounds  map[string][]figuresRead
		Memory  int64 `json:"memory_bytes"`
	}
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	took := map[string]int64{}
	for _, name := range slices.Concat(tokens, []string{alone, half}, logins) {
		got := saved.Rounds[name]
		if len(got) != 1 || got[0].Rate <= 0 || got[0].P50 <= 0 {
			t.Errorf("%s: got %+v, want one round of it, with all figures", name, got)
			continue
		}
		// Processor time has a resolution of 10 ms: a process that did little in so short a round may show none.
		for _, process := range []string{"generator", "broker", "vault", "postgres"} {
			took[process] += got[0].Processor[process]
		}
	}
	for _, name := range tokens {
		if got := saved.AtFirst[name]; len(got) != 1 || got[0].Rate <= 0 {
			t.Errorf("%s, at first: got %+v, want one round of it", name, got)
		}
	}
	if saved.Between["issue"] <= 0 || saved.Between["login"] <= 0 {
		t.Errorf("got %v between, want some of each", saved.Between)
	}
	if saved.Memory == 0 || len(took) != 4 || slices.Min(slices.Collect(maps.Values(took))) == 0 {
		t.Errorf("got memory %d and processor time %v: each of them works", saved.Memory, took)
	}
}

func built(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "brevet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/brevet").CombinedOutput(); err != nil {
		t.Fatalf("building the broker: %v\n%s", err, out)
	}
	return binary
}

// TestGrow measures small sizes for moments. It checks that every series is drawn and that the overload figures are present.
func TestGrow(t *testing.T) {
	var out bytes.Buffer
	folder := t.TempDir()
	o := options{
		binary: built(t), json: filepath.Join(folder, "figures.json"), plots: folder, rounds: 1, connections: 30, lasts: 300 * time.Millisecond,
		grown: grown{scopes: []int64{10, 300}, rows: []int64{100, 5000}, idle: []int64{0, 50}, replicas: []int64{1, 2}, overload: 3 * time.Second},
	}
	if err := grow(t.Context(), o, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	text, err := os.ReadFile(o.json)
	if err != nil {
		t.Fatal(err)
	}
	var g growth
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Series) != 5 || g.Idle <= 0 {
		t.Errorf("got %+v, want scopes, issuances, connections and replicas, those twice", g)
	}
	for _, s := range g.Series {
		for _, p := range s.Points {
			if p.P50 <= 0 || p.Busy <= 0 || p.Rate <= 0 {
				t.Errorf("%s: got %+v, want all figures", s.Name, p)
			}
		}
		picture, err := os.ReadFile(filepath.Join(folder, "growth-"+strings.ReplaceAll(s.Name, " ", "-")+".svg"))
		if err != nil || xml.Unmarshal(picture, new(struct{})) != nil {
			t.Errorf("%s: got %v, want a picture: %s", s.Name, err, picture)
		}
	}
	if v := g.Overload; v.Goodput <= 0 || v.RevokedP99 <= 0 || v.IntrospectP99 <= 0 {
		t.Errorf("got %+v, want revocations and introspections under load", v)
	}
}

type figuresRead struct {
	Rate      float64          `json:"rate"`
	P50       int64            `json:"p50_us"`
	Processor map[string]int64 `json:"processor_us"`
}

// TestOpenLoadCountsTheWait checks that a request's time begins when it should have been sent. At twice the rate that the
// single caller can reach, the last requests wait for half of the time.
func TestOpenLoadCountsTheWait(t *testing.T) {
	d := &deployment{}
	slow := func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil }
	l := d.open(t.Context(), []call{slow}, 200, 400*time.Millisecond)
	if got := l.at(0.99); got < 200*time.Millisecond {
		t.Errorf("got %s at p99, want the wait for the caller in it", got)
	}
}

// TestOneLedgerLimitsItsReplicas checks that the simulation never commits more than one core of a primary can, whatever the replicas, and
// that another primary adds as much again.
func TestOneLedgerLimitsItsReplicas(t *testing.T) {
	c := costs{broker: 200 * time.Microsecond, vault: 100 * time.Microsecond, commit: time.Millisecond, entry: 100 * time.Microsecond}
	rate := func(replicas, ledgers int) float64 {
		return simulate(c, simulated{replicas: replicas, callers: 128, cores: 2, ledgers: ledgers}).rate
	}
	one, eight, two := rate(1, 1), rate(8, 1), rate(8, 2)
	if one > 1e6/100 || eight > 1e6/100 || eight < one*0.95 || two < eight*1.9 || two > eight*2.1 {
		t.Errorf("got %.0f/s, %.0f/s and %.0f/s", one, eight, two)
	}
}
