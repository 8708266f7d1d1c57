package devstack

// The statements of the database role reporting. Vault runs those of a revocation in one transaction, while nobody
// else gets a login at that database, and takes an error for a login that still lives. A login is in the hands of
// whoever asked for it, and may be held against its own end and that of others: so each step that matters is committed
// before the next, and none waits for long.

// makeLogin gives a login nothing but a membership. A GRANT on the table itself would wait for any login that has an
// open transaction with another GRANT on it, even one that has no right to grant.
const makeLogin = `CREATE ROLE "{{name}}" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}' IN ROLE ` + reader

// closeLogin lets nobody in any more. Sessions end first, and again at each try: in an open transaction, a login can
// hold its own row, by changing its own password. pg_stat_activity does not change within a transaction by itself.
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

// endSessions ends those that were let in before, and takes what the login was given.
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

// dropLogin tries to leave nothing. It may fail: what the login made in another database keeps it, and so does an open
// transaction in which another login has granted it something. Then a role stays that cannot log in and may do nothing.
// To drop what a login owns, Vault's own has to be a member of it.
const dropLogin = `DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{{name}}') THEN RETURN; END IF;
	PERFORM set_config('lock_timeout', '300ms', true);
	GRANT "{{name}}" TO ` + targetAdmin + `;
	DROP OWNED BY "{{name}}";
	DROP ROLE "{{name}}";
EXCEPTION WHEN OTHERS OR query_canceled THEN
	RAISE WARNING 'the role stays, without a login: %', SQLERRM;
END $$`
