package scopes

import (
	"time"

	"github.com/cedar-policy/cedar-go"
)

// User is the person on whose behalf a sandbox asks.
type User struct {
	ID     string // issuer, "#" and subject
	Groups []string
	// Until is when what they let the sandbox present ends, and the credential with it. Zero bounds nothing.
	Until time.Time
}

// cedar is context.user of a policy.
func (u *User) cedar() cedar.Record {
	groups := make([]cedar.Value, len(u.Groups))
	for i, group := range u.Groups {
		groups[i] = cedar.String(group)
	}
	return cedar.NewRecord(cedar.RecordMap{"id": cedar.String(u.ID), "groups": cedar.NewSet(groups...)})
}
