package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"time"

	"github.com/brevet-dev/brevet/scopes"
)

// Shown is what people decide on: everything that determines the credential, and nothing that can change before the mint. People
// are shown its JSON form, with the members in this order and the parameters sorted. Votes name this form by its SHA-256.
type Shown struct {
	Version     int            `json:"v"`
	Request     string         `json:"request"` // random, so no two requests have the same form
	TrustDomain string         `json:"trust_domain"`
	SPIFFEID    string         `json:"spiffe_id"`
	User        string         `json:"on_behalf_of,omitempty"` // the person that the sandbox acts for
	Thumbprint  string         `json:"thumbprint,omitempty"`   // of the certificate that the credential is bound to
	JKT         string         `json:"jkt,omitempty"`          // of the DPoP key that the token is bound to
	Scope       string         `json:"scope"`
	Authority   string         `json:"authority"`
	Resource    string         `json:"resource"`
	Params      map[string]any `json:"params"`
	TTL         int64          `json:"ttl"` // maximum, in seconds
	scopes.RequestContext
	Key      string `json:"key,omitempty"` // SHA-256 of the caller's public key or signing request
	Audience string `json:"audience,omitempty"`
	// FederatedSubject is the subject of a token for another system.
	FederatedSubject string `json:"federated_subject,omitempty"`
	// Repositories and Permissions are what a token of GitHub is for, joined by commas.
	Repositories string `json:"repositories,omitempty"`
	Permissions  string `json:"permissions,omitempty"`
	Catalogue    string `json:"catalogue"`
	Digest       []byte `json:"digest"` // of the request, including its reason and keys
	Group        string `json:"group"`
	Quorum       int    `json:"quorum"`
	BreakGlass   string `json:"break_glass,omitempty"` // the group that may approve in place of Group
	Remember     string `json:"remember,omitempty"`    // "task" if an approval may cover the task
	Passkey      string `json:"passkey,omitempty"`     // "required" if an approval must be signed by a passkey
	Expires      int64  `json:"expires"`               // end of the wait, in Unix seconds
	// Opens are the hosts that the request opens without a credential, joined by commas; empty if there is a credential.
	Opens string `json:"opens,omitempty"`
	// Exchange is what another system gives for such a token, as scopes.Exchange describes it to people.
	Exchange string `json:"exchange,omitempty"`
}

// Canonical is the JSON form of a Shown, byte for byte. It is empty for a request that nobody can vote on.
type Canonical string

// Shown decodes the form.
func (c Canonical) Shown() (Shown, error) {
	var s Shown
	if err := json.Unmarshal([]byte(c), &s); err != nil {
		return Shown{}, fmt.Errorf("decoding what approvers see: %w", err)
	}
	return s, nil
}

// Hash identifies the content that a vote is about: the SHA-256 of what the voter is shown.
func (c Canonical) Hash() [32]byte { return sha256.Sum256([]byte(c)) }

// NeedsPasskey reports whether an approval must be signed by a passkey.
func (c Canonical) NeedsPasskey() bool {
	s, err := c.Shown()
	return err == nil && s.Passkey == scopes.PasskeyRequired
}

// Reusable reports whether an approval may cover the task.
func (c Canonical) Reusable() bool {
	s, err := c.Shown()
	return err == nil && s.Remember == scopes.RememberTask
}

// sameAsk reports whether the second request asks for the same thing as the first, for the same TTL or a shorter one. The wait of
// the second must also end less than ReuseFor after that of the first.
func sameAsk(before, now Canonical) bool {
	then, err := before.Shown()
	asked, errToo := now.Shown()
	if err != nil || errToo != nil || asked.TTL > then.TTL || asked.Expires-then.Expires >= int64(ReuseFor/time.Second) {
		return false
	}
	for _, s := range []*Shown{&then, &asked} {
		s.Request, s.Digest, s.Expires, s.TTL = "", nil, 0, 0
	}
	return reflect.DeepEqual(then, asked)
}

// GroupKey is equal for requests of neighboring sandboxes that ask for the same thing: what approvers see of these requests
// differs only in the sandbox's name, the task, the times and the keys. GroupKey is a full SHA-256, because sandboxes choose what
// they ask for: a sandbox that found a collision would get one request approved with another (T7). It returns "" if the form
// cannot be read.
func (c Canonical) GroupKey() string {
	var s struct {
		Shown

		Params json.RawMessage `json:"params"` // as written, because two large numbers may be equal as floats
	}
	if err := json.Unmarshal([]byte(c), &s); err != nil {
		return ""
	}
	s.Request, s.Task, s.Digest, s.Expires, s.SPIFFEID = "", "", nil, 0, path.Dir(s.SPIFFEID)
	for _, bound := range []*string{&s.Thumbprint, &s.JKT, &s.Key} {
		*bound = map[bool]string{true: "to its own"}[*bound != ""]
	}
	same, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	digest := sha256.Sum256(same)
	return hex.EncodeToString(digest[:])
}
