-- +goose Up

-- Which replicas answer for tokens by what they remember, and how far each has read the entries: it knows all before seen. A
-- replica counts its beats, and takes its row to be good for some moments after each. Whoever has ended something waits until
-- each of them has read that, or has not beaten for longer.
CREATE TABLE replicas (
    id   uuid PRIMARY KEY,
    seen bigint NOT NULL CHECK (seen >= 0),
    beat bigint NOT NULL
);

-- A replica that went back, or was ahead of what there is, would have others not wait for it.
-- +goose StatementBegin
CREATE FUNCTION replica_reads_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.seen > (SELECT size FROM ledger_head)
        OR TG_OP = 'UPDATE' AND (NEW.id <> OLD.id OR NEW.seen < OLD.seen OR NEW.beat <= OLD.beat) THEN
        RAISE EXCEPTION 'replica % cannot have read up to %', NEW.id, NEW.seen USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.replica_reads_on SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
CREATE TRIGGER replicas_read_on AFTER INSERT OR UPDATE ON replicas FOR EACH ROW EXECUTE FUNCTION replica_reads_on();
GRANT SELECT, INSERT, UPDATE (seen, beat), DELETE ON replicas TO brevet_broker;

-- +goose Down
DROP TABLE replicas;
DROP FUNCTION replica_reads_on;
