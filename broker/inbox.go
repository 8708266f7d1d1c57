package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"

	"github.com/brevet-dev/brevet/internal/people"
)

// GroupKey is equal for requests of neighboring sandboxes that ask for the same thing. What approvers see of these requests
// differs only in the sandbox's name, the task, the times and the keys. GroupKey is a full SHA-256, because sandboxes choose what
// they ask for: a sandbox that found a collision would get one request approved with another (T7).
func (c *ApprovalRequest) GroupKey() string {
	var s struct {
		shown

		Params json.RawMessage `json:"params"` // as written, because two large numbers may be equal as floats
	}
	if err := json.Unmarshal([]byte(c.Canonical), &s); err != nil {
		return c.ID // equal to no other
	}
	s.Request, s.Task, s.Digest, s.Expires, s.SPIFFEID = "", "", nil, 0, path.Dir(s.SPIFFEID)
	for _, bound := range []*string{&s.Thumbprint, &s.JKT, &s.Key} {
		*bound = map[bool]string{true: "to its own"}[*bound != ""]
	}
	same, err := json.Marshal(s)
	if err != nil {
		return c.ID
	}
	digest := sha256.Sum256(same)
	return hex.EncodeToString(digest[:])
}

// Entitled returns nil if a person may cast this verdict on a request, going by the person's identity and groups. It decides what
// the person is offered. The vote checks again, and so does the mint.
func (b *Broker) Entitled(who people.Person, says Verdict, c *ApprovalRequest) error {
	return b.cfg.ApprovalPolicy.entitled(voterOf(who), says, c)
}

// Owner returns the owner that a SPIFFE ID names. It returns "" if it names none.
func (b *Broker) Owner(spiffeID string) string {
	owner, _ := b.cfg.ApprovalPolicy.Owners.Of(spiffeID)
	return owner
}
