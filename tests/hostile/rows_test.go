package hostile_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// row is one kind of hostile input. It passes if all its tries pass.
type row struct {
	h string
	// sent is the input, and then is the expected outcome, in words for the documentation.
	sent, then string
	// apart marks a row that uses a separate deployment, in parallel with the others.
	apart bool
	tries []try
}

// try is one way of trying a row.
type try struct {
	name string
	do   func(t *testing.T, w *world)
}

// group is a part of the table, with the file that holds its rows.
type group struct {
	title, file string
	rows        []row
}

func groups() []group {
	return []group{
		{"JWT-SVIDs", "jwt_test.go", jwtRows},
		{"X.509-SVIDs and TLS", "x509_test.go", x509Rows},
		{"SPIFFE IDs", "ids_test.go", idRows},
		{"HTTP and JSON", "http_test.go", httpRows},
		{"Scopes and parameters", "scopes_test.go", scopeRows},
		{"Vault's answers", "vault_test.go", vaultRows},
		{"Words of sandboxes", "words_test.go", wordRows},
		{"Approvals", "approvals_test.go", approvalRows},
		{"Network, paging and rights", "reading_test.go", readingRows},
		{"Races", "races_test.go", raceRows},
	}
}

// TestHostile tries every row.
func TestHostile(t *testing.T) {
	w := newWorld(t, staffed)
	for _, g := range groups() {
		for _, r := range g.rows {
			t.Run(r.h+"_"+strings.ReplaceAll(r.sent, " ", "_"), func(t *testing.T) {
				t.Cleanup(func() { results.add(!t.Failed()) })
				r.run(t, w)
			})
		}
	}
	w.still(t)
	w.check(t)
	texts.check(t)
}

func (r row) run(t *testing.T, w *world) {
	t.Helper()
	if len(r.tries) == 0 {
		t.Fatal("nothing is tried")
	}
	if r.apart {
		t.Parallel()
		w = nil
	}
	for _, one := range r.tries {
		w.still(t)
		t.Run(one.name, func(t *testing.T) { one.do(t, w) })
	}
}

// The rows have the numbers of the list, each once and in order.
func TestRowsAreNumberedInOrder(t *testing.T) {
	var got, want []string
	for _, g := range groups() {
		for _, r := range g.rows {
			got = append(got, r.h)
		}
	}
	for n := range 107 {
		want = append(want, fmt.Sprintf("H%d", n+1))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got the rows %v", got)
	}
}

const (
	doc   = "../../docs/hostile-inputs.md"
	begin = "<!-- rows: go test ./tests/hostile -run TestDocumentation -update -->\n"
	end   = "<!-- end of rows -->\n"
)

// The documentation lists the rows that the test tries.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the rows", doc)
	}
	table := documented()
	if *update {
		if err := os.WriteFile(doc, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table {
		t.Error("the table is not that of the rows: run go test ./tests/hostile -run TestDocumentation -update")
	}
}

func documented() string {
	var b strings.Builder
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n### %s\n\n| | input | outcome | test |\n| --- | --- | --- | --- |\n", g.title)
		for _, r := range g.rows {
			fmt.Fprintf(&b, "| %s | %s | %s | [tests/hostile/%s](../tests/hostile/%s) |\n", r.h, r.sent, r.then, g.file, g.file)
		}
	}
	return b.String() + "\n"
}
