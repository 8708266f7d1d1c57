-- +goose Up

-- How far each webhook has been told of the ledger, and which replica tells it.
CREATE TABLE webhooks (
    name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    next       bigint NOT NULL CHECK (next >= 0),
    holder     uuid,
    held_until timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE TRIGGER webhooks_only_forward BEFORE UPDATE ON webhooks FOR EACH ROW
    WHEN (NEW.next < OLD.next OR NEW.name <> OLD.name) EXECUTE FUNCTION forbid_change();

-- What is left to tell: by which entry it was caused, and when to try. A row goes when the receiver has taken it. All
-- that is told is read from the entry and its record.
CREATE TABLE webhook_notices (
    webhook     text COLLATE "C" NOT NULL REFERENCES webhooks (name),
    entry_index bigint NOT NULL REFERENCES entries (index),
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('approval.waiting', 'approval.decided', 'credential.unrevoked')),
    due         timestamptz NOT NULL,
    attempts    integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    PRIMARY KEY (webhook, entry_index, kind)
);
CREATE INDEX webhook_notices_due ON webhook_notices (webhook, due);

GRANT SELECT, INSERT, UPDATE (next, holder, held_until) ON webhooks TO brevet_broker;
GRANT SELECT, INSERT, UPDATE (due, attempts), DELETE ON webhook_notices TO brevet_broker;
GRANT SELECT ON webhooks, webhook_notices TO brevet_auditor;

-- +goose Down
DROP TABLE webhook_notices;
DROP TABLE webhooks;
