package webhook

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/secret"
)

// The formats of what is sent.
const (
	FormatJSON  = "json"
	FormatSlack = "slack"
)

// Spec is one webhook, as an operator configures it.
type Spec struct {
	// Name stands for it in the record of what it was told: up to 63 lower-case letters, digits, - and _.
	Name string
	// URL is https, without userinfo. It can be a secret itself.
	URL secret.Text
	// Secret signs: whsec_ and base64 of 24 to 64 bytes. Two, with a space between, while one replaces the other. Slack
	// takes none.
	Secret secret.Text
	// Format is FormatJSON or FormatSlack; empty means the first.
	Format string
	// Events are the kinds to tell of.
	Events []broker.NoticeKind
	// Within limits it to sandboxes at or below these SPIFFE IDs.
	Within []string
	// Roots vouch for the server instead of the system's.
	Roots *x509.CertPool
	// AllowPrivate are networks that may be called though they are not public.
	AllowPrivate []netip.Prefix
	// Plaintext allows http to a loopback address, for development.
	Plaintext Plaintext
	// Resolver looks up hosts; nil is the system's.
	Resolver *net.Resolver
}

// Plaintext says whether a webhook may be called without TLS.
type Plaintext string

// The choices of Plaintext.
const (
	NoPlaintext       Plaintext = ""
	PlaintextLoopback Plaintext = "loopback"
)

// hook is a Spec that was checked.
type hook struct {
	url    string
	keys   [][]byte
	format string
	sub    broker.Subscription
	client *http.Client
}

var (
	aName = regexp.MustCompile(`^(?:[a-z0-9][a-z0-9_-]{0,62})$`)
	kinds = []broker.NoticeKind{broker.NoticeWaiting, broker.NoticeDecided, broker.NoticeBroken, broker.NoticeUnrevoked}
)

func newHook(s Spec) (*hook, error) {
	if !aName.MatchString(s.Name) {
		return nil, fmt.Errorf("webhook: %q is not a name: lower-case letters, digits, - and _, at most 63", s.Name)
	}
	h := &hook{url: s.URL.Reveal(), format: s.Format, sub: broker.Subscription{Name: s.Name, Kinds: s.Events, Within: s.Within}}
	if h.format == "" {
		h.format = FormatJSON
	}
	var err error
	switch {
	case h.format != FormatJSON && h.format != FormatSlack:
		err = fmt.Errorf("the format is neither %s nor %s", FormatJSON, FormatSlack)
	case len(s.Events) == 0 || slices.ContainsFunc(s.Events, func(k broker.NoticeKind) bool { return !slices.Contains(kinds, k) }):
		err = fmt.Errorf("the events are not some of %v", kinds)
	case len(s.Within) == 0:
		err = errors.New("it is told of no sandbox")
	default:
		err = checkURL(h.url, s.Plaintext)
	}
	if err == nil && (h.format == FormatJSON || s.Secret.Reveal() != "") {
		h.keys, err = parseKeys(s.Secret)
	}
	if err != nil {
		return nil, fmt.Errorf("webhook %s: %w", s.Name, err)
	}
	h.client = newClient(s)
	return h, nil
}

// checkURL quotes nothing of the URL, which may be a secret.
func checkURL(raw string, plaintext Plaintext) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("the URL cannot be parsed")
	}
	host := u.Hostname()
	switch {
	case host == "" || u.User != nil || u.Fragment != "" || u.Opaque != "":
		return errors.New("the URL has no host, or has userinfo or a fragment")
	case u.Scheme == "http" && plaintext != PlaintextLoopback, u.Scheme != "http" && u.Scheme != "https":
		return errors.New("the URL is not https")
	case u.Scheme == "http" && !loopback(host):
		return errors.New("the URL is http to an address that is not loopback")
	case numeric(host):
		return errors.New("the host is a number that some take for an address")
	}
	return nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// numeric tells of a host that is no address in its one form, and that a resolver may take for one all the same, such as
// 2130706433, 0x7f.1 or 127.1.
func numeric(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	_, err := strconv.ParseUint(labels[len(labels)-1], 0, 64)
	return err == nil || errors.Is(err, strconv.ErrRange) || strings.Trim(labels[len(labels)-1], "0123456789") == ""
}
