-- +goose Up

-- What an issuance is found by besides what has an index of its own: in which blocks of 4096, of 32768 and of 262144 entries
-- it is; the words of its reason, the segments of its sandbox's path, and facts, which are those that are not what most
-- have; and its parameters. Each together with the trust domain, so that a search meets what another domain has only where
-- two hashes of 32 bits are the same, of domains or of parameters, and none has to read where all of a domain's are. A search says with the same function what it looks for.
-- +goose StatementBegin
CREATE FUNCTION issuance_terms(trust_domain text, reason text, spiffe_id text, facts text[])
RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN string_to_array(trust_domain || ':word=' || replace(
            nullif(array_to_string(tsvector_to_array(to_tsvector('pg_catalog.simple', reason)), E'\n'), ''),
            E'\n', E'\n' || trust_domain || ':word='), E'\n')
        || string_to_array(trust_domain || ':path=' || replace(
            nullif(substr(spiffe_id, 11 + length(trust_domain)), ''), '/', '/' || trust_domain || ':path='), '/')
        || string_to_array(trust_domain || ':' || replace(
            nullif(array_to_string(facts, E'\n'), ''), E'\n', E'\n' || trust_domain || ':'), E'\n');
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION %1$I.issuance_terms SET search_path = %1$I, pg_temp', current_schema());
END $$;
-- +goose StatementEnd
DROP INDEX issuances_by_term;
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    issuance_terms(trust_domain, reason, spiffe_id, ARRAY[
        'scope=' || scope, 'resource=' || hashtextextended(resource, 0), 'user=' || hashtextextended(on_behalf_of, 0),
        'group=' || approval_group, 'status=' || nullif(status, 'issued'), 'decision=' || nullif(decision, 'allow'),
        'code=' || nullif(decision_code, 'permitted'), 'authority=' || nullif(authority, 'read')]) COLLATE "C",
    jsonb_set('{}', ARRAY[trust_domain], params) jsonb_path_ops);

-- +goose Down
DROP INDEX issuances_by_term;
DROP FUNCTION issuance_terms;
CREATE INDEX issuances_by_term ON issuances USING gin (
    (ARRAY[
        ((entry_index >> 12 << 5 | 12) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 15 << 5 | 15) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 18 << 5 | 18) << 32) | (hashtext(trust_domain)::bigint & 4294967295),
        ((entry_index >> 21 << 5 | 21) << 32) | (hashtext(trust_domain)::bigint & 4294967295)]),
    to_tsvector('pg_catalog.simple', reason),
    params jsonb_path_ops,
    (string_to_array(substr(spiffe_id, 11 + length(trust_domain)), '/') || ARRAY['scope=' || scope, 'resource=' || hashtextextended(resource, 0)]));
