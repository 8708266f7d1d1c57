package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// TargetDatabase is the database that Vault creates logins for: see [Stack.PrepareEngines].
const TargetDatabase = "target"

const (
	targetAdmin = "vault_admin"
	// reader has read access to the data that logins are for. Each login is a member of it, so one REVOKE removes all access.
	reader = "reporting_reader"
)

// TargetURL is like TCPURL, for the database that Vault creates logins for: see [Stack.PrepareEngines].
func (p *Postgres) TargetURL() string {
	return p.targetURL(url.UserPassword(superuser, p.password).String())
}

func (p *Postgres) targetURL(user string) string {
	return "postgres://" + user + "@" + p.Addr() + "/" + TargetDatabase + "?sslmode=disable"
}

// PrepareEngines configures Vault to issue credentials, with one engine of each kind that Brevet supports:
//
//   - database, with the role reporting: logins that may read the table orders of a separate database in this
//     stack's PostgreSQL
//   - pki, with the role web: certificates for EC keys and names below acme.example and acme.test
//   - ssh, with the role deploy: user certificates for the principals deploy and ops
//   - secret, version 2: one stored secret at agents/researcher
//
// It may be called again, and keeps what already exists.
func (s *Stack) PrepareEngines(ctx context.Context) error {
	password := rand.Text()
	if err := s.Postgres.prepareTarget(ctx, password); err != nil {
		return fmt.Errorf("preparing the database that Vault makes logins for: %w", err)
	}
	api := s.Vault.current()
	api.token = s.Vault.keys.RootToken
	for _, step := range []struct {
		doing string
		do    func(context.Context, vaultRun) error
	}{
		{"mounting Vault's engines", mountEngines},
		{"preparing the database engine", func(ctx context.Context, api vaultRun) error {
			return prepareDatabase(ctx, api, s.Postgres.targetURL("{{username}}:{{password}}"), password)
		}},
		{"preparing the PKI engine", preparePKI},
		{"preparing the SSH engine", prepareSSH},
		{"storing a secret", prepareKV},
	} {
		if err := step.do(ctx, api); err != nil {
			return fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	return nil
}

// prepareTarget creates a database whose tables belong to the login that Vault uses. That login may create roles and end
// their sessions, and is not a superuser.
func (p *Postgres) prepareTarget(ctx context.Context, password string) error {
	admin, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close(context.WithoutCancel(ctx)) }()
	var database, role bool
	if err := admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1),
		EXISTS (SELECT FROM pg_roles WHERE rolname = $2)`, TargetDatabase, targetAdmin).Scan(&database, &role); err != nil {
		return err
	}
	var statements []string
	if !database {
		statements = append(statements, "CREATE DATABASE "+TargetDatabase)
	}
	if !role {
		statements = append(statements, "CREATE ROLE "+targetAdmin, "GRANT pg_signal_backend TO "+targetAdmin)
	}
	statements = append(statements,
		// The password holds only letters and digits, so it needs no escaping.
		"ALTER ROLE "+targetAdmin+" LOGIN CREATEROLE PASSWORD '"+password+"'",
		// A login can hold locks that delay dropping another login. The timeouts keep Vault from waiting as long.
		"ALTER ROLE "+targetAdmin+" SET lock_timeout = '2s'",
		"ALTER ROLE "+targetAdmin+" SET statement_timeout = '4s'",
	)
	for _, statement := range statements {
		if _, err := admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return p.fillTarget(ctx)
}

func (p *Postgres) fillTarget(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.TargetURL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL);
		ALTER TABLE orders OWNER TO `+targetAdmin+`;
		DO $$ BEGIN
			IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '`+reader+`') THEN CREATE ROLE `+reader+`; END IF;
		END $$;
		GRANT SELECT ON orders TO `+reader+`;
		GRANT `+reader+` TO `+targetAdmin+` WITH ADMIN OPTION;
		INSERT INTO orders VALUES (1, 'Ada', 1990), (2, 'Grace', 4250), (3, 'Edsger', 300) ON CONFLICT DO NOTHING;`)
	return err
}

