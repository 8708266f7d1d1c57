package upgrade_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// aPartition is in whatever is said of a partition: those come with the entries.
var aPartition = regexp.MustCompile(`\bentries_\d+`)

// shape is all that a schema is made of, a line for each thing, but for partitions.
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

// differ tells what one schema has that the other one does not.
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

// applied is how many migrations a schema has had.
func (w *world) applied(t *testing.T) (n int) {
	t.Helper()
	conn := testkit.Connect(t, w.owner(t))
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM goose_db_version WHERE version_id > 0`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
