package httpapi_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
)

// Sandboxes of two trust domains. The path of one looks as if it were below /research, but is not.
const (
	lab       = "spiffe://acme.test/research"
	chemist   = "spiffe://acme.test/research/a"
	pupil     = "spiffe://acme.test/research/a/b"
	neighbour = "spiffe://acme.test/researchers/a"
	stranger  = "spiffe://other.test/research/a"

	labAuditor = "spiffe://acme.test/desk/auditor"
	labAdmin   = "spiffe://acme.test/desk/admin"
)

var sandboxes = []string{chemist, pupil, neighbour, stranger}

// staffed has people and workloads with roles everywhere, in one trust domain, and below a path.
var staffed = testkit.Options{
	Catalogue: []scopes.File{catalogue[0], {Name: "policies.cedar", Data: []byte(
		`@id("all") permit (principal, action in Action::"authority:read", resource);`)}},
	Auditors: []string{auditor, labAuditor}, Admins: []string{admin, labAdmin},
	Within: map[string][]string{labAuditor: {lab}, labAdmin: {lab}},
	People: []devstack.DevPerson{
		{Username: "root", Name: "Root", Groups: []string{"root"}},
		{Username: "olga", Name: "Olga", Groups: []string{"acme"}},
		{Username: "lena", Name: "Lena", Groups: []string{"lab"}},
		{Username: "both", Name: "Both", Groups: []string{"lab", "other"}},
		{Username: "eyes", Name: "Eyes", Groups: []string{"eyes"}},
		{Username: "hand", Name: "Hand", Groups: []string{"hand"}},
		{Username: "anna", Name: "Anna", Groups: []string{"oncall"}},
		{Username: "nina", Name: "Nina", Groups: []string{"staff"}},
	},
	Rules: []people.Rule{
		{Role: people.RoleAdmin, Group: "root"},
		{Role: people.RoleAuditor, Group: "root"},
		{Role: people.RoleAdmin, Group: "acme", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleAuditor, Group: "acme", Within: []string{"spiffe://acme.test"}},
		{Role: people.RoleAdmin, Group: "lab", Within: []string{lab}},
		{Role: people.RoleAuditor, Group: "lab", Within: []string{lab}},
		{Role: people.RoleAdmin, Group: "other", Within: []string{"spiffe://other.test"}},
		{Role: people.RoleAuditor, Group: "other", Within: []string{"spiffe://other.test", neighbour}},
		{Role: people.RoleAuditor, Group: "eyes"},
		{Role: people.RoleAdmin, Group: "hand", Within: []string{lab, stranger}},
		{Role: people.RoleApprover, Group: "oncall", Within: []string{lab}},
	},
}

// someone returns the client of a caller: a workload by its SPIFFE ID, or a person by their name.
func someone(t *testing.T, s *testkit.Stack, who string) *client.Client {
	t.Helper()
	if strings.HasPrefix(who, "spiffe://") {
		return s.Client(t, who)
	}
	return s.Person(t, who)
}

// holds lists the sandboxes for which a caller is auditor and admin.
type holds struct{ sees, ends []string }

var officials = map[string]holds{
	"root":     {sandboxes, sandboxes},
	"olga":     {sandboxes[:3], sandboxes[:3]},
	"lena":     {sandboxes[:2], sandboxes[:2]},
	"both":     {sandboxes, []string{chemist, pupil, stranger}},
	"eyes":     {sandboxes, nil},
	"hand":     {nil, []string{chemist, pupil, stranger}},
	"anna":     {},
	"nina":     {},
	auditor:    {sandboxes[:3], nil},
	admin:      {nil, sandboxes[:3]},
	labAuditor: {sandboxes[:2], nil},
	labAdmin:   {nil, sandboxes[:2]},
}

