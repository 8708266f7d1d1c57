-- +goose Up

-- PostgreSQL reads every CHECK anew for each statement, a function once for each session. Those of an issuance took a fifth of the
-- commit of one: now a function says the same.
LOCK TABLE issuances IN ACCESS EXCLUSIVE MODE;

-- broken_rule is the name of a rule that an issuance breaks, NULL when it keeps them all.
-- +goose StatementBegin
CREATE FUNCTION broken_rule(i issuances) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN '' COLLATE "C" IN (i.trust_domain, i.task, i.scope, i.catalogue, i.decision_code, i.approval_group, i.audience, i.key_id,
            i.idempotency_key, i.status_detail, i.vault_path, i.vault_accessor, i.vault_lease, i.credential_name, i.actor)
        THEN 'issuances_texts'
    WHEN 32 <> octet_length(i.request_digest) OR 32 <> octet_length(i.claims_digest) OR 32 <> octet_length(i.secret_digest)
        THEN 'issuances_digests'
    WHEN NOT starts_with(i.spiffe_id, 'spiffe://' || i.trust_domain || '/') THEN 'issuances_trust_domain'
    WHEN i.svid_kind NOT IN ('x509-svid', 'jwt-svid') THEN 'issuances_svid_kind'
    WHEN (i.thumbprint <> '') <> (i.svid_kind = 'x509-svid') THEN 'issuances_thumbprint'
    WHEN jsonb_typeof(i.params) <> 'object' THEN 'issuances_params'
    WHEN i.ttl_asked < 0 OR i.ttl < CASE i.decision WHEN 'deny' THEN 0 ELSE 1 END THEN 'issuances_ttl'
    WHEN NOT CASE i.decision WHEN 'deny' THEN i.expires_at IS NULL ELSE coalesce(i.expires_at > i.time, false) END
        THEN 'issuances_expiry'
    WHEN i.credential_kind NOT IN ('jwt', 'vault-token', 'database', 'pki', 'ssh', 'kv', 'vault') THEN 'issuances_credential_kind'
    -- What a decision leads to.
    WHEN NOT CASE i.decision
        WHEN 'deny' THEN i.status = 'denied' AND NOT i.one_shot
        WHEN 'pending' THEN i.status IN ('pending', 'approved', 'rejected', 'withdrawn', 'redeemed') AND NOT i.one_shot
        WHEN 'allow' THEN (i.status IN ('intent', 'issued', 'failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released',
                'expired') OR i.status = 'used' AND i.one_shot)
            AND (NOT i.one_shot OR i.credential_kind = 'jwt')
        ELSE false END
        THEN 'issuances_state'
    WHEN (i.status_detail IS NOT NULL)
            <> (i.status IN ('failed', 'unknown', 'compensated', 'revoking', 'revoked', 'released'))
        THEN 'issuances_detail'
    WHEN i.status IN ('failed', 'unknown', 'compensated') AND i.idempotency_key IS NOT NULL THEN 'issuances_key_freed'
    -- What is made, and what Vault has said of it.
    WHEN NOT CASE
        WHEN i.decision <> 'allow' THEN num_nonnulls(i.credential_kind, i.audience, i.key_id, i.claims_digest, i.vault_path) = 0
            AND NOT i.leased AND NOT i.static
        WHEN i.credential_kind = 'jwt' THEN num_nulls(i.audience, i.key_id, i.claims_digest) = 0 AND i.vault_path IS NULL
            AND NOT i.leased AND NOT i.static
        ELSE i.credential_kind IS NOT NULL AND num_nonnulls(i.audience, i.key_id, i.claims_digest) = 0
            AND (i.vault_path IS NULL) = (i.credential_kind = 'vault-token') AND NOT (i.leased AND i.static) END
        THEN 'issuances_intent'
    WHEN NOT CASE
        WHEN i.decision <> 'allow' OR i.credential_kind = 'jwt' OR i.status = 'intent'
            THEN num_nonnulls(i.vault_accessor, i.vault_lease, i.credential_name, i.secret_digest) = 0
        ELSE (NOT i.leased OR i.status <> 'issued' OR num_nonnulls(i.vault_accessor, i.vault_lease) > 0)
            AND (NOT i.static OR i.secret_digest IS NULL) END
        THEN 'issuances_minted'
    WHEN NOT CASE
        WHEN i.status_list IS NULL THEN i.status_index IS NULL
        ELSE (i.credential_kind = 'jwt' AND i.status_index BETWEEN 0 AND 8191) IS TRUE END
        THEN 'issuances_status_list'
    WHEN NOT CASE
        WHEN i.parent IS NULL THEN true
        WHEN i.decision = 'allow' THEN i.credential_kind = 'jwt' AND i.approves IS NULL AND i.parent <> i.id
        ELSE i.decision = 'deny' END
        THEN 'issuances_parent'
    -- What people are asked, and say.
    WHEN i.approval_quorum < 1
        OR num_nulls(i.approval_group, i.approval_quorum) <> CASE i.decision WHEN 'pending' THEN 0 ELSE 2 END
        OR i.break_glass IS NOT NULL AND NOT coalesce(
            i.break_glass = i.canonical::jsonb ->> 'break_glass' AND i.break_glass NOT IN ('', i.approval_group), false)
        THEN 'issuances_approval'
    WHEN NOT CASE i.decision
        WHEN 'pending' THEN i.votes >= 0 AND i.redemptions BETWEEN 0 AND 2 AND i.approves IS NULL
            AND (i.status = 'redeemed') = (i.redemptions > 0) AND (i.redemptions > 0) = (i.redeemed_by IS NOT NULL)
            AND (i.status NOT IN ('approved', 'redeemed') OR i.canonical IS NOT NULL
                AND i.votes >= least(i.approval_quorum, CASE WHEN i.break_glass IS NOT NULL THEN 2 END))
        ELSE num_nonnulls(i.canonical, i.redeemed_by, i.remembered) = 0 AND i.votes = 0 AND i.redemptions = 0
            AND (i.approves IS NOT NULL) = (i.decision = 'allow' AND i.decision_code IN ('approved', 'break_glass'))
            AND (i.decision_code <> 'break_glass' OR i.ttl <= 1800 AND i.expires_at - i.time <= interval '30 minutes') END
        THEN 'issuances_votes'
    -- Whom it is bound to.
    WHEN i.jkt IS NOT NULL AND NOT (i.jkt ~ '^[A-Za-z0-9_-]{43}$'
            AND (i.canonical IS NULL OR coalesce(i.canonical::jsonb ->> 'jkt' = i.jkt, false)))
        THEN 'issuances_jkt'
    WHEN num_nulls(i.on_behalf_of, i.on_behalf_groups) = 1 OR i.on_behalf_of NOT LIKE '_%#_%'
        OR coalesce(i.canonical, '') <> '' AND i.canonical::jsonb ->> 'on_behalf_of' IS DISTINCT FROM i.on_behalf_of
        THEN 'issuances_on_behalf_of'
