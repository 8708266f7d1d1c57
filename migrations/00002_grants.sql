-- +goose Up

-- Group roles belong to the whole cluster: another schema may have made them, even at this very moment, and an
-- administrator may have made them beforehand where this login may not.
-- +goose StatementBegin
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['brevet_broker', 'brevet_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), wanted);
    END LOOP;
END $$;
-- +goose StatementEnd

GRANT SELECT, INSERT ON entries TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (status, status_detail, status_time, idempotency_key) ON issuances TO brevet_broker;
GRANT SELECT, UPDATE (size) ON ledger_head TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (tat) ON rate_limits TO brevet_broker;
GRANT EXECUTE ON FUNCTION admit TO brevet_broker;
GRANT SELECT ON deployment, goose_db_version TO brevet_broker;

GRANT SELECT ON entries, issuances, ledger_head, goose_db_version TO brevet_auditor;

-- +goose Down
-- The roles stay: other schemas of the cluster may use them.
REVOKE ALL ON entries, issuances, ledger_head, deployment, goose_db_version FROM brevet_broker, brevet_auditor;
REVOKE ALL ON rate_limits FROM brevet_broker;
REVOKE ALL ON FUNCTION admit FROM brevet_broker;
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM brevet_broker, brevet_auditor', current_schema());
END $$;
-- +goose StatementEnd