func mountEngines(ctx context.Context, api vaultRun) error {
	var mounted struct {
		Data map[string]struct{ Type string }
	}
	if err := api.call(ctx, "GET", "sys/mounts", nil, &mounted); err != nil {
		return err
	}
	for _, engine := range []struct {
		path string
		body map[string]any
	}{
		{"database", map[string]any{"type": "database"}},
		{"pki", map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "87600h"}}},
		{"ssh", map[string]any{"type": "ssh"}},
		{"secret", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}}},
	} {
		if _, there := mounted.Data[engine.path+"/"]; there {
			continue
		}
		if err := api.call(ctx, "POST", "sys/mounts/"+engine.path, engine.body, nil); err != nil {
			return err
		}
	}
	return nil
}

// prepareDatabase makes Vault put the display name of the requesting token and the time into the name of each login. A login
// expires after half a minute unless it is renewed: if Vault is killed between creating a login and storing its lease, nothing
// else ends the login. Two seconds less let a login that is granted for half a minute end in time, and need no renewal.
func prepareDatabase(ctx context.Context, api vaultRun, address, password string) error {
	if err := api.call(ctx, "POST", "database/config/target", map[string]any{ //nolint:gosec // what is in here is made up afresh
		"plugin_name": "postgresql-database-plugin", "allowed_roles": []string{"reporting"},
		"connection_url": address, "username": targetAdmin, "password": password,
		"password_authentication": "scram-sha-256", "max_open_connections": 8,
		"username_template": `{{ printf "v-%s-%s-%s" .DisplayName (random 6) (unix_time) | truncate 63 }}`,
	}, nil); err != nil {
		return err
	}
	return api.call(ctx, "POST", "database/roles/reporting", map[string]any{
		"db_name": "target", "default_ttl": "28s", "max_ttl": "24h",
		"creation_statements":   []string{makeLogin},
		"revocation_statements": []string{closeLogin, "COMMIT AND CHAIN", endSessions, "COMMIT AND CHAIN", dropLogin},
	}, nil)
}

// preparePKI creates a CA whose key never leaves Vault. Names come from the request alone, since the caller writes the
// signing request. Each certificate has a lease, so that it can be revoked.
func preparePKI(ctx context.Context, api vaultRun) error {
	if api.call(ctx, "GET", "pki/issuer/default", nil, nil) != nil {
		if err := api.call(ctx, "POST", "pki/root/generate/internal", map[string]any{
			"common_name": "Brevet development authority", "ttl": "87600h", "key_type": "ec", "key_bits": 256,
		}, nil); err != nil {
			return err
		}
	}
	return api.call(ctx, "POST", "pki/roles/web", map[string]any{
		"allowed_domains": []string{"acme.example", "acme.test"}, "allow_subdomains": true, "allow_bare_domains": false,
		"allow_wildcard_certificates": false, "allow_localhost": false, "allow_ip_sans": false,
		"use_csr_sans": false, "use_csr_common_name": false, "generate_lease": true, "no_store": false,
		"key_type": "ec", "key_bits": 256, "max_ttl": "24h",
	}, nil)
}

func prepareSSH(ctx context.Context, api vaultRun) error {
	if api.call(ctx, "GET", "ssh/config/ca", nil, nil) != nil {
		if err := api.call(ctx, "POST", "ssh/config/ca", map[string]any{
			"generate_signing_key": true, "key_type": "ed25519",
		}, nil); err != nil {
			return err
		}
	}
	return api.call(ctx, "POST", "ssh/roles/deploy", map[string]any{
		"key_type": "ca", "allow_user_certificates": true, "allowed_users": "deploy,ops",
		"default_extensions": map[string]string{"permit-pty": ""}, "ttl": "5m", "max_ttl": "24h",
	}, nil)
}

// prepareKV retries: for a moment after the mount, the engine is still upgrading and refuses writes.
func prepareKV(ctx context.Context, api vaultRun) error {
	const path = "secret/data/agents/researcher"
	if api.call(ctx, "GET", path, nil, nil) == nil {
		return nil
	}
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := api.call(ctx, "POST", path, map[string]any{"data": map[string]string{"search_api_key": "example-0001"}}, nil)
		if err == nil || !strings.Contains(err.Error(), "pgrading") {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return errors.Join(errors.New("the engine did not get ready"), err)
		case <-tick.C:
		}
	}
}