END;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION broken_rule FROM PUBLIC;

-- Row by row: what a statement-level trigger sees together is, in some versions, not all that a MERGE inserts.
-- +goose StatementBegin
CREATE FUNCTION keep_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken text := broken_rule(NEW);
BEGIN
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'an issuance breaks the rule %', broken
            USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER issuances_keep_rules BEFORE INSERT OR UPDATE ON issuances FOR EACH ROW EXECUTE FUNCTION keep_rules();

GRANT EXECUTE ON FUNCTION broken_rule TO brevet_broker;
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.keep_rules SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd

ALTER TABLE issuances
    DROP CONSTRAINT issuances_approval, DROP CONSTRAINT issuances_approval_group_check, DROP CONSTRAINT issuances_approval_quorum_check,
    DROP CONSTRAINT issuances_audience_check, DROP CONSTRAINT issuances_catalogue_check, DROP CONSTRAINT issuances_claims_digest_check,
    DROP CONSTRAINT issuances_credential_kind_check, DROP CONSTRAINT issuances_decision_code_check, DROP CONSTRAINT issuances_detail,
    DROP CONSTRAINT issuances_expiry, DROP CONSTRAINT issuances_idempotency_key_check, DROP CONSTRAINT issuances_intent,
    DROP CONSTRAINT issuances_jkt, DROP CONSTRAINT issuances_key_freed, DROP CONSTRAINT issuances_key_id_check,
    DROP CONSTRAINT issuances_minted, DROP CONSTRAINT issuances_on_behalf_of, DROP CONSTRAINT issuances_params_check,
    DROP CONSTRAINT issuances_parent, DROP CONSTRAINT issuances_request_digest_check, DROP CONSTRAINT issuances_scope_check,
    DROP CONSTRAINT issuances_state, DROP CONSTRAINT issuances_status_detail_check, DROP CONSTRAINT issuances_status_list,
    DROP CONSTRAINT issuances_svid_kind_check, DROP CONSTRAINT issuances_task_check, DROP CONSTRAINT issuances_thumbprint,
    DROP CONSTRAINT issuances_trust_domain, DROP CONSTRAINT issuances_trust_domain_check, DROP CONSTRAINT issuances_ttl,
    DROP CONSTRAINT issuances_vault_check, DROP CONSTRAINT issuances_votes;

