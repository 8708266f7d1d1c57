-- +goose Up

-- When the group that a request waits for does not answer, two people of another may approve it in place of the group.
-- Which group that is people are shown, and it never is the one that was asked. What is issued on their word lives for half
-- an hour at most, and says by its code on whose word it was.
ALTER TABLE issuances
    ADD COLUMN break_glass text,
    DROP CONSTRAINT issuances_approval,
    ADD CONSTRAINT issuances_approval CHECK (
        num_nulls(approval_group, approval_quorum) = CASE decision WHEN 'pending' THEN 0 ELSE 2 END
        AND CASE WHEN break_glass IS NULL THEN true
            ELSE coalesce(break_glass = canonical::jsonb ->> 'break_glass' AND break_glass NOT IN ('', approval_group), false) END),
    DROP CONSTRAINT issuances_votes,
    ADD CONSTRAINT issuances_votes CHECK (CASE decision
        WHEN 'pending' THEN votes >= 0 AND redemptions BETWEEN 0 AND 2 AND approves IS NULL
            AND (status = 'redeemed') = (redemptions > 0) AND (redemptions > 0) = (redeemed_by IS NOT NULL)
            AND (status NOT IN ('approved', 'redeemed') OR canonical IS NOT NULL
                AND votes >= least(approval_quorum, CASE WHEN break_glass IS NOT NULL THEN 2 END))
        ELSE num_nonnulls(canonical, redeemed_by, remembered) = 0 AND votes = 0 AND redemptions = 0
            AND (approves IS NOT NULL) = (decision = 'allow' AND decision_code IN ('approved', 'break_glass'))
            AND (decision_code <> 'break_glass' OR ttl <= 1800 AND expires_at - time <= interval '30 minutes') END);
CREATE INDEX issuances_waiting_break_glass ON issuances (break_glass, expires_at)
    WHERE status = 'pending' AND break_glass IS NOT NULL;
-- They are few, and looked for among many.
CREATE INDEX issuances_broken ON issuances (entry_index DESC) WHERE decision_code = 'break_glass';

-- To break the glass is a verdict of its own, for one request and with a note. A person says yes once, in one way.
ALTER TABLE votes
    DROP CONSTRAINT votes_verdict_check,
    ADD CONSTRAINT votes_verdict_check CHECK (verdict IN ('approve', 'deny', 'break_glass')),
    ADD CONSTRAINT votes_break_glass CHECK (verdict <> 'break_glass' OR covers = 'request' AND note ~ '\S');
CREATE UNIQUE INDEX votes_one_yes ON votes (request, voter) WHERE verdict <> 'deny';

-- approved_by tells what holds a request up now, as the code of what is issued on it: as many people of its group as it
-- needs, else two who have broken the glass and are still in the group that may. The two are not added up.
-- +goose StatementBegin
CREATE FUNCTION approved_by(asked uuid) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN i.approval_quorum <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'approve' AND i.approval_group = ANY (p.groups)) THEN 'approved'
        WHEN 2 <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'break_glass' AND i.break_glass = ANY (p.groups)) THEN 'break_glass'
        END
    FROM issuances AS i WHERE i.id = asked
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION approved_by FROM PUBLIC;

-- enough tells whether anything holds a request up.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION enough(asked uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT approved_by(asked) IS NOT NULL
$$;
-- +goose StatementEnd

-- redeemable tells, as before, whether a sandbox may have what was approved now, and besides whether that is on the word of
-- those whom the code names.
DROP FUNCTION redeemable;
-- +goose StatementBegin
CREATE FUNCTION redeemable(asked uuid, subject text, code text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce(approved_by(asked) = code, false) AND EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked
            AND NOT EXISTS (SELECT FROM votes AS v WHERE v.request IN (i.id, i.remembered) AND v.verdict = 'deny')
            AND i.spiffe_id = subject
            AND i.expires_at + interval '1 minute' > clock_timestamp()
            AND (i.status = 'approved' OR i.status = 'redeemed' AND i.redemptions < 2 AND EXISTS (
                SELECT FROM issuances AS p
                WHERE p.id = i.redeemed_by AND (p.status IN ('failed', 'compensated')
                    OR p.leased AND p.status = 'revoked' AND p.status_detail = 'undelivered'))));
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION redeemable FROM PUBLIC;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.task, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.task, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND NEW.ttl <= i.ttl AND NEW.decision_code = approved_by(i.id)) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

