package scopes

import (
	"time"

	"github.com/cedar-policy/cedar-go"
)

// User is the person whom a sandbox acts for.
type User struct {
	ID     string // issuer, "#" and subject
	Groups []string
	// Until is when the evidence that the sandbox presents for this person expires. The credential ends then too. Zero
	// sets no bound.
	Until time.Time
}

// cedar returns the value of context.user in a policy.
func (u *User) cedar() cedar.Record {
	groups := make([]cedar.Value, len(u.Groups))
	for i, group := range u.Groups {
		groups[i] = cedar.String(group)
	}
	return cedar.NewRecord(cedar.RecordMap{"id": cedar.String(u.ID), "groups": cedar.NewSet(groups...)})
}

// contextOf builds what policies see in addition to the principal, action and resource.
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
