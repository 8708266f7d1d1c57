-- +goose Up

-- What waits for people. What has expired says so nowhere but by its time, and is kept for good: it comes before what
-- waits, so that nobody walks over it.
DROP INDEX issuances_waiting;
CREATE INDEX issuances_waiting ON issuances (approval_group, expires_at) WHERE status = 'pending';

-- What a no takes back: it is few that anybody says no to, or whose approval is asked for again.
CREATE INDEX votes_no ON votes (time) WHERE verdict = 'deny';
CREATE INDEX issuances_remembered ON issuances (remembered) WHERE remembered IS NOT NULL;
CREATE INDEX issuances_approves ON issuances (approves) WHERE approves IS NOT NULL AND status = 'issued';

-- +goose Down
DROP INDEX issuances_approves;
DROP INDEX issuances_remembered;
DROP INDEX votes_no;
DROP INDEX issuances_waiting;
CREATE INDEX issuances_waiting ON issuances (approval_group, entry_index) WHERE status IN ('pending', 'approved');
