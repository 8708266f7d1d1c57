package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"time"

	"github.com/brevet-dev/brevet/people"
)

// Likeness is the same for requests of sandboxes beside each other that ask for the same thing.
func (c *Case) Likeness() string {
	siblings := c.Subject.ID.TrustDomain().Name() + path.Dir(c.Subject.ID.Path())
	same, err := json.Marshal([]any{
		siblings, c.Scope, c.Params, c.Resource, int(c.TTL / time.Second), c.Catalogue, c.ApprovalGroup, PersonOf(c.User),
	})
	if err != nil {
		return c.ID // like nothing else
	}
	digest := sha256.Sum256(same)
	return hex.EncodeToString(digest[:8])
}

// Entitled is nil when a person may say something to a request, as far as who they are goes. It is for what they are
// offered: the vote asks again, and so does the mint.
func (b *Broker) Entitled(who people.Person, says Verdict, c *Case) error {
	return b.cfg.Electorate.entitled(voterOf(who), says, c)
}

// Owner is whose sandbox it is, as far as its SPIFFE ID tells; empty when it does not.
func (b *Broker) Owner(spiffeID string) string {
	owner, _ := b.cfg.Electorate.Owners.Of(spiffeID)
	return owner
}
