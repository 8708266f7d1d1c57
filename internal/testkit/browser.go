package testkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// chromiums are the program names of Chromium on different systems.
var chromiums = []string{"chromium", "chromium-browser", "google-chrome"}

// Browser starts a headless Chromium that ends with the test. It fails the test if Chromium is not installed: `make deps`
// installs it. Each context that chromedp derives from the returned one is a tab.
func Browser(t testing.TB) context.Context {
	t.Helper()
	var program string
	for _, name := range chromiums {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Fatal("there is no Chromium: run ./internal/devstack/deps.sh test")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-search-engine-choice-screen", true), chromedp.WindowSize(1280, 900))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(func() { soon(t, "the end of "+program, stop) })
	return Tab(t, allocator)
}

// Tab opens a tab in a browser, or starts a browser from an allocator. It closes with the test.
func Tab(t testing.TB, parent context.Context, options ...chromedp.ContextOption) context.Context {
	t.Helper()
	tab, end := chromedp.NewContext(parent, options...)
	t.Cleanup(func() { soon(t, "the end of a tab", end) })
	// A tab ends with the context of its first action, so that action must not have its own deadline.
	inTime(t, "a tab of the browser", func() error { return chromedp.Do(tab) })
	return tab
}

const (
	// browserPatience is how long Chromium may take to open a tab on a busy machine.
	browserPatience = 40 * time.Second
	// endPatience is how long a test waits for a tab or for Chromium to end.
	endPatience = 5 * time.Second
)

// inTime fails the test if do fails or does not return in time. It is for calls that take no context: a Chromium that died
// under load never answers.
func inTime(t testing.TB, what string, do func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	case <-time.After(browserPatience):
		t.Fatalf("waited %s for %s", browserPatience, what)
	}
}

// soon waits for end for a short time only: a test that failed because Chromium died must not wait for it once more. end
// goes on, and kills the process.
func soon(t testing.TB, what string, end func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endPatience):
		t.Logf("waited %s for %s", endPatience, what)
	}
}

// Axe returns the script of axe-core, which checks a page for accessibility.
func Axe(t testing.TB) string {
	t.Helper()
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing axe-core: %v", err)
	}
	script, err := os.ReadFile(filepath.Join(folder, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}
