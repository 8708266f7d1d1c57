package webhook

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
)

// The formats of a notice.
const (
	FormatJSON  = "json"
	FormatSlack = "slack"
)

// Spec is one webhook in the operator's configuration.
type Spec struct {
	// Name identifies the webhook in the record of deliveries: up to 63 lower-case letters, digits, - and _.
	Name string
	// Target is the endpoint to call. Its URL can be a secret itself.
	safehttp.Target
	// Secret is the signing secret: whsec_ and base64 of 24 to 64 bytes. During a rotation it holds two secrets with a space
	// between them. Slack requires none.
	Secret secret.Text
	// Format is FormatJSON or FormatSlack. The default is FormatJSON.
	Format string
	// Events are the kinds of notices to send.
	Events []broker.NoticeKind
	// Within limits the notices to sandboxes at or below these SPIFFE IDs.
	Within []string
}

// hook is a validated Spec.
type hook struct {
	keys   [][]byte
	format string
	sub    broker.Subscription
	client *safehttp.Client
}

var (
	aName = regexp.MustCompile(`^(?:[a-z0-9][a-z0-9_-]{0,62})$`)
	kinds = []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided, broker.NoticeBroken, broker.NoticeUnrevoked}
)

func newHook(s Spec) (*hook, error) {
	if !aName.MatchString(s.Name) {
		return nil, fmt.Errorf("webhook: the name %q must be lower-case letters, digits, - and _, at most 63", s.Name)
	}
	h := &hook{format: s.Format, sub: broker.Subscription{Name: s.Name, Kinds: s.Events, Within: s.Within}}
	if h.format == "" {
		h.format = FormatJSON
	}
	var err error
	switch {
	case h.format != FormatJSON && h.format != FormatSlack:
		err = fmt.Errorf("the format is neither %s nor %s", FormatJSON, FormatSlack)
	case len(s.Events) == 0 || slices.ContainsFunc(s.Events, func(k broker.NoticeKind) bool { return !slices.Contains(kinds, k) }):
		err = fmt.Errorf("the events must be one or more of %v", kinds)
	case len(s.Within) == 0:
		err = errors.New("within is empty, so it would receive nothing")
	default:
		h.client, err = safehttp.New(s.Target)
	}
	if err == nil && (h.format == FormatJSON || s.Secret.Reveal() != "") {
		h.keys, err = parseKeys(s.Secret)
	}
	if err != nil {
		return nil, fmt.Errorf("webhook %s: %w", s.Name, err)
	}
	return h, nil
}