// H92, H100 and T6: who sees and ends what. A record outside a caller's reach is not found.
func TestRecordOutsideReachIsNotFound(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	replicas := []*testkit.Stack{s, s.Replica(t)}
	for i, who := range slices.Sorted(maps.Keys(officials)) {
		t.Run(who, func(t *testing.T) {
			here, there := replicas[i%2], replicas[(i+1)%2]
			c, may := someone(t, here, who), officials[who]
			for j, sandbox := range sandboxes {
				first := token(t, there.Client(t, sandbox), task(fmt.Sprintf("t-%d-%d", i, j)))
				_, err := c.Issuance(t.Context(), first.ID)
				wantRefusal(t, "reading "+sandbox, err, refusal(who, sandbox, may.sees, client.ErrNotFound))
				r, err := c.Revoke(t.Context(), client.Selection{ID: first.ID}, "test")
				wantRefusal(t, "revoking of "+sandbox, err, refusal(who, sandbox, may.ends, client.ErrNotAllowed))
				if err == nil && len(r.Ended) != 1 {
					t.Errorf("revoking of %s: got %+v, want one end", sandbox, r)
				}
				// Ending one's own task needs no role, so a caller without a role gets "not found".
				_, err = c.EndTask(t.Context(), first.Task, client.TaskEnd{SPIFFEID: sandbox})
				wantRefusal(t, "ending a task of "+sandbox, err, taskRefusal(sandbox, may.ends))
				confine(t, c, who, sandbox, may.ends)
			}
			wantListed(t, c, who, may.sees)
		})
	}
	s.DB.Check(t)
}

// refusal returns the error for an action that requires a role over a sandbox. none is the error for a workload that has the role
// nowhere: for reading a record, that is "not found".
func refusal(who, sandbox string, within []string, none error) error {
	switch {
	case slices.Contains(within, sandbox):
		return nil
	case len(within) > 0:
		return client.ErrNotFound
	case strings.HasPrefix(who, "spiffe://"):
		return none
	default:
		return client.ErrNotAllowed
	}
}

func taskRefusal(sandbox string, within []string) error {
	if slices.Contains(within, sandbox) {
		return nil
	}
	return client.ErrNotFound
}

