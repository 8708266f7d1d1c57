-- +goose Up

-- The limits of scopes, as the generic cell rate algorithm keeps them: when the next request would arrive if all that
-- were counted had kept their distance. A time in the past counts as no row.
CREATE TABLE rate_limits (
    key text COLLATE "C" PRIMARY KEY CHECK (key <> ''),
    tat timestamptz NOT NULL
);

-- admit makes the caller the only appender until it commits, as lock_head does, and judges the items of a batch one
-- after the other: by item, whether its idempotency key is used already, or else the key of the limit it is over and
-- the microseconds until it would pass. An item that is neither counts at once against each of its limits, which are
-- given in the order of the items: the item, the key, the microseconds between two requests, and the burst. Time is
-- the database's, read under the lock, so that replicas whose clocks differ count alike.
-- +goose StatementBegin
CREATE FUNCTION admit(
    subjects text[], keys text[], limit_items bigint[], limit_keys text[], emissions bigint[], bursts bigint[],
    OUT repeated boolean[], OUT reached text[], OUT waits bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prior    bigint[]; -- the item before with the same idempotency key
    moment   timestamptz;
    first    bigint;
    beyond   bigint := 1;
    tightest text;
    excess   interval;
BEGIN
    PERFORM FROM ledger_head FOR UPDATE;
    SELECT array_agg(asked.used ORDER BY asked.n), array_agg(asked.prior ORDER BY asked.n) INTO repeated, prior
    FROM (
        SELECT t.n,
            t.key IS NOT NULL AND EXISTS (
                SELECT FROM issuances AS i WHERE i.spiffe_id = t.subject AND i.idempotency_key = t.key) AS used,
            CASE WHEN t.key IS NOT NULL THEN lag(t.n) OVER (PARTITION BY t.subject, t.key ORDER BY t.n) END AS prior
        FROM unnest(subjects, keys) WITH ORDINALITY AS t (subject, key, n)
    ) AS asked;
    moment := clock_timestamp();
    FOR item IN 1 .. cardinality(keys) LOOP
        first := beyond;
        WHILE limit_items[beyond] = item LOOP
            beyond := beyond + 1;
        END LOOP;
        -- A key belongs to the first request that was not over a limit.
        IF prior[item] IS NOT NULL AND reached[prior[item]] IS NULL THEN
            repeated[item] := true;
        END IF;
        CONTINUE WHEN repeated[item] OR first = beyond;
        SELECT l.key, greatest(r.tat - moment, interval '0') + (1 - l.burst) * l.emission * interval '1 microsecond'
        INTO tightest, excess
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1], bursts[first:beyond - 1])
            AS l (key, emission, burst)
            LEFT JOIN rate_limits AS r ON r.key = l.key
        ORDER BY 2 DESC LIMIT 1;
        IF excess > interval '0' THEN
            reached[item] := tightest;
            waits[item] := ceil(extract(epoch FROM excess) * 1000000);
            CONTINUE;
        END IF;
        INSERT INTO rate_limits AS r (key, tat)
        SELECT l.key, moment + l.emission * interval '1 microsecond'
        FROM unnest(limit_keys[first:beyond - 1], emissions[first:beyond - 1]) AS l (key, emission)
        ON CONFLICT (key) DO UPDATE SET tat = greatest(r.tat, moment) + (excluded.tat - moment);
    END LOOP;
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION admit FROM PUBLIC;

GRANT SELECT, INSERT, UPDATE (tat) ON rate_limits TO brevet_broker;
GRANT EXECUTE ON FUNCTION admit TO brevet_broker;

-- +goose Down
DROP FUNCTION admit;
DROP TABLE rate_limits;
