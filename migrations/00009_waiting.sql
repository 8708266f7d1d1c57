-- +goose Up

-- What waits for people. What has expired says so nowhere but by its time, and is kept for good: it comes before what
-- waits, so that nobody walks over it.
DROP INDEX issuances_waiting;
CREATE INDEX issuances_waiting ON issuances (approval_group, expires_at) WHERE status = 'pending';

-- +goose Down
DROP INDEX issuances_waiting;
CREATE INDEX issuances_waiting ON issuances (approval_group, entry_index) WHERE status IN ('pending', 'approved');