func wantRefusal(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// confine puts a sandbox into quarantine and lifts the quarantine.
func confine(t *testing.T, c *client.Client, who, sandbox string, within []string) {
	t.Helper()
	want := refusal(who, sandbox, within, client.ErrNotAllowed)
	_, err := c.Quarantine(t.Context(), sandbox, "test")
	wantRefusal(t, "quarantine of "+sandbox, err, want)
	if want == nil {
		all, err := c.Quarantines(t.Context())
		if err != nil || len(all) != 1 || all[0].SpiffeID != sandbox {
			t.Errorf("got the quarantines %+v, %v, want that of %s", all, err, sandbox)
		}
	}
	wantRefusal(t, "lifting that of "+sandbox, c.Unquarantine(t.Context(), sandbox, "test"), want)
}

// wantListed checks that a listing, page by page, shows exactly the sandboxes that the caller may see.
func wantListed(t *testing.T, c *client.Client, who string, sees []string) {
	t.Helper()
	got := map[string]bool{}
	for one, err := range c.Issuances(t.Context(), client.Filter{Limit: 3}) {
		if err != nil {
			wantRefusal(t, "listing", err, refusal(who, "", sees, nil))
			return
		}
		got[one.SpiffeID] = true
		if one.Index == nil {
			t.Error("an auditor is not shown the index")
		}
	}
	want := map[string]bool{}
	for _, sandbox := range sees {
		want[sandbox] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sees (-want +got):\n%s", diff)
	}
}

// T6: a quarantine of a whole trust domain needs the role in all of it. An admin of a path revokes only within the path, whatever
// else matches.
func TestPathAdminRevokesOnlyWithinThePath(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	for _, who := range []string{"lena", labAdmin, "hand"} {
		c := someone(t, s, who)
		for _, name := range []string{"spiffe://acme.test", "spiffe://other.test", "spiffe://acme.test/researchers", "spiffe://other.test/research"} {
			_, err := c.Quarantine(t.Context(), name, "test")
			wantRefusal(t, who+" confines "+name, err, client.ErrNotFound)
		}
		mine, theirs := token(t, s.Client(t, chemist), read), token(t, s.Client(t, neighbour), read)
		r, err := c.Revoke(t.Context(), client.Selection{TrustDomain: "acme.test"}, "test")
		if err != nil || len(r.Ended) != 1 || r.Ended[0].ID != mine.ID {
			t.Errorf("%s revokes in acme.test: got %+v, %v, want %s alone", who, r, err, mine.ID)
		}
		if state, err := s.Client(t, neighbour).State(t.Context(), theirs.ID); err != nil || state.Status != "issued" {
			t.Errorf("got %+v, %v, want it untouched", state, err)
		}
	}
	// A quarantine of the whole trust domain is not within a path: an admin of the path can neither see nor lift it.
	if _, err := s.Client(t, admin).Quarantine(t.Context(), "spiffe://acme.test", "test"); err != nil {
		t.Fatal(err)
	}
	lena := s.Person(t, "lena")
	if all, err := lena.Quarantines(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v, want nothing", all, err)
	}
	wantRefusal(t, "lifting it from a path", lena.Unquarantine(t.Context(), "spiffe://acme.test", ""), client.ErrNotFound)
	// Olga is not in quarantine, but the workloads of acme.test are, admins included.
	wantRefusal(t, "lifting it as a workload of it", s.Client(t, labAdmin).Unquarantine(t.Context(), lab, ""), client.ErrNotFound)
	if err := s.Person(t, "olga").Unquarantine(t.Context(), "spiffe://acme.test", "all well"); err != nil {
		t.Errorf("lifting it as a person: got %v", err)
	}
	s.DB.Check(t)
}

// The order of a person has their name in the record and in the entries.
func TestRecordsNameThePerson(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	other := s.Replica(t)
	lena, root := s.Person(t, "lena"), other.Person(t, "root")
	me, err := lena.WhoAmI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for cause, order := range map[string]func(*client.Token) (openapi.Receipt, error){
		"revoked": func(mine *client.Token) (openapi.Receipt, error) {
			return lena.Revoke(t.Context(), client.Selection{ID: mine.ID}, "test")
		},
		"task_ended": func(mine *client.Token) (openapi.Receipt, error) {
			return lena.EndTask(t.Context(), mine.Task, client.TaskEnd{SPIFFEID: chemist})
		},
		"quarantined": func(*client.Token) (openapi.Receipt, error) { return lena.Quarantine(t.Context(), lab, "test") },
	} {
		mine := token(t, other.Client(t, chemist), task("t-"+cause))
		r, err := order(mine)
		if err != nil || len(r.Ended) != 1 || r.Ended[0].ID != mine.ID || r.Ended[0].Cause != cause {
			t.Errorf("%s: got %+v, %v", cause, r, err)
		}
		one, err := root.Issuance(t.Context(), mine.ID)
		if err != nil || one.EndedBy != me.ID || one.StatusDetail != cause {
			t.Errorf("%s: got %+v, %v, want it ended by %s", cause, one, err, me.ID)
		}
		if cause == "quarantined" {
			if all, err := root.Quarantines(t.Context()); err != nil || len(all) != 1 || all[0].Actor != me.ID {
				t.Errorf("got %+v, %v, want a quarantine by %s", all, err, me.ID)
			}
		}
		_ = lena.Unquarantine(t.Context(), lab, "test")
	}
	commands := 0
	for _, e := range s.DB.Entries(t) {
		if who, ok := e.Body["actor"].(map[string]any); ok {
			commands++
			if diff := cmp.Diff(map[string]any{"id": me.ID, "name": "Lena"}, who); diff != "" {
				t.Errorf("%s is by (-want +got):\n%s", e.Kind, diff)
			}
		}
	}
	if commands != 4 {
		t.Errorf("got %d commands with an actor, want 4", commands)
	}
	s.DB.Check(t)
}

// H98: a cursor is valid only for the caller that received it, and only while its reach stays the same.
func TestCursorIsBoundToItsCallerAndReach(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, staffed)
	for _, sandbox := range sandboxes {
		token(t, s.Client(t, sandbox), read)
		token(t, s.Client(t, sandbox), read)
	}
	filter := client.Filter{Limit: 1}
	page, err := s.Person(t, "lena").Page(t.Context(), filter)
	if err != nil || page.Next == "" {
		t.Fatalf("got %+v, %v, want a first page", page, err)
	}
	filter.Cursor = page.Next
	if _, err := s.Replica(t).Person(t, "lena").Page(t.Context(), filter); err != nil {
		t.Errorf("on another replica: got %v", err)
	}
	for _, who := range []string{"both", "olga", "root", auditor, labAuditor, chemist} {
		if _, err := someone(t, s, who).Page(t.Context(), filter); code(err) != openapi.CodeInvalidCursor {
			t.Errorf("%s goes on with the cursor of lena: got %v, want it refused", who, err)
		}
	}
	// From now on, Lena is an auditor of all of acme.test.
	promoted := staffed
	promoted.Rules = append(slices.Clone(staffed.Rules), people.Rule{Role: people.RoleAuditor, Group: "lab", Within: []string{"spiffe://acme.test"}})
	if _, err := s.ReplicaWith(t, promoted).Person(t, "lena").Page(t.Context(), filter); code(err) != openapi.CodeInvalidCursor {
		t.Errorf("with a cursor from before she saw more: got %v, want it refused", err)
	}
}