-- +goose Down
LOCK TABLE issuances IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER issuances_keep_rules ON issuances;
DROP FUNCTION keep_rules;
DROP FUNCTION broken_rule;
ALTER TABLE issuances
    ADD CONSTRAINT issuances_approval CHECK (((num_nulls(approval_group, approval_quorum) = CASE decision WHEN 'pending'::text
        THEN 0 ELSE 2 END) AND CASE WHEN (break_glass IS NULL) THEN true ELSE COALESCE(((break_glass = ((canonical)::jsonb ->>
        'break_glass'::text)) AND ((break_glass <> ''::text) AND (break_glass <> approval_group))), false) END)),
    ADD CONSTRAINT issuances_approval_group_check CHECK ((approval_group <> ''::text)),
    ADD CONSTRAINT issuances_approval_quorum_check CHECK ((approval_quorum >= 1)),
    ADD CONSTRAINT issuances_audience_check CHECK ((audience <> ''::text)),
    ADD CONSTRAINT issuances_catalogue_check CHECK ((catalogue <> ''::text)),
    ADD CONSTRAINT issuances_claims_digest_check CHECK ((octet_length(claims_digest) = 32)),
    ADD CONSTRAINT issuances_credential_kind_check CHECK ((credential_kind = ANY (ARRAY['jwt'::text, 'vault-token'::text,
        'database'::text, 'pki'::text, 'ssh'::text, 'kv'::text, 'vault'::text]))),
    ADD CONSTRAINT issuances_decision_code_check CHECK ((decision_code <> ''::text)),
    ADD CONSTRAINT issuances_detail CHECK (((status_detail IS NOT NULL) = (status = ANY (ARRAY['failed'::text,
        'unknown'::text, 'compensated'::text, 'revoking'::text, 'revoked'::text, 'released'::text])))),
    ADD CONSTRAINT issuances_expiry CHECK (CASE decision WHEN 'deny'::text THEN (expires_at IS NULL) ELSE COALESCE((expires_at
        > "time"), false) END),
    ADD CONSTRAINT issuances_idempotency_key_check CHECK ((idempotency_key <> ''::text)),
    ADD CONSTRAINT issuances_intent CHECK (CASE WHEN (decision <> 'allow'::text) THEN ((num_nonnulls(credential_kind,
        audience, key_id, claims_digest, vault_path) = 0) AND (NOT leased) AND (NOT static)) WHEN (credential_kind = 'jwt'::text)
        THEN ((num_nulls(audience, key_id, claims_digest) = 0) AND (vault_path IS NULL) AND (NOT leased) AND (NOT static)) ELSE
        ((credential_kind IS NOT NULL) AND (num_nonnulls(audience, key_id, claims_digest) = 0) AND ((vault_path IS NULL) =
        (credential_kind = 'vault-token'::text)) AND (NOT (leased AND static))) END),
    ADD CONSTRAINT issuances_jkt CHECK (CASE WHEN (jkt IS NULL) THEN true ELSE ((jkt ~ '^[A-Za-z0-9_-]{43}$'::text) AND
        ((canonical IS NULL) OR COALESCE((((canonical)::jsonb ->> 'jkt'::text) = jkt), false))) END),
    ADD CONSTRAINT issuances_key_freed CHECK (((status <> ALL (ARRAY['failed'::text, 'unknown'::text, 'compensated'::text]))
        OR (idempotency_key IS NULL))),
    ADD CONSTRAINT issuances_key_id_check CHECK ((key_id <> ''::text)),
    ADD CONSTRAINT issuances_minted CHECK (CASE WHEN ((decision <> 'allow'::text) OR (credential_kind = 'jwt'::text) OR
        (status = 'intent'::text)) THEN (num_nonnulls(vault_accessor, vault_lease, credential_name, secret_digest) = 0) ELSE
        (((NOT leased) OR (status <> 'issued'::text) OR (num_nonnulls(vault_accessor, vault_lease) > 0)) AND ((NOT static) OR
        (secret_digest IS NULL))) END),
    ADD CONSTRAINT issuances_on_behalf_of CHECK (((num_nulls(on_behalf_of, on_behalf_groups) = ANY (ARRAY[0, 2])) AND
        COALESCE((on_behalf_of ~~ '_%#_%'::text), true) AND CASE WHEN (COALESCE(canonical, ''::text) = ''::text) THEN true ELSE
        (NOT (((canonical)::jsonb ->> 'on_behalf_of'::text) IS DISTINCT FROM on_behalf_of)) END)),
    ADD CONSTRAINT issuances_params_check CHECK ((jsonb_typeof(params) = 'object'::text)),
    ADD CONSTRAINT issuances_parent CHECK (CASE WHEN (parent IS NULL) THEN true WHEN (decision = 'allow'::text) THEN
        ((credential_kind = 'jwt'::text) AND (approves IS NULL) AND (parent <> id)) ELSE (decision = 'deny'::text) END),
    ADD CONSTRAINT issuances_request_digest_check CHECK ((octet_length(request_digest) = 32)),
    ADD CONSTRAINT issuances_scope_check CHECK ((scope <> ''::text)),
    ADD CONSTRAINT issuances_state CHECK (CASE decision WHEN 'deny'::text THEN ((status = 'denied'::text) AND (NOT one_shot))
        WHEN 'pending'::text THEN ((status = ANY (ARRAY['pending'::text, 'approved'::text, 'rejected'::text, 'withdrawn'::text,
        'redeemed'::text])) AND (NOT one_shot)) WHEN 'allow'::text THEN (((status = ANY (ARRAY['intent'::text, 'issued'::text,
        'failed'::text, 'unknown'::text, 'compensated'::text, 'revoking'::text, 'revoked'::text, 'released'::text,
        'expired'::text])) OR ((status = 'used'::text) AND one_shot)) AND ((NOT one_shot) OR (credential_kind = 'jwt'::text)))
        ELSE false END),
    ADD CONSTRAINT issuances_status_detail_check CHECK ((status_detail <> ''::text)),
    ADD CONSTRAINT issuances_status_list CHECK (CASE WHEN (status_list IS NULL) THEN (status_index IS NULL) ELSE
        (((credential_kind = 'jwt'::text) AND ((status_index >= 0) AND (status_index <= 8191))) IS TRUE) END),
    ADD CONSTRAINT issuances_svid_kind_check CHECK ((svid_kind = ANY (ARRAY['x509-svid'::text, 'jwt-svid'::text]))),
    ADD CONSTRAINT issuances_task_check CHECK ((task <> ''::text)),
    ADD CONSTRAINT issuances_thumbprint CHECK (((thumbprint <> ''::text) = (svid_kind = 'x509-svid'::text))),
    ADD CONSTRAINT issuances_trust_domain CHECK (starts_with(spiffe_id, (('spiffe://'::text || trust_domain) || '/'::text))),
    ADD CONSTRAINT issuances_trust_domain_check CHECK ((trust_domain <> ''::text)),
    ADD CONSTRAINT issuances_ttl CHECK (((ttl_asked >= 0) AND (ttl >= CASE decision WHEN 'deny'::text THEN 0 ELSE 1 END))),
    ADD CONSTRAINT issuances_vault_check CHECK (((''::text <> ALL (ARRAY[vault_path, vault_accessor, vault_lease,
        credential_name, actor])) AND (octet_length(secret_digest) = 32))),
    ADD CONSTRAINT issuances_votes CHECK (CASE decision WHEN 'pending'::text THEN ((votes >= 0) AND ((redemptions >= 0) AND
        (redemptions <= 2)) AND (approves IS NULL) AND ((status = 'redeemed'::text) = (redemptions > 0)) AND ((redemptions > 0) =
        (redeemed_by IS NOT NULL)) AND ((status <> ALL (ARRAY['approved'::text, 'redeemed'::text])) OR ((canonical IS NOT NULL)
        AND (votes >= LEAST(approval_quorum, CASE WHEN (break_glass IS NOT NULL) THEN 2 ELSE NULL::integer END))))) ELSE
        ((num_nonnulls(canonical, redeemed_by, remembered) = 0) AND (votes = 0) AND (redemptions = 0) AND ((approves IS NOT NULL)
        = ((decision = 'allow'::text) AND (decision_code = ANY (ARRAY['approved'::text, 'break_glass'::text])))) AND
        ((decision_code <> 'break_glass'::text) OR ((ttl <= 1800) AND ((expires_at - "time") <= '00:30:00'::interval)))) END);
