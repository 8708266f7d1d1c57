package console_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// A browser that does not respond fails the step at its deadline and does not hang the suite.
func TestBrowserStoppedFailsTheStep(t *testing.T) {
	b := new(world).tab(t)
	process := chromedp.FromContext(b.ctx).Browser.Process()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
	b.patience = time.Second
	if _, err := within(b, chromedp.Location()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not finish this within 1s") {
		t.Errorf("got %v, want the deadline of the step", err)
	}
	if seen := b.seen(); !strings.Contains(seen, "does not answer any more") {
		t.Errorf("got %q of a browser that does not answer", seen)
	}
}
