-- +goose Up

-- When the deployment was made, which is when its bootstrap admin begins, and when that was found to be over. A database
-- is as old as its first migration, or its first entry where that is older, so that an upgrade opens nothing.
ALTER TABLE deployment ADD COLUMN created_at timestamptz, ADD COLUMN bootstrap_ended_at timestamptz;
UPDATE deployment SET created_at = least(clock_timestamp(), (SELECT min(tstamp) FROM goose_db_version), (SELECT time FROM entries WHERE index = 0));
ALTER TABLE deployment ALTER COLUMN created_at SET NOT NULL;

-- Once over, it is over for good. Time is the database's.
-- +goose StatementBegin
CREATE FUNCTION bootstrap_ends_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.created_at <> OLD.created_at OR OLD.bootstrap_ended_at IS NOT NULL
        OR NEW.bootstrap_ended_at NOT BETWEEN statement_timestamp() AND clock_timestamp() THEN
        RAISE EXCEPTION 'the bootstrap admin ends once, now, and does not begin again' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.bootstrap_ends_once SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
CREATE TRIGGER deployment_bootstrap_ends_once BEFORE UPDATE OF created_at, bootstrap_ended_at ON deployment
    FOR EACH ROW EXECUTE FUNCTION bootstrap_ends_once();
CREATE TRIGGER deployment_is_kept BEFORE INSERT OR DELETE OR TRUNCATE ON deployment
    FOR EACH STATEMENT EXECUTE FUNCTION forbid_change();
GRANT UPDATE (bootstrap_ended_at) ON deployment TO brevet_broker;

-- +goose Down
DROP TRIGGER deployment_is_kept ON deployment;
DROP TRIGGER deployment_bootstrap_ends_once ON deployment;
DROP FUNCTION bootstrap_ends_once;
ALTER TABLE deployment DROP COLUMN created_at, DROP COLUMN bootstrap_ended_at;
