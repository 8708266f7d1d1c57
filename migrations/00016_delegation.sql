-- +goose Up

-- What a sandbox hands down to a sub-agent is an issuance of its own, to the sub-agent, that names the one it comes from.
ALTER TABLE issuances
    ADD COLUMN parent uuid REFERENCES issuances (id),
    ADD CONSTRAINT issuances_parent CHECK (CASE WHEN parent IS NULL THEN true
        WHEN decision = 'allow' THEN credential_kind = 'jwt' AND approves IS NULL AND parent <> id
        ELSE decision = 'deny' END);
-- What was handed down and has time left.
CREATE INDEX issuances_handed_down ON issuances (expires_at) WHERE parent IS NOT NULL AND status = 'issued';

-- It opens no more than what it comes from, for no longer, and is not handed down without end. Whether what it comes from is
-- in force is looked at whenever somebody asks about it.
-- +goose StatementBegin
CREATE FUNCTION only_narrower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
            SELECT FROM issuances AS p
            WHERE p.id = NEW.parent AND p.credential_kind = 'jwt' AND NOT p.one_shot AND p.jkt IS NULL
                AND (p.task, p.scope, p.resource, p.params, p.audience)
                    = (NEW.task, NEW.scope, NEW.resource, NEW.params, NEW.audience)
                AND NEW.expires_at <= p.expires_at AND NEW.spiffe_id <> p.spiffe_id)
        OR 3 < (
            WITH RECURSIVE above AS (
                SELECT p.parent, 1 AS height FROM issuances AS p WHERE p.id = NEW.parent
                UNION ALL
                SELECT p.parent, a.height + 1 FROM above AS a JOIN issuances AS p ON p.id = a.parent WHERE a.height < 4
            ) SELECT max(height) FROM above)
    THEN
        RAISE EXCEPTION 'issuance % is more than what it comes from', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER issuances_only_narrower AFTER INSERT ON issuances FOR EACH ROW
    WHEN (NEW.parent IS NOT NULL AND NEW.decision = 'allow') EXECUTE FUNCTION only_narrower();
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.only_narrower SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER issuances_only_narrower ON issuances;
DROP FUNCTION only_narrower;
DROP INDEX issuances_handed_down;
ALTER TABLE issuances
    DROP CONSTRAINT issuances_parent,
    DROP COLUMN parent;
