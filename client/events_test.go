package client_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// streams returns a client of a server that answers /v1/approvals/events with the given streams in turn, and the Last-Event-ID
// of each request.
func streams(t *testing.T, all ...string) (*client.Client, *[]string) {
	t.Helper()
	asked := &[]string{}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := strings.CutPrefix(r.URL.Path, "/v1/approvals/"); ok && id != "events" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, caseOf(id, "rejected"))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = fmt.Fprint(w, all[len(*asked)])
		*asked = append(*asked, r.Header.Get("Last-Event-ID"))
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{BaseURL: srv.URL, HTTPClient: srv.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return c, asked
}

func caseOf(id, status string) string {
	canonical := `{"request":"` + id + `"}`
	hash := sha256.Sum256([]byte(canonical))
	text, err := json.Marshal(openapi.ApprovalCase{
		ID: id, Status: openapi.Status(status), Canonical: canonical, Hash: hex.EncodeToString(hash[:]),
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestEventsAreFollowed(t *testing.T) {
	c, asked := streams(t,
		": hello\n\nevent: waiting\nid: a\ndata: "+caseOf("a", "pending")+"\n\nevent:waiting\nid:b\ndata:"+caseOf("b", "pending")+
			"\n\nevent: novelty\ndata: ?\n\nevent: current\nid: b\ndata: {\"ids\":[\"a\",\"b\"]}\n\n: alive\n\n",
		": hello\n\nevent: waiting\nid: b\ndata: "+caseOf("b", "pending")+"\n\nevent: current\nid: b\ndata: {\"ids\":[\"b\",\"c\"]}\n\n"+
			strings.Repeat("event: current\nid: b\ndata: {\"ids\":[\"b\",\"c\"],\"more\":true}\n\n", 2)+
			"event: decided\nid: b\ndata: {\"id\":\"b\",\"status\":\"approved\"}\n\nevent: decided\nid: b\ndata: {\"id\":\"x\",\"status\":\"approved\"}\n\n"+
			"event: waiting\nid: d\ndata: unfinished")
	watch := c.WatchApprovals()
	var got []string
	on := func(e client.ApprovalEvent) error {
		switch {
		case e.Waiting != nil:
			got = append(got, "waiting "+e.Waiting.ID)
		case e.Decided != nil:
			got = append(got, string(e.Decided.Status)+" "+e.Decided.ID)
		case e.More:
			got = append(got, "more")
		}
		return nil
	}
	for range 2 {
		if err := watch.Follow(t.Context(), on); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"waiting a", "waiting b", "rejected a", "waiting c", "more", "approved b"}
	if !slices.Equal(got, want) || !slices.Equal(*asked, []string{"", "b"}) {
		t.Errorf("got %q, asked with %q, want %q", got, *asked, want)
	}
}

func TestInvalidEventsAreRefused(t *testing.T) {
	forged := strings.Replace(caseOf("a", "pending"), `\"request\":\"a\"`, `\"request\":\"b\"`, 1)
	for name, tc := range map[string]struct {
		stream string
		want   error
	}{
		"another hash":   {"event: waiting\ndata: " + forged + "\n\n", client.ErrAnswer},
		"no JSON":        {"event: waiting\ndata: <html>\n\n", client.ErrAnswer},
		"decided what":   {"event: decided\ndata: []\n\n", client.ErrAnswer},
		"current what":   {"event: current\ndata: 1\n\n", client.ErrAnswer},
		"many lines":     {strings.Repeat("data: "+strings.Repeat("x", 1<<16)+"\n", 40) + "\n", client.ErrCutOff},
		"a line of 2 MB": {"data: " + strings.Repeat("x", 2<<20) + "\n\n", client.ErrCutOff},
	} {
		c, _ := streams(t, tc.stream)
		err := c.WatchApprovals().Follow(t.Context(), func(client.ApprovalEvent) error { t.Errorf("%s: it is told", name); return nil })
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}
