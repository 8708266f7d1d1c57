package brevettest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// entryBody is what an auditor's program knows about bodies.
type entryBody struct {
	Kind, ID, Status, Detail string
	Version                  int
	Time                     time.Time
	Expires, At              *time.Time
	Subject                  struct {
		SPIFFEID    string `json:"spiffe_id"`
		TrustDomain string `json:"trust_domain"`
		SVID        string
		Thumbprint  string
	}
	Request struct {
		Scope, Task, Reason, Digest string
		Params                      map[string]any
		TTL                         float64
		IdempotencyKey              *string `json:"idempotency_key"`
	}
	Decision struct {
		Outcome, Code, Explanation, Authority, Resource, Catalogue string
		Params                                                     map[string]any
		TTL                                                        float64
		Clamps                                                     []struct{ Bound string }
		Policies                                                   []any
		Approval                                                   *struct {
			Group     string
			Quorum    float64
			Canonical *string
			Glass     *string `json:"break_glass"`
		}
	}
	Approves *struct{ Request, Hash string }
	Intent   *struct {
		Kind         string
		Audience     *string
		KeyID        *string `json:"key_id"`
		ClaimsDigest *string `json:"claims_digest"`
		Grant        struct {
			Path           string
			Leased, Static bool
		}
	}
	Minted struct{ Accessor, Lease, Name, Digest string }
	Actor  any // of an outcome a SPIFFE ID or a person's id, of a command a subject or a person, of a vote a person
	Person struct {
		ID, Name, Handle string
		Groups           []any
	}
	SaidAt                   time.Time `json:"said_at"`
	Verdict, Hash, Note, Was string
	Covers, Of               string
	Votes                    float64
	Target                   struct {
		SPIFFEID string `json:"spiffe_id"`
		Task     string
	}
	Reason string
	// Of a catalogue's entries.
	Digest, Base, Proposal, Proposer string
	Number                           float64
}

// moves are the states that follow from each. What is leased ends through revoking only, or expires; what is not does
// neither by an entry. Only a JWT fails after it was issued, and what is static stays.
var moves = map[string]string{
	"pending": "pending approved rejected withdrawn", "approved": "redeemed rejected withdrawn", "redeemed": "redeemed",
	"intent": "issued failed unknown compensated revoking", "unknown": "compensated",
	"issued": "failed revoking revoked released expired", "revoking": "revoked released",
}

func mayMove(row map[string]any, to string) bool {
	from, _ := row["status"].(string)
	if !strings.Contains(" "+moves[from]+" ", " "+to+" ") {
		return false
	}
	switch {
	case from != "issued":
		return true
	case to == "failed":
		return row["credential_kind"] == "jwt"
	case to == "revoking", to == "expired":
		return row["leased"] == true
	}
	return row["leased"] == false && row["static"] == false
}

// applyTo brings the state from before an entry to after it, or says why the entry cannot be.
func (b *entryBody) applyTo(t testing.TB, now state, index int64) {
	t.Helper()
	if b.Version != 1 {
		t.Errorf("entry %d has version %d", index, b.Version)
	}
	before := now.issuances[b.ID]
	switch b.Kind {
	case "call.refused", "credentials.revoke":
	case "request.denied", "request.pending", "issuance.intent":
		if before != nil {
			t.Errorf("entry %d begins %s again", index, b.ID)
		}
		if now.catalogues.version > 0 && b.Decision.Catalogue != now.catalogues.digest {
			t.Errorf("entry %d (%s) was decided by a catalogue that was not in force", index, b.Kind)
		}
		if b.Kind != "request.denied" && now.forbids(b.Subject.SPIFFEID, b.Request.Task) {
			t.Errorf("entry %d (%s) is of a sandbox in quarantine, or of a task that had ended", index, b.Kind)
		}
		now.issuances[b.ID] = b.row(index)
		b.redeem(t, now, index)
	case "approval.vote", "approval.remembered", "approval.withdrawn":
		b.step(t, now, index)
	case "catalogue.proposed", "catalogue.applied", "catalogue.rejected":
		now.catalogues.change(t, b, index)
	case "person.seen":
		b.meet(now.people, index)
	case "task.end":
		b.endTask(now.tasks, index)
	case "quarantine.add":
		if q := b.Target.SPIFFEID; now.quarantines[q] == nil {
			now.quarantines[q] = map[string]any{
				"since": epoch(&b.Time), "actor": b.actor(), "reason": b.Reason, "command": b.ID, "entry_index": float64(index),
			}
		}
	case "quarantine.remove":
		if now.quarantines[b.Target.SPIFFEID] == nil {
			t.Errorf("entry %d lifts a quarantine that does not stand", index)
		}
		delete(now.quarantines, b.Target.SPIFFEID)
	default:
		if b.Kind != "issuance."+b.Status || before == nil || !mayMove(before, b.Status) {
			t.Errorf("entry %d (%s) does not follow from the entries before it", index, b.Kind)
			return
		}
		b.move(before)
	}
}

