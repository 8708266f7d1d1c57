package brevettest

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/jackc/pgx/v5"
)

// catalogues are what entries say about catalogues: each step by its id, and the one in force.
type catalogues struct {
	changes projection
	digest  string
	version float64
}

// change takes a step, or says why it cannot be.
func (c *catalogues) change(t testing.TB, b *entryBody, index int64) {
	t.Helper()
	actor, _ := b.Actor.(map[string]any)
	if b.Number != c.version+1 || b.Base != c.digest {
		t.Errorf("entry %d (%s) does not follow on the catalogue in force", index, b.Kind)
	}
	if b.Proposal != "" {
		asked := c.changes[b.Proposal]
		if asked == nil || asked["kind"] != "proposed" || asked["digest"] != b.Digest || asked["version"] != b.Number || asked["actor"] != b.Proposer {
			t.Errorf("entry %d (%s) decides on what was not proposed", index, b.Kind)
		}
		for id, other := range c.changes {
			if other["proposal"] == b.Proposal {
				t.Errorf("entry %d (%s) decides on what %s has decided", index, b.Kind, id)
			}
		}
	}
	if b.Kind == "catalogue.applied" && b.Proposal != "" && actor["id"] == b.Proposer {
		t.Errorf("entry %d applies what its own actor has proposed", index)
	}
	c.changes[b.ID] = map[string]any{
		"kind": strings.TrimPrefix(b.Kind, "catalogue."), "digest": b.Digest, "base": orNull(b.Base), "version": b.Number,
		"proposal": orNull(b.Proposal), "proposer": orNull(b.Proposer), "actor": actor["id"], "reason": b.Reason,
		"time": epoch(&b.Time), "entry_index": float64(index),
	}
	if b.Kind == "catalogue.applied" {
		c.digest, c.version = b.Digest, b.Number
	}
}

// compare holds the tables to the entries, and the files of each catalogue to its digest.
func (c *catalogues) compare(t testing.TB, conn pgx.Tx) {
	t.Helper()
	compare(t, conn, c.changes, `
		SELECT id::text, to_jsonb(c) - '{id,time}'::text[] || jsonb_build_object('time', extract(epoch FROM time)::text)
		FROM catalogue_changes AS c ORDER BY entry_index`)
	var version float64
	var digest string
	if err := conn.QueryRow(t.Context(), `SELECT version, coalesce(digest, '') FROM catalogue_head`).Scan(&version, &digest); err != nil {
		t.Fatal(err)
	}
	if version != c.version || digest != c.digest {
		t.Errorf("version %v (%s) is in force, and by the entries %v (%s)", version, digest, c.version, c.digest)
	}
	rows, err := conn.Query(t.Context(), `SELECT digest, names, contents FROM catalogues`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	var contents [][]byte
	_, err = pgx.ForEachRow(rows, []any{&digest, &names, &contents}, func() error {
		var files []scopes.File
		for i, name := range names {
			files = append(files, scopes.File{Name: name, Data: contents[i]})
		}
		if catalogue, err := scopes.Load(files); err != nil || catalogue.Digest() != digest {
			t.Errorf("the files of catalogue %s are not its own: %v", digest, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
