package devstack

// These are the statements of the database role reporting. Vault runs the revocation statements in one transaction, and
// that database issues no other login during it. On an error, Vault assumes that the login still exists. The holder of a
// login controls it, and may use it to block its own revocation and that of other logins. So each step that matters is
// committed before the next, and no step waits for long.

// makeLogin gives a login only a membership. A GRANT on the table itself would wait for any login that has an open
// transaction with another GRANT on that table, even if that login has no right to grant.
const makeLogin = `CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}' IN ROLE ` + reader

// closeLogin prevents further logins. It ends the sessions first, and again at each try: in an open transaction, a login
// can lock its own row by changing its own password. Without clearing the snapshot, pg_stat_activity would stay the same
// within a transaction.
const closeLogin = `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{{name}}') THEN RETURN; END IF;
	PERFORM set_config('lock_timeout', '300ms', true);
	FOR try IN 1..8 LOOP
		PERFORM pg_stat_clear_snapshot();
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{{name}}';
		BEGIN
			ALTER ROLE "{{name}}" NOLOGIN;
			RETURN;
		EXCEPTION WHEN OTHERS THEN
			IF try = 8 THEN RAISE; END IF;
		END;
	END LOOP;
END $$`

// endSessions revokes the login's membership and ends the sessions that began before closeLogin.
const endSessions = `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{{name}}') THEN RETURN; END IF;
	REVOKE ` + reader + ` FROM "{{name}}";
	FOR try IN 1..100 LOOP
		PERFORM pg_stat_clear_snapshot();
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{{name}}';
		IF NOT FOUND THEN RETURN; END IF;
		PERFORM pg_sleep(0.02);
	END LOOP;
	RAISE EXCEPTION 'a session goes on';
END $$`

// dropLogin tries to remove the role. It may fail if the login owns something in another database, or if another login
// has granted it something in an open transaction. Then a role stays that cannot log in and has no rights. To drop what
// a login owns, Vault's role has to be a member of it.
const dropLogin = `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{{name}}') THEN RETURN; END IF;
	PERFORM set_config('lock_timeout', '300ms', true);
	GRANT "{{name}}" TO ` + targetAdmin + `;
	DROP OWNED BY "{{name}}";
	DROP ROLE "{{name}}";
EXCEPTION WHEN OTHERS OR query_canceled THEN
	RAISE WARNING 'the role stays, without a login: %', SQLERRM;
END $$`
