package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command that connects to the database refuses a connection that nothing protects. 0.0.0.0 is not a loopback address, and
// nothing listens there at port 1.
func TestCommandsRefuseAnUnprotectedNetwork(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	from := "--database-url-file=" + write("url", "postgres://u:hunter2@0.0.0.0:1/brevet?sslmode=prefer")
	protected := "--database-url-file=" + write("protected", "postgres://u:hunter2@127.0.0.1:1/brevet?sslmode=prefer")
	broken := "--database-url-file=" + write("broken", "postgres://u:hunter2@[/")
	password := write("password", "hunter2")
	for name, tc := range map[string]struct {
		args []string
		code int
	}{
		"migrate up":     {[]string{"migrate", "up"}, 1},
		"migrate down":   {[]string{"migrate", "down", "--yes"}, 1},
		"migrate status": {[]string{"migrate", "status"}, 1},
		"bootstrap": {[]string{
			"bootstrap", "--broker-password-file", password, "--vault-address=http://127.0.0.1:1", "--vault-token-file", password, "--vault-approle-dir", dir,
		}, 1},
		"ledger prune":   {[]string{"ledger", "prune", "--before=2026-01-01"}, 1},
		"audit verify":   {[]string{"audit", "verify"}, 2},
		"audit snapshot": {[]string{"audit", "snapshot", filepath.Join(dir, "record.ndjson.gz")}, 1},
		"catalog replay": {[]string{"catalog", "replay", replayed(t)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			refused := inProcess(t, append(tc.args, from)...)
			refused.want(t, tc.code, "--database-url-file: ", `"0.0.0.0"`, "without TLS", "Set sslmode=verify-full", "--insecure-network")
			accepted := inProcess(t, append(tc.args, from, "--insecure-network")...)
			accepted.want(t, tc.code, "WARNING: nothing protects the connection to 0.0.0.0", "connect")
			needless := inProcess(t, append(tc.args, protected, "--insecure-network")...)
			needless.want(t, tc.code, "connect")
			malformed := inProcess(t, append(tc.args, broken, "--insecure-network")...)
			malformed.want(t, tc.code, "the database URL is not valid")
			if strings.Contains(needless.err, "WARNING: nothing protects") {
				t.Errorf("a protected connection: got %s, want no warning", needless.err)
			}
			for _, got := range []result{refused, accepted, needless, malformed} {
				if strings.Contains(got.err+got.out, "hunter2") {
					t.Errorf("the output shows the password: %s%s", got.out, got.err)
				}
			}
		})
	}
}
