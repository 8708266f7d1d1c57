package console_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

func TestBrowserLogin(t *testing.T) {
	w := newWorld(t)
	b := w.tab(t)
	b.login("alice")
	if got := b.text("main"); !strings.Contains(got, "Alice Archer") || !strings.Contains(got, "oncall") {
		t.Errorf("got %q, want who Alice is", got)
	}
	b.open("/")
	b.open("/you")
	b.open("/nowhere")
	b.run(chromedp.Click(`form[action="/logout"] button`), chromedp.WaitVisible(`//h1[.="Logged out"]`))
	b.check("/signed-out")
}
