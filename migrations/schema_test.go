package migrations_test

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write schema.sql again")

const schemaFile = "schema.sql"

// schema.sql is what the migrations build. It is for readers and reviewers: nothing executes it.
func TestSchemaFileIsCurrent(t *testing.T) {
	got := dumpSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	was, is := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	if was[0] != is[0] { // another major release prints expressions in another way, and the same names
		was, is = named.FindAllString(string(want), -1), named.FindAllString(got, -1)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("%s is stale: run go test ./migrations -run TestSchemaFileIsCurrent -update (-file +schema):\n%s", schemaFile, diff)
	}
}

var (
	// named matches what a dump creates, up to the name.
	named = regexp.MustCompile(`(?m)^(CREATE (UNIQUE )?[A-Z]+|    (ADD )?CONSTRAINT|GRANT \w+ ON \w+) [\w.]+`)
	// incidental matches what differs between servers and says nothing of the schema: settings, versions, owners and headings.
	incidental = regexp.MustCompile(`(?m)^(SET .*;|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*|--.*)\n`)
	blankLines = regexp.MustCompile(`\n{3,}`)
)

// dumpSchema returns the migrated schema as pg_dump writes it, without what is incidental.
func dumpSchema(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(testkit.NewDB(t).AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	u.User, u.RawQuery = url.User(u.User.Username()), "sslmode=disable"
	cmd := exec.CommandContext(t.Context(), testkit.Devstack(t).Postgres.Program("pg_dump"), "--schema-only", "--no-owner", "--dbname", u.String())
	cmd.Env = append(cmd.Environ(), "PGPASSWORD="+password)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, cmd.Stderr)
	}
	release := regexp.MustCompile(`Dumped from database version (\d+)`).FindSubmatch(out)
	if release == nil {
		t.Fatal("got a dump that does not name its server's version")
	}
	head := fmt.Sprintf(`-- The complete schema, as pg_dump %s prints it. Generated from the migrations by "make generate": do not edit.
-- The migrations say why each part is there.

`, release[1])
	body := blankLines.ReplaceAllString(incidental.ReplaceAllString(string(out), ""), "\n\n")
	return head + strings.TrimSpace(body) + "\n"
}