// forbids tells whether commands leave nothing to a sandbox and a task. Deadlines are not looked at: they pass by the
// database's clock, which entries do not tell.
func (s state) forbids(spiffeID, task string) bool {
	for q := range s.quarantines {
		if spiffeID == q || strings.HasPrefix(spiffeID, q+"/") {
			return true
		}
	}
	return s.tasks[spiffeID+" "+task]["ended"] == true
}

func (b *entryBody) endTask(tasks projection, index int64) {
	key, ends := b.Target.SPIFFEID+" "+b.Target.Task, b.Time
	if b.At != nil {
		ends = *b.At
	}
	before, ended := tasks[key], !ends.After(b.Time)
	at := epoch(&ends)
	if before != nil {
		earlier := before["ends_at"].(string) <= at.(string) // of the same length
		if earlier && (before["ended"] == true || !ended) {
			return
		}
		if earlier {
			at = before["ends_at"]
		}
		ended = ended || before["ended"] == true
	}
	tasks[key] = map[string]any{
		"ends_at": at, "ended": ended, "since": epoch(&b.Time), "command": b.ID, "entry_index": float64(index),
	}
}

// move changes the row of a record as its outcome says.
func (b *entryBody) move(row map[string]any) {
	row["status"], row["status_detail"], row["status_time"] = b.Status, orNull(b.Detail), epoch(&b.Time)
	if actor := b.actor(); actor != nil {
		row["actor"] = actor
	}
	digest := b.Minted.Digest
	if digest != "" {
		digest = `\x` + digest
	}
	for column, value := range map[string]string{
		"vault_accessor": b.Minted.Accessor, "vault_lease": b.Minted.Lease, "credential_name": b.Minted.Name,
		"secret_digest": digest,
	} {
		if row[column] == nil {
			row[column] = orNull(value)
		}
	}
	if b.Status == "failed" || b.Status == "unknown" || b.Status == "compensated" {
		row["idempotency_key"] = nil
	}
}

func (b *entryBody) actor() any {
	who, ok := b.Actor.(map[string]any)
	switch {
	case !ok:
		return b.Actor
	case who["spiffe_id"] != nil:
		return who["spiffe_id"]
	}
	return who["id"]
}

// row is the line of issuances that an entry stands for, as Postgres writes it in JSON.
func (b *entryBody) row(index int64) map[string]any {
	params := b.Request.Params
	if b.Decision.Params != nil {
		params = b.Decision.Params
	}
	clamps := []any{}
	for _, c := range b.Decision.Clamps {
		clamps = append(clamps, c.Bound)
	}
	row := map[string]any{
		"entry_index": float64(index), "time": epoch(&b.Time), "expires_at": epoch(b.Expires),
		"trust_domain": b.Subject.TrustDomain, "spiffe_id": b.Subject.SPIFFEID, "svid_kind": b.Subject.SVID,
		"thumbprint": b.Subject.Thumbprint, "task": b.Request.Task, "scope": b.Request.Scope,
		"authority": b.Decision.Authority, "resource": b.Decision.Resource, "params": params,
		"reason": b.Request.Reason, "ttl_asked": b.Request.TTL, "ttl": b.Decision.TTL,
		"decision": b.Decision.Outcome, "decision_code": b.Decision.Code, "explanation": b.Decision.Explanation,
		"policies": b.Decision.Policies, "clamps": clamps, "catalogue": b.Decision.Catalogue,
		"status": b.Status, "status_detail": nil, "status_time": epoch(&b.Time), "actor": nil,
		"approval_group": nil, "approval_quorum": nil, "break_glass": nil,
		"credential_kind": nil, "audience": nil, "key_id": nil, "claims_digest": nil,
		"vault_path": nil, "vault_accessor": nil, "vault_lease": nil, "credential_name": nil, "secret_digest": nil,
		"leased": false, "static": false,
		"request_digest": `\x` + b.Request.Digest, "idempotency_key": pointed(b.Request.IdempotencyKey),
		"canonical": nil, "votes": 0.0, "redemptions": 0.0, "redeemed_by": nil, "approves": nil, "remembered": nil,
	}
	if a := b.Decision.Approval; a != nil {
		row["approval_group"], row["approval_quorum"], row["canonical"] = a.Group, a.Quorum, pointed(a.Canonical)
		row["break_glass"] = pointed(a.Glass)
	}
	if b.Approves != nil {
		row["approves"] = b.Approves.Request
	}
	if i := b.Intent; i != nil {
		row["credential_kind"], row["audience"], row["key_id"] = i.Kind, pointed(i.Audience), pointed(i.KeyID)
		if i.ClaimsDigest != nil {
			row["claims_digest"] = `\x` + *i.ClaimsDigest
		}
		row["vault_path"], row["leased"], row["static"] = orNull(i.Grant.Path), i.Grant.Leased, i.Grant.Static
	}
	return row
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func pointed(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

// epoch is a time as extract(epoch) writes it: seconds with six digits.
func epoch(at *time.Time) any {
	if at == nil {
		return nil
	}
	return fmt.Sprintf("%d.%06d", at.Unix(), at.Nanosecond()/1000)
}