ALTER TABLE webhook_notices
    DROP CONSTRAINT webhook_notices_kind_check,
    ADD CONSTRAINT webhook_notices_kind_check
        CHECK (kind IN ('approval.waiting', 'approval.decided', 'approval.break_glass', 'credential.unrevoked'));

GRANT EXECUTE ON FUNCTION approved_by, redeemable TO brevet_broker;

-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['approved_by', 'enough', 'redeemable', 'approval_is_used'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
-- This fails once somebody has broken the glass: what they said is for good.
ALTER TABLE webhook_notices
    DROP CONSTRAINT webhook_notices_kind_check,
    ADD CONSTRAINT webhook_notices_kind_check CHECK (kind IN ('approval.waiting', 'approval.decided', 'credential.unrevoked'));
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION approval_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = NEW.approves AND i.redeemed_by = NEW.id AND i.status = 'redeemed'
            AND (i.spiffe_id, i.scope, i.task, i.params, i.resource, i.catalogue, i.request_digest)
                = (NEW.spiffe_id, NEW.scope, NEW.task, NEW.params, NEW.resource, NEW.catalogue, NEW.request_digest)
            AND NEW.ttl <= i.ttl) THEN
        RAISE EXCEPTION 'issuance % is not what people have approved', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP FUNCTION redeemable;
-- +goose StatementBegin
CREATE FUNCTION redeemable(asked uuid, subject text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN enough(asked) AND EXISTS (
        SELECT FROM issuances AS i
        WHERE i.id = asked
            AND NOT EXISTS (SELECT FROM votes AS v WHERE v.request IN (i.id, i.remembered) AND v.verdict = 'deny')
            AND i.spiffe_id = subject
            AND i.expires_at + interval '1 minute' > clock_timestamp()
            AND (i.status = 'approved' OR i.status = 'redeemed' AND i.redemptions < 2 AND EXISTS (
                SELECT FROM issuances AS p
                WHERE p.id = i.redeemed_by AND (p.status IN ('failed', 'compensated')
                    OR p.leased AND p.status = 'revoked' AND p.status_detail = 'undelivered'))));
END $$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION redeemable FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redeemable TO brevet_broker;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION enough(asked uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((
        SELECT i.approval_quorum <= (
            SELECT count(DISTINCT v.voter) FROM votes AS v JOIN people AS p ON p.id = v.voter
            WHERE v.request = i.id AND v.verdict = 'approve' AND i.approval_group = ANY (p.groups))
        FROM issuances AS i WHERE i.id = asked), false)
$$;
-- +goose StatementEnd
DROP FUNCTION approved_by;
-- +goose StatementBegin
DO $$
DECLARE
    ours text;
BEGIN
    FOREACH ours IN ARRAY ARRAY['enough', 'redeemable', 'approval_is_used'] LOOP
        EXECUTE format('ALTER FUNCTION %1$I.%2$I SET search_path = %1$I, pg_temp', current_schema(), ours);
    END LOOP;
END $$;
-- +goose StatementEnd
DROP INDEX votes_one_yes;
ALTER TABLE votes
    DROP CONSTRAINT votes_break_glass,
    DROP CONSTRAINT votes_verdict_check,
    ADD CONSTRAINT votes_verdict_check CHECK (verdict IN ('approve', 'deny'));
DROP INDEX issuances_broken;
DROP INDEX issuances_waiting_break_glass;
ALTER TABLE issuances
    DROP CONSTRAINT issuances_votes,
    ADD CONSTRAINT issuances_votes CHECK (CASE decision
        WHEN 'pending' THEN votes >= 0 AND redemptions BETWEEN 0 AND 2 AND approves IS NULL
            AND (status = 'redeemed') = (redemptions > 0) AND (redemptions > 0) = (redeemed_by IS NOT NULL)
            AND (status NOT IN ('approved', 'redeemed') OR canonical IS NOT NULL AND votes >= approval_quorum)
        ELSE num_nonnulls(canonical, redeemed_by, remembered) = 0 AND votes = 0 AND redemptions = 0
            AND (approves IS NOT NULL) = (decision = 'allow' AND decision_code = 'approved') END),
    DROP CONSTRAINT issuances_approval,
    ADD CONSTRAINT issuances_approval CHECK (num_nulls(approval_group, approval_quorum)
        = CASE decision WHEN 'pending' THEN 0 ELSE 2 END),
    DROP COLUMN break_glass;
