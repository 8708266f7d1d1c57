package upgrade_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// aPartition matches every line about a partition: partitions come with the entries.
var aPartition = regexp.MustCompile(`\bentries_\d+`)

// shape describes a schema without its partitions, one line for each object.
func shape(t *testing.T, ownerURL string) []string {
	t.Helper()
	conn := testkit.Connect(t, ownerURL)
	defer func() { _ = conn.Close(t.Context()) }()
	lines := slices.DeleteFunc(testkit.Schema(t, conn), aPartition.MatchString)
	if len(lines) < 100 {
		t.Fatalf("got %d lines of the schema: it is not being read", len(lines))
	}
	return lines
}

// differ reports the lines that only one of two schemas has.
func differ(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s has\n%s", what, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s lacks\n%s", what, line)
		}
	}
}

// applied returns how many migrations were applied to the schema.
func (w *world) applied(t *testing.T) (n int) {
	t.Helper()
	conn := testkit.Connect(t, w.owner(t))
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM goose_db_version WHERE version_id > 0`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