func TestWhoAmI(t *testing.T) {
	t.Parallel()
	options := staffed
	options.ResourceServers = map[string][]string{gitServer: {"https://git.test", "https://elsewhere.test"}}
	s := testkit.NewStack(t, options)
	role := func(name openapi.RoleName, within ...string) openapi.CallerRole {
		return openapi.CallerRole{Role: name, Within: within}
	}
	everywhere := []string{"spiffe://acme.test", "spiffe://other.test"}
	for who, want := range map[string]openapi.Caller{
		"root": {Kind: "person", Name: "Root", Groups: []string{"root"}, Roles: []openapi.CallerRole{role("admin", everywhere...), role("auditor", everywhere...)}},
		"both": {Kind: "person", Name: "Both", Groups: []string{"lab", "other"}, Roles: []openapi.CallerRole{
			role("admin", lab, "spiffe://other.test"), role("auditor", lab, neighbour, "spiffe://other.test"),
		}},
		"anna":   {Kind: "person", Name: "Anna", Groups: []string{"oncall"}, Roles: []openapi.CallerRole{role("approver", lab)}},
		"nina":   {Kind: "person", Name: "Nina", Groups: []string{"staff"}, Roles: []openapi.CallerRole{}},
		labAdmin: {Kind: "workload", ID: labAdmin, Roles: []openapi.CallerRole{role("admin", lab)}},
		auditor:  {Kind: "workload", ID: auditor, Roles: []openapi.CallerRole{role("auditor", "spiffe://acme.test")}},
		chemist:  {Kind: "workload", ID: chemist, Roles: []openapi.CallerRole{}},
		gitServer: {Kind: "workload", ID: gitServer, Roles: []openapi.CallerRole{
			{Role: "resource_server", Within: []string{}, Audiences: []string{"https://elsewhere.test", "https://git.test"}},
		}},
	} {
		if want.ID == "" {
			want.ID = s.Issuer() + "#" + who
		}
		got, err := someone(t, s, who).WhoAmI(t.Context())
		if err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", who, diff)
		}
	}
	if got, err := s.JWTClient(t, labAdmin).WhoAmI(t.Context()); err != nil || got.ID != labAdmin || len(got.Roles) != 1 {
		t.Errorf("by a JWT-SVID: got %+v, %v", got, err)
	}
}
