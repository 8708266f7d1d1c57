package brevettest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// step applies a vote or a withdrawal to a request that waits for people.
func (b *entryBody) step(t testing.TB, now state, index int64) {
	t.Helper()
	row := now.issuances[b.ID]
	actor, _ := b.Actor.(map[string]any)
	switch {
	case row == nil || row["status"] != b.Was || row["votes"] != b.Votes || !mayMove(row, b.Status):
		t.Errorf("entry %d (%s) does not follow from the entries before it", index, b.Kind)
		return
	case b.Kind == "approval.vote" && hashOf(row) != b.Hash:
		t.Errorf("entry %d is a vote on something else than its request", index)
	}
	row["status"], row["status_time"], row["actor"] = b.Status, epoch(&b.Time), nil
	if b.Kind == "approval.remembered" {
		b.remember(t, now, index)
		return
	}
	if b.Status == "rejected" || b.Status == "withdrawn" {
		row["actor"] = actor["id"]
	}
	if b.Kind == "approval.withdrawn" {
		return
	}
	row["votes"] = b.Votes + 1
	voter, _ := actor["id"].(string)
	now.votes[b.ID+" "+voter+" "+b.Verdict] = map[string]any{
		"time": epoch(&b.Time), "note": b.Note, "covers": b.Covers, "entry_index": float64(index),
	}
	if b.Verdict == "break_glass" && (b.Covers != "request" || strings.TrimSpace(b.Note) == "") {
		t.Errorf("entry %d breaks the glass for the task, or for no reason", index)
	}
	if b.Status == "approved" && now.approvedBy(b.ID) == "" {
		t.Errorf("entry %d approves a request without enough people", index)
	}
}

// remember lets the votes on an earlier request stand for another.
func (b *entryBody) remember(t testing.TB, now state, index int64) {
	t.Helper()
	row, of := now.issuances[b.ID], now.issuances[b.Of]
	if of == nil || of["spiffe_id"] != row["spiffe_id"] || of["task"] != row["task"] || of["scope"] != row["scope"] {
		t.Errorf("entry %d remembers what was something else", index)
		return
	}
	row["remembered"] = b.Of
	for voter := range now.people {
		vote := now.votes[b.Of+" "+voter+" approve"]
		if vote == nil || vote["covers"] != "task" {
			continue
		}
		row["votes"] = row["votes"].(float64) + 1
		now.votes[b.ID+" "+voter+" approve"] = map[string]any{
			"time": epoch(&b.Time), "note": vote["note"], "covers": "task", "entry_index": float64(index),
		}
	}
	if now.approvedBy(b.ID) != "approved" {
		t.Errorf("entry %d remembers too few people", index)
	}
}

// redeem uses up the approval that an entry names.
func (b *entryBody) redeem(t testing.TB, now state, index int64) {
	t.Helper()
	if b.Approves == nil {
		return
	}
	row := now.issuances[b.Approves.Request]
	if row == nil || !mayMove(row, "redeemed") || hashOf(row) != b.Approves.Hash {
		t.Errorf("entry %d redeems what is not approved", index)
		return
	}
	if before, _ := row["redeemed_by"].(string); before != "" && now.delivered(before) {
		t.Errorf("entry %d redeems what was redeemed and delivered", index)
	}
	if code := now.approvedBy(b.Approves.Request); code == "" || code != b.Decision.Code {
		t.Errorf("entry %d redeems what not enough people approve", index)
	}
	row["status"], row["status_time"], row["redeemed_by"] = "redeemed", epoch(&b.Time), b.ID
	row["redemptions"] = row["redemptions"].(float64) + 1
}

// delivered tells whether an issuance may have reached somebody.
func (s state) delivered(id string) bool {
	row := s.issuances[id]
	switch row["status"] {
	case "failed", "compensated":
		return false
	case "revoked":
		return row["leased"] != true || row["status_detail"] != "undelivered"
	}
	return true
}

// approvedBy is the code of what may be issued on the votes on a request: by those who are in its group, or in the one
// that may stand in.
func (s state) approvedBy(request string) string {
	row, yes, broken := s.issuances[request], 0.0, 0
	for voter, person := range s.people {
		groups, _ := person["groups"].([]any)
		if s.votes[request+" "+voter+" approve"] != nil && slices.Contains(groups, row["approval_group"]) {
			yes++
		}
		if s.votes[request+" "+voter+" break_glass"] != nil && slices.Contains(groups, row["break_glass"]) {
			broken++
		}
	}
	switch {
	case yes >= row["approval_quorum"].(float64):
		return "approved"
	case broken >= 2:
		return "break_glass"
	}
	return ""
}

func (b *entryBody) meet(people projection, index int64) {
	said := epoch(&b.SaidAt)
	if before := people[b.Person.ID]; before != nil && before["said_at"].(string) >= said.(string) {
		return
	}
	people[b.Person.ID] = map[string]any{
		"name": b.Person.Name, "handle": b.Person.Handle, "groups": b.Person.Groups, "said_at": said,
		"entry": b.ID, "entry_index": float64(index),
	}
}

// hashOf is what votes on a request name.
func hashOf(row map[string]any) string {
	text, _ := row["canonical"].(string)
	hash := sha256.Sum256([]byte(text))
	return hex.EncodeToString(hash[:])
}
