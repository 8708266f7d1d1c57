package brevettest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// chromiums are the names that Chromium goes by.
var chromiums = []string{"chromium", "chromium-browser", "google-chrome"}

// Browser starts a Chromium without a window that ends with the test, and fails where there is none: `make deps` installs it.
// Each context that chromedp makes of it is a tab.
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
		t.Fatal("there is no Chromium: run ./devstack/deps.sh test")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-search-engine-choice-screen", true), chromedp.WindowSize(1280, 900))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(stop)
	browser, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	if err := chromedp.Do(browser); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	return browser
}

// Axe is the script of axe-core, which checks a page for what keeps people from using it.
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
