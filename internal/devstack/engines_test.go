package devstack_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// The engines that PrepareEngines sets up work, also after a second call.
func TestPreparedEngines(t *testing.T) {
	stack := shared(t)
	for range 2 {
		if err := stack.PrepareEngines(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	login := read(t, stack.Vault, "database/creds/reporting")
	cfg, err := pgx.ParseConfig(stack.Postgres.TargetURL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password = login["username"].(string), login["password"].(string)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var orders int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&orders); err != nil || orders != 3 {
		t.Errorf("got %d orders, %v; want 3", orders, err)
	}
	if _, err := conn.Exec(t.Context(), `DELETE FROM orders`); err == nil {
		t.Error("the login may delete orders")
	}
	// Revoking the login ends its sessions too.
	write(t, stack.Vault, "sys/leases/revoke-prefix/database/creds/reporting", map[string]any{"sync": true})
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&orders); err == nil {
		t.Error("the session goes on after the login was revoked")
	}
	_ = conn.Close(t.Context())
	if again, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		_ = again.Close(t.Context())
		t.Error("the login works after it was revoked")
	}

	issued := write(t, stack.Vault, "pki/issue/web", map[string]any{"common_name": "shop.acme.test", "ttl": "1m"})
	if issued["certificate"] == nil || issued["private_key"] == nil {
		t.Errorf("got %v, want a certificate", issued)
	}
	if ca := read(t, stack.Vault, "ssh/config/ca"); ca["public_key"] == "" {
		t.Error("the SSH engine has no authority")
	}
	if stored := read(t, stack.Vault, "secret/data/agents/researcher"); stored["data"] == nil {
		t.Errorf("got %v, want a stored secret", stored)
	}
}
