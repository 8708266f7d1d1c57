package httpapi_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// bootstrapped returns options with a bootstrap admin who is in no mapped group.
func bootstrapped() testkit.Options {
	o := staffed
	o.Applied, o.BootstrapAdmin = true, "first"
	o.People = append(slices.Clone(staffed.People), devstack.DevPerson{Username: "first", Name: "First", Groups: []string{"staff"}})
	return o
}

// wantBootstrap checks that the bootstrap admin is an admin, or is told why not.
func wantBootstrap(t *testing.T, s *testkit.Stack, on bool) {
	t.Helper()
	first := s.Person(t, "first")
	me, err := first.WhoAmI(t.Context())
	if err != nil || (len(me.Roles) == 1) != on {
		t.Errorf("got %+v, %v, want an admin: %t", me, err, on)
	}
	if on && (me.Roles[0].Role != openapi.RoleAdmin || len(me.Roles[0].Within) != 2 || time.Until(me.Roles[0].BootstrapUntil) > time.Hour || !me.Roles[0].BootstrapUntil.After(time.Now())) {
		t.Errorf("got %+v, want an admin everywhere, for an hour at most", me.Roles)
	}
	_, quarantineErr := first.Quarantine(t.Context(), lab, "test")
	_, catalogueErr := first.Catalogue(t.Context())
	for _, err := range []error{quarantineErr, catalogueErr, first.Unquarantine(t.Context(), lab, "test")} {
		if on && err != nil {
			t.Errorf("got %v, want it done", err)
		}
		var refused *client.Problem
		if !on && (!errors.As(err, &refused) || !errors.Is(err, client.ErrNotAllowed) ||
			!strings.Contains(refused.Explanation, "disabled since 20") || !strings.Contains(refused.Explanation, "people.roles")) {
			t.Errorf("got %v, want it refused, since when and what to do", err)
		}
	}
	// The bootstrap admin has only the admin role.
	_, err = first.Page(t.Context(), client.Filter{})
	wantRefusal(t, "reading the record", err, client.ErrNotAllowed)
	if waiting, err := first.Approvals(t.Context(), 10); err != nil || len(waiting.Approvals) != 0 {
		t.Errorf("got %+v, %v, want nothing to decide", waiting, err)
	}
	_, err = s.Person(t, "nina").Quarantine(t.Context(), lab, "test")
	wantRefusal(t, "quarantine by somebody else", err, client.ErrNotAllowed)
}

// The first call of another admin ends bootstrap, on all replicas and those started later.
func TestBootstrapAdminEndsWithTheFirstOtherAdmin(t *testing.T) {
	t.Parallel()
	for another, call := range map[string]func(*client.Client) error{
		"root": func(c *client.Client) error { _, err := c.Catalogue(t.Context()); return err },
		"lena": func(c *client.Client) error { _, err := c.Quarantines(t.Context()); return err },
		admin: func(c *client.Client) error {
			_, err := c.EndTask(t.Context(), "t", client.TaskEnd{SPIFFEID: chemist})
			return err
		},
		labAdmin: func(c *client.Client) error { _, err := c.Quarantine(t.Context(), chemist, "test"); return err },
	} {
		t.Run(another, func(t *testing.T) {
			s := testkit.NewStack(t, bootstrapped())
			other := s.Replica(t)
			for _, who := range []string{another, "eyes", auditor, "anna"} {
				if _, err := someone(t, s, who).WhoAmI(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Client(t, auditor).Page(t.Context(), client.Filter{}); err != nil {
				t.Error(err)
			}
			wantBootstrap(t, s, true)
			wantBootstrap(t, other, true)
			if got := strings.Count(s.Log.String(), "bootstrap admin used"); got != 6 {
				t.Errorf("got %d uses in the log, want 6", got)
			}
			if err := call(someone(t, s, another)); err != nil {
				t.Fatalf("the call of %s: %v", another, err)
			}
			wantBootstrap(t, other, false)
			wantBootstrap(t, s, false)
			wantBootstrap(t, s.Replica(t), false)
			s.DB.Check(t)
		})
	}
}

// lateBody calls first when the server begins to read it.
type lateBody struct {
	io.Reader
	first func()
}

func (b *lateBody) Read(p []byte) (int, error) {
	b.first()
	b.first = func() {}
	return b.Reader.Read(p)
}

// A bootstrap admin whose role ends during the call is refused once the body has arrived.
func TestBootstrapAdminIsCheckedAgainAfterTheBody(t *testing.T) {
	t.Parallel()
	none := "sha256:" + strings.Repeat("0", 64)
	for call, body := range map[string]string{
		"POST /v1/quarantines":                 `{"spiffe_id":"` + lab + `","reason":"late"}`,
		"POST /v1/revocations":                 `{"spiffe_id":"` + lab + `","reason":"late"}`,
		"PUT /v1/catalogue":                    `{"files":[{"name":"a.yaml","text":"scopes: []"}],"reason":"late"}`,
		"POST /v1/catalogue/proposals/" + none: `{"verdict":"approve","reason":"late"}`,
	} {
		t.Run(call, func(t *testing.T) {
			s := testkit.NewStack(t, bootstrapped())
			method, path, _ := strings.Cut(call, " ")
			req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, &lateBody{strings.NewReader(body), func() {
				if _, err := s.Person(t, "root").Catalogue(t.Context()); err != nil {
					t.Error(err)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(len(body))
			req.Header = http.Header{
				"Authorization": {"Bearer " + s.IDToken(t, "first")}, "Content-Type": {"application/json"},
				"Expect": {"100-continue"}, "If-Match": {`"` + none + `"`},
			}
			h := s.HTTP(t, nil)
			h.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour // the client sends the body only when the server asks for it
			resp, err := h.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusForbidden || !strings.Contains(string(text), "has been disabled since") {
				t.Errorf("got %d %s, %v, want it refused, since when", resp.StatusCode, text, err)
			}
		})
	}
}

// If the database cannot confirm the bootstrap admin, there is none.
func TestBootstrapAdminFailsClosed(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bootstrapped())
	wantBootstrap(t, s, true)
	owner := testkit.Connect(t, s.DB.AdminURL)
	if _, err := owner.Exec(t.Context(), `ALTER TABLE deployment RENAME created_at TO lost`); err != nil {
		t.Fatal(err)
	}
	first := s.Person(t, "first")
	_, err := first.Catalogue(t.Context())
	wantRefusal(t, "without a database that tells", err, client.ErrNotAllowed)
	if me, err := first.WhoAmI(t.Context()); err != nil || len(me.Roles) != 0 {
		t.Errorf("got %+v, %v, want no role", me, err)
	}
	if _, err := s.Person(t, "root").Catalogue(t.Context()); err != nil {
		t.Errorf("another admin: got %v", err)
	}
	// The next call by an admin ends what could not be ended before.
	if _, err := owner.Exec(t.Context(), `ALTER TABLE deployment RENAME lost TO created_at`); err != nil {
		t.Fatal(err)
	}
	wantBootstrap(t, s, true)
	if _, err := s.Person(t, "root").Catalogue(t.Context()); err != nil {
		t.Errorf("another admin: got %v", err)
	}
	wantBootstrap(t, s, false)
}

func TestBootstrapAdminForAnHour(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, bootstrapped())
	if _, err := testkit.Connect(t, s.DB.AdminURL).Exec(t.Context(), `
		ALTER TABLE deployment DISABLE TRIGGER USER;
		UPDATE deployment SET created_at = clock_timestamp() - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	wantBootstrap(t, s, false)
	wantBootstrap(t, s.Replica(t), false)
}
