package console_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func TestHealthPageSaysThatTheDiskIsFull(t *testing.T) {
	disk := testkit.NewSmallDisk(t)
	w := newWorldWith(t, func(o *testkit.Options) { o.DB = disk.DB })
	dave := w.program(t, "dave")
	page := func(want bool) {
		t.Helper()
		var text string
		for began := time.Now(); time.Since(began) < patience; time.Sleep(100 * time.Millisecond) {
			var status int
			status, text = w.ask(t, dave, "/system", nil)
			says := strings.Contains(text, "its disk is full") && strings.Contains(text, "Free space on the volume of PostgreSQL")
			if status == http.StatusOK && says == want {
				return
			}
		}
		t.Fatalf("the page about a full disk, which has to say so (%t):\n%s", want, text)
	}
	page(false)
	agent := w.agent(t, "triage-1")
	disk.Fill(t)
	var err error
	read := client.Ask{Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, TTL: time.Minute, Task: "triage-7"}
	for range 1000 {
		if _, err = agent.Request(t.Context(), read); err != nil {
			break
		}
	}
	if problem, ok := errors.AsType[*client.Problem](err); !ok || problem.Code != "ledger_full" {
		t.Fatalf("got %v, want ledger_full", err)
	}
	page(true)
	disk.Free(t)
	page(false)
}
