package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"

	"github.com/brevet-dev/brevet/internal/people"
)

// GroupKey is the same for requests of sandboxes beside each other that ask for the same thing: all that people are shown of
// them is the same, but for the sandbox's name, its task, the time and the keys that it is bound to. It is a whole SHA-256 of
// that, since sandboxes choose what they ask for, and whoever found two alike would have one approved with the other (T7).
func (c *ApprovalRequest) GroupKey() string {
	var s struct {
		shown

		Params json.RawMessage `json:"params"` // as they are written: a number read as a float could be another
	}
	if err := json.Unmarshal([]byte(c.Canonical), &s); err != nil {
		return c.ID // like nothing else
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

// Entitled is nil when a person may say something to a request, as far as who they are goes. It is for what they are
// offered: the vote asks again, and so does the mint.
func (b *Broker) Entitled(who people.Person, says Verdict, c *ApprovalRequest) error {
	return b.cfg.ApprovalPolicy.entitled(voterOf(who), says, c)
}

// Owner is whose sandbox it is, as far as its SPIFFE ID tells; empty when it does not.
func (b *Broker) Owner(spiffeID string) string {
	owner, _ := b.cfg.ApprovalPolicy.Owners.Of(spiffeID)
	return owner
}
