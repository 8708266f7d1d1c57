package main

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demoLimit is ten times the duration that the demo promises on an otherwise idle machine, after Vault is built.
const demoLimit = 200 * time.Second

func TestDemo(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	began := time.Now()
	got := brevet(t, []string{"TMPDIR=" + temp}, "demo")
	took := time.Since(began)
	t.Logf("the demo took %s", took.Round(100*time.Millisecond))
	got.want(t, 0)
	if took > demoLimit {
		t.Errorf("the demo took %s, want at most %s", took, demoLimit)
	}
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	last := lines[len(lines)-1]
	for _, want := range []string{
		"demo ok: ", "allowed", "clamped", "denied with the nearest permitted request", "approved by a person", "verified by JWKS alone",
		"database login revoked with its task", "quarantined", "forged SVIDs refused", "no token released without Vault or PostgreSQL", "history listed", "stack stopped",
	} {
		if !strings.Contains(last, want) {
			t.Errorf("%q is missing in the last line: %s", want, last)
		}
	}
	if strings.Contains(got.out, "\x1b") {
		t.Error("the demo writes escapes into what is no terminal")
	}
	if tokens := regexp.MustCompile(`eyJ[A-Za-z0-9_-]{20,}\.`).FindAllString(got.out+got.err, -1); len(tokens) > 0 {
		t.Errorf("the demo shows tokens: %q", tokens)
	}
	goneWithoutTrace(t, temp)
}

func TestDemoInJSON(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	got := brevet(t, []string{"TMPDIR=" + temp}, "demo", "--output", "json")
	got.want(t, 0)
	story := object(t, got.out)
	chapters, _ := story["chapters"].([]any)
	if story["ok"] != true || len(chapters) != 12 {
		t.Fatalf("got ok %v and %d chapters, want true and 12: %s", story["ok"], len(chapters), got.out)
	}
	for _, c := range chapters {
		chapter, _ := c.(map[string]any)
		if facts, _ := chapter["facts"].([]any); chapter["title"] == "" || len(facts) == 0 {
			t.Errorf("got %v, want a title and facts", chapter)
		}
	}
	goneWithoutTrace(t, temp)
}

// TestDemoInterrupted checks that an interrupted demo leaves no servers and no folders behind.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	p := launch(t, []string{"TMPDIR=" + temp}, "demo")
	p.waitFor(t, p.out, "2  It requests a longer")
	p.signal(t, syscall.SIGINT)
	got := p.finish(t)
	got.want(t, 1, "interrupted")
	if strings.Contains(got.out, "demo ok") {
		t.Error("an interrupted demo says that it went well")
	}
	goneWithoutTrace(t, temp)
}

// goneWithoutTrace fails if a program that used temp for its temporary files left a file or a process.
func goneWithoutTrace(t *testing.T, temp string) {
	t.Helper()
	if left := running(t, temp); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	entries, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Errorf("left behind: %s", entry.Name())
	}
}
