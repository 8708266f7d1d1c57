-- +goose Up

-- Ten million issuances are many blocks of 262144 entries: a search for what is rare looks at fewer of 2097152. Besides,
-- what is denied, or waits for a group, is found with the sandbox's ID in the index itself: one path has few of them, and
-- each of the others would be a look at the table.
DROP INDEX issuances_by_term;
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 21 << 5 | 21) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    to_tsvector('pg_catalog.simple', reason),
    params jsonb_path_ops,
    (string_to_array(substr(spiffe_id, 11 + length(trust_domain)), '/') || ARRAY['scope=' || scope, 'resource=' || hashtextextended(resource, 0)]));
DROP INDEX issuances_by_decision;
DROP INDEX issuances_by_code;
DROP INDEX issuances_by_group;
CREATE INDEX issuances_by_decision ON issuances (decision, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE decision <> 'allow';
CREATE INDEX issuances_by_code ON issuances (decision_code, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE decision_code <> 'permitted';
CREATE INDEX issuances_by_group ON issuances (approval_group, trust_domain, entry_index DESC) INCLUDE (spiffe_id) WHERE approval_group IS NOT NULL;
-- What nobody has decided in time stays as it is, and becomes many. What waits is few.
CREATE INDEX issuances_undecided ON issuances (expires_at) WHERE status IN ('pending', 'approved');

-- +goose Down
DROP INDEX issuances_undecided;
DROP INDEX issuances_by_group;
DROP INDEX issuances_by_code;
DROP INDEX issuances_by_decision;
CREATE INDEX issuances_by_decision ON issuances (decision, trust_domain, entry_index DESC) WHERE decision <> 'allow';
CREATE INDEX issuances_by_code ON issuances (decision_code, trust_domain, entry_index DESC) WHERE decision_code <> 'permitted';
CREATE INDEX issuances_by_group ON issuances (approval_group, trust_domain, entry_index DESC) WHERE approval_group IS NOT NULL;
DROP INDEX issuances_by_term;
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    to_tsvector('pg_catalog.simple', reason),
    params jsonb_path_ops,
    (string_to_array(substr(spiffe_id, 11 + length(trust_domain)), '/') || ARRAY['scope=' || scope, 'resource=' || hashtextextended(resource, 0)]));
