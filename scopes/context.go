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

// contextOf is what policies see besides who asks, for which action on what.
func contextOf(who Subject, ask Ask, d Decision) cedar.RecordMap {
	params := make(cedar.RecordMap, len(d.Params))
	for name, value := range d.Params {
		switch v := value.(type) {
		case string:
			params[cedar.String(name)] = cedar.String(v)
		case int64:
			params[cedar.String(name)] = cedar.Long(v)
		case bool:
			params[cedar.String(name)] = cedar.Boolean(v)
		}
	}
	binding := BindNone
	switch {
	case who.Bound:
		binding = BindMTLS
	case who.Proved:
		binding = BindDPoP
	}
	context := cedar.RecordMap{
		"params":  cedar.NewRecord(params),
		"ttl":     cedar.Long(d.TTL / time.Second),
		"task":    cedar.String(ask.Task),
		"binding": cedar.String(binding),
	}
	if who.User != nil {
		context["user"] = who.User.cedar()
	}
	return context
}
