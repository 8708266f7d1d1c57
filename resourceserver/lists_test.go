package resourceserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/resourceserver"
)

const listPath = "/v1/status-lists/5f0b1f1e-52cc-4b56-8a3c-5f0b1f1e52cc"

// list returns the payload of a status list with a ttl of 20 seconds that expires after a minute.
func (w *world) list(uri string, ended ...int) []byte {
	w.t.Helper()
	list := token.NewStatusList(64, ended)
	list.TTL, list.Expires = 20*time.Second, w.clock().Add(time.Minute)
	payload, err := list.Payload(uri, w.clock())
	if err != nil {
		w.t.Fatal(err)
	}
	return payload
}

func (w *world) publishes(list string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists = map[string]string{listPath: list}
}

// listed returns a token whose issuer publishes the lists.
func (w *world) listed(status *token.Status) string {
	return w.token("one", func(c *token.Claims) { c.Issuer, c.Status = w.jwks.URL, status })
}

func (w *world) at(index int64) *token.Status {
	return &token.Status{List: &token.Listed{Index: index, URI: w.jwks.URL + listPath}}
}

func looksUp(w *world) func(*resourceserver.Config) {
	return func(c *resourceserver.Config) { c.Issuer, c.StatusLists = w.jwks.URL, true }
}

// An end is seen once the Guard fetches a list that contains it. A list is used until it expires, and no longer.
func TestStatusListsAreKeptForTheirTime(t *testing.T) {
	w := newWorld(t)
	g, uri := w.guard(looksUp(w)), w.jwks.URL+listPath
	sixth, seventh := w.listed(w.at(6)), w.listed(w.at(7))
	wants := func(step, raw string, status int, fetched int64) {
		t.Helper()
		if got := bearer(raw).at(t, g); got.status != status {
			t.Errorf("%s: got %d %s, want %d", step, got.status, got.body, status)
		}
		if n := w.fetched.Load(); n != fetched {
			t.Errorf("%s: fetched %d times, want %d", step, n, fetched)
		}
	}
	w.publishes(w.sign("one", token.StatusListType, w.list(uri)))
	wants("keys and list", seventh, 200, 2)
	w.publishes(w.sign("one", token.StatusListType, w.list(uri, 7)))
	w.later(19 * time.Second)
	wants("kept", seventh, 200, 2)
	w.later(time.Second)
	wants("ended", seventh, 401, 3)
	wants("beside it", sixth, 200, 3)
	w.outage(true)
	w.later(20 * time.Second)
	wants("an outage", sixth, 200, 4)
	w.later(19 * time.Second)
	wants("still", sixth, 200, 5)
	w.later(time.Second)
	wants("for too long", sixth, 503, 6) // the keys are fetched too
	w.later(10 * time.Second)
	w.outage(false)
	wants("over, and the list as old", sixth, 503, 8)
	w.publishes(w.sign("one", token.StatusListType, w.list(uri, 7)))
	w.later(10 * time.Second)
	wants("over", sixth, 200, 9)
	wants("ended for good", seventh, 401, 9)
}

// No token passes with a wrong list, or with one that can't be fetched.
func TestTokenNeedsItsOwnStatusList(t *testing.T) {
	w := newWorld(t)
	uri := w.jwks.URL + listPath
	good := w.sign("one", token.StatusListType, w.list(uri))
	elsewhere := w.at(1)
	elsewhere.List.URI = "https://evil.test" + listPath
	plain := w.at(1)
	plain.List.URI = strings.Replace(uri, "https:", "http:", 1)
	for name, tc := range map[string]struct {
		list   string
		status *token.Status
		want   int
	}{
		"the list":          {good, w.at(1), 200},
		"no list":           {good, nil, 401},
		"no list in status": {good, &token.Status{}, 401},
		"a list elsewhere":  {good, elsewhere, 401},
		"over http":         {good, plain, 401},
		"beyond its end":    {good, w.at(64), 401},
		"before its begin":  {good, w.at(-1), 401},
		"of another URI":    {w.sign("one", token.StatusListType, w.list(uri+"0")), w.at(1), 503},
		"an access token":   {w.sign("one", token.Type, w.list(uri)), w.at(1), 503},
		"changed":           {good[:len(good)-4] + "AAAA", w.at(1), 503},
		"with other bits":   {changed(good, w.sign("one", token.StatusListType, w.list(uri, 2))), w.at(1), 503},
		"nothing":           {"", w.at(1), 503},
		"too much":          {good + strings.Repeat("A", 1<<20), w.at(1), 503},
	} {
		t.Run(name, func(t *testing.T) {
			w.publishes(tc.list)
			if got := bearer(w.listed(tc.status)).at(t, w.guard(looksUp(w))); got.status != tc.want {
				t.Errorf("got %d %s, want %d", got.status, got.body, tc.want)
			}
		})
	}
	w.publishes("")
	if got := bearer(w.listed(w.at(1))).at(t, w.guard(func(c *resourceserver.Config) { c.Issuer = w.jwks.URL })); got.status != 200 {
		t.Errorf("got %d where nobody looks, want 200", got.status)
	}
}

// changed returns one token with the payload of another.
func changed(raw, other string) string {
	parts, others := strings.Split(raw, "."), strings.Split(other, ".")
	return parts[0] + "." + others[1] + "." + parts[2]
}
