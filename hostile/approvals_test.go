package hostile_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// writing is an ask that one person of oncall has to agree to.
func writing(task string) client.Ask {
	return client.Ask{Scope: "git.issues.write", Params: map[string]any{"repo": "acme/api"}, Task: task, Reason: "because"}
}

// waiting asks for something that people have to agree to, and returns the request.
func waiting(t *testing.T, c *client.Client, ask client.Ask) string {
	t.Helper()
	got, err := c.Request(t.Context(), ask)
	if err != nil || got.Pending == nil {
		t.Fatalf("asking for %s: got %+v, %v, want it pending", ask.Scope, got, err)
	}
	return got.Pending.ID
}

// vote looks at a request and says yes or no to what it shows.
func vote(t *testing.T, c *client.Client, id string, verdict openapi.Verdict) (openapi.ApprovalCase, error) {
	t.Helper()
	shown, err := c.Approval(t.Context(), id)
	if err != nil {
		return shown, err
	}
	return c.Vote(t.Context(), shown, verdict, "")
}

func wants(t *testing.T, what string, err error, want openapi.ProblemCode) {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != want {
		t.Errorf("%s: got %v, want %s", what, err, want)
	}
}

// changedFiles is a catalogue with one text in the place of another.
func changedFiles(t *testing.T, files []scopes.File, from, to string) []scopes.File {
	t.Helper()
	out, found := slices.Clone(files), false
	for i, f := range out {
		text := strings.ReplaceAll(string(f.Data), from, to)
		found = found || text != string(f.Data)
		out[i].Data = []byte(text)
	}
	if !found {
		t.Fatalf("%q is not in the catalogue", from)
	}
	return out
}
