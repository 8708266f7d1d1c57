package scopes

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Exchange defines what another system gives for a token with a federation. An egress gateway performs the exchange, and tools with
// their own clients read its members. The zero value means that Brevet does not know the exchange. No member is secret.
type Exchange struct {
	As  string // one of the Exchange constants
	URL string // origin of the system's token endpoint; never empty

	Role   string // aws: template of the role's ARN
	Region string // aws: the region of the token service

	// ServiceAccount is a template: for google the e-mail address of the account to impersonate, for anthropic and openai its id.
	ServiceAccount string
	Scopes         []string // google: OAuth scopes; never empty
	IAM            string   // google: origin of the API that impersonates; never empty

	Tenant string // azure
	Client string // azure, openai: the id of the application
	Scope  string // azure: the resource, followed by /.default

	Organization     string // anthropic
	Rule             string // anthropic: the id of the federation rule
	Workspace        string // anthropic
	IdentityProvider string // openai: the id of the identity provider
}

// The systems that Exchange describes.
const (
	ExchangeAWS       = "aws"       // AssumeRoleWithWebIdentity of AWS STS
	ExchangeGoogle    = "google"    // workload identity federation of Google Cloud (RFC 8693)
	ExchangeAzure     = "azure"     // client credentials of Microsoft Entra with a client assertion (RFC 7523)
	ExchangeAnthropic = "anthropic" // workload identity federation of Anthropic (RFC 7523)
	ExchangeOpenAI    = "openai"    // workload identity federation of OpenAI (RFC 8693)
)

// String describes the result of the exchange on one line, for people.
func (e Exchange) String() string {
	words := []string{e.As}
	for _, word := range []string{e.Role, e.ServiceAccount, e.Client, e.Rule} {
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

func (e Exchange) clone() Exchange {
	e.Scopes = slices.Clone(e.Scopes)
	return e
}

// exchangeWay is one system as a catalogue writes it.
type exchangeWay struct {
	as         string
	needs, may []string // its keys, in addition to as
	url        string   // the default
	example    string
}

// exchangeWays is in the order in which messages list the systems.
var exchangeWays = []exchangeWay{
	{
		ExchangeAWS,
		[]string{"role", "region"},
		[]string{"url"},
		"",
		"{as: aws, role: 'arn:aws:iam::123456789012:role/site', region: eu-central-1}",
	},
	{ExchangeGoogle, nil, []string{"service_account", "scopes", "url", "iam_url"}, "https://sts.googleapis.com", "{as: google}"},
	{
		ExchangeAzure,
		[]string{"tenant", "client", "scope"},
		[]string{"url"},
		"https://login.microsoftonline.com",
		"{as: azure, tenant: acme.onmicrosoft.com, client: 11111111-2222-3333-4444-555555555555, scope: 'https://storage.azure.com/.default'}",
	},
	{
		ExchangeAnthropic,
		[]string{"organization", "rule"},
		[]string{"service_account", "workspace", "url"},
		"https://api.anthropic.com",
		"{as: anthropic, organization: 11111111-2222-3333-4444-555555555555, rule: fdrl_agents, service_account: svac_agents}",
	},
	{
		ExchangeOpenAI,
		[]string{"identity_provider", "service_account"},
		[]string{"client", "url"},
		"https://auth.openai.com",
		"{as: openai, identity_provider: idp_brevet, service_account: sa_agents}",
	},
}

const (
	maxExchangeScopes = 16
	googleIAM         = "https://iamcredentials.googleapis.com"
	googleScope       = "https://www.googleapis.com/auth/cloud-platform"
)

var (
	exchangeURLSyntax    = regexp.MustCompile(`^https?://[A-Za-z0-9.:\[\]-]+$`)
	exchangeIDSyntax     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	exchangeScopeSyntax  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./_~:@-]*/\.default$`)
	exchangeScopesSyntax = regexp.MustCompile(`^https://[A-Za-z0-9./_-]+$`)
	googleAudience       = regexp.MustCompile(`^(https:)?//iam\.[a-z0-9.-]+/.`)
	googleAccountSyntax  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*@[a-z0-9-]+(\.[a-z0-9-]+)+$`)
)

var (
	// rolePathPlace is the ARN of a role. The account is never a parameter, and no value adds a segment to the role's path.
	rolePathPlace = place{
		name: "role", literal: regexp.MustCompile(`^[A-Za-z0-9:/+=,.@_-]*$`), chars: "letters, digits and : / + = , . @ _ -",
		head:    regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/`),
		headWhy: "must begin with the ARN of an account's roles, such as arn:aws:iam::123456789012:role/site",
		value:   regexp.MustCompile(`^[A-Za-z0-9._@-]+$`), whole: refuseRoleARN,
	}
	// googleAccountPlace is the e-mail address of a service account of Google Cloud.
	googleAccountPlace = place{
		name: "service account", literal: regexp.MustCompile(`^[a-z0-9.@-]*$`), chars: "lower-case letters, digits and . @ -",
		value: regexp.MustCompile(`^[a-z0-9-]+$`), barred: '@',
		whole: func(account string) string {
			if !googleAccountSyntax.MatchString(account) {
				return "is not the e-mail address of a service account, such as deploy@acme.iam.gserviceaccount.com"
			}
			return ""
		},
	}
	// accountPlace is the id of a service account.
	accountPlace = place{
		name: "service account", literal: regexp.MustCompile(`^[A-Za-z0-9._-]*$`), chars: "letters, digits and . _ -",
		value: regexp.MustCompile(`^[A-Za-z0-9_-]+$`),
		whole: func(account string) string {
			if !exchangeIDSyntax.MatchString(account) {
				return "is not an id of 1 to 100 letters, digits and . _ -"
			}
			return ""
		},
	}
)

const (
	maxRoleName  = 64
	maxRoleParts = 512 // bytes of the path and the name
)

func refuseRoleARN(arn string) string {
	_, path, _ := strings.Cut(arn, ":role/")
	name := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case strings.Contains(path, ":"):
		return "has a colon in the name of the role"
	case len(name) > maxRoleName || len(path) > maxRoleParts:
		return fmt.Sprintf("has a name of more than %d bytes, or more than %d with its path", maxRoleName, maxRoleParts)
	}
	return refuseSegments(path)
}

// serviceAccountPlace returns the syntax of service_account.
func (w exchangeWay) serviceAccountPlace() *place {
	if w.as == ExchangeGoogle {
		return &googleAccountPlace
	}
	return &accountPlace
}

// exchange reads what the other system gives for the token.
func (c *credentialReader) exchange(n *yaml.Node) {
	const what = "credential.federation.exchange"
	entries := c.entries(n, what)
	if entries == nil {
		return
	}
	if entries["as"] == nil {
		c.at(n, "%s needs as, such as %s", what, exchangeWays[0].example)
		return
	}
	var names []string
	for _, way := range exchangeWays {
		names = append(names, way.as)
	}
	as := c.oneOf(entries["as"], what+".as", names...)
	i := slices.Index(names, as)
	if i < 0 {
		return
	}
	way := exchangeWays[i]
	c.onlyKeys(n, what+" with as: "+as, slices.Concat([]string{"as"}, way.needs, way.may))
	for _, key := range way.needs {
		if entries[key] == nil {
			c.at(n, "%s with as: %s requires %s; example: %s", what, as, key, way.example)
			return
		}
	}
	member := func(key string, syntax *regexp.Regexp) string { return c.sendText(entries[key], what+"."+key, syntax) }
	out := &c.out.Federation.Exchange
	*out = Exchange{
		As: as, Region: member("region", sendAWSSyntax),
		Tenant: member("tenant", exchangeIDSyntax), Client: member("client", exchangeIDSyntax), Scope: member("scope", exchangeScopeSyntax),
		Organization: member("organization", exchangeIDSyntax), Rule: member("rule", exchangeIDSyntax),
		Workspace: member("workspace", exchangeIDSyntax), IdentityProvider: member("identity_provider", exchangeIDSyntax),
	}
	if entries["role"] != nil {
		out.Role, c.recipe.exchangeRole = c.template(entries["role"], what+".role", &rolePathPlace, c.params)
	}
	if entries["service_account"] != nil {
		out.ServiceAccount, c.recipe.exchangeAccount = c.template(entries["service_account"], what+".service_account", way.serviceAccountPlace(), c.params)
	}
	standard := way.url
	if as == ExchangeAWS {
		standard = "https://sts." + out.Region + ".amazonaws.com"
		if strings.HasPrefix(out.Region, "cn-") {
			standard += ".cn"
		}
	}
	out.URL = c.origin(entries["url"], what+".url", standard)
	if as == ExchangeGoogle {
		out.IAM = c.origin(entries["iam_url"], what+".iam_url", googleIAM)
		out.Scopes = []string{googleScope}
		if list := entries["scopes"]; list != nil {
			out.Scopes = nil
			for i, item := range c.listOf(list, what+".scopes", maxExchangeScopes, "OAuth scopes, such as "+googleScope) {
				out.Scopes = append(out.Scopes, c.sendText(item, fmt.Sprintf("%s.scopes[%d]", what, i), exchangeScopesSyntax))
			}
		}
		if !googleAudience.MatchString(c.out.Audience) {
			c.at(c.fields["audience"], "credential.audience must be the name of the identity provider in Google Cloud if exchange has as: google, such as "+
				"//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/agents/providers/brevet")
		}
	}
	if as == ExchangeAzure && c.out.Federation.Algorithm != AlgorithmRS256 {
		c.at(n, "credential.federation.algorithm must be RS256 if exchange has as: azure: Microsoft Entra accepts no other")
	}
}

// origin reads the origin of a system to which tokens are sent.
func (r *reader) origin(n *yaml.Node, what, standard string) string {
	if n == nil {
		return standard
	}
	text, ok := r.text(n, what)
	if !ok {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || !exchangeURLSyntax.MatchString(text) || u.Hostname() == "" || u.Scheme == "http" && !isLoopback(u.Hostname()) {
		r.at(n, "%s %q must be an https URL without user, path and query, such as https://sts.example; http only with a loopback address", what, text)
	}
	return text
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// exchange fills the parameters into the exchange of a scope.
func (d *definition) exchange(params map[string]any) (Exchange, *InvalidAsk) {
	out := d.scope.Credential.Federation.Exchange.clone()
	var bad *InvalidAsk
	if out.Role != "" {
		if out.Role, bad = d.recipe.exchangeRole.render(params); bad != nil {
			return Exchange{}, bad
		}
	}
	if out.ServiceAccount != "" {
		if out.ServiceAccount, bad = d.recipe.exchangeAccount.render(params); bad != nil {
			return Exchange{}, bad
		}
	}
	return out, nil
}

func exchangeSchema() object {
	id, origin := matching(exchangeIDSyntax), matching(exchangeURLSyntax)
	scope, item := matching(exchangeScopeSyntax), matching(exchangeScopesSyntax)
	scope["maxLength"], item["maxLength"] = maxSendText, maxSendText
	var ways []object
	for _, way := range exchangeWays {
		ways = append(ways, variant("as", way.as, way.needs, way.may, object{
			"url":               described("The origin of the token endpoint, if it is not the usual one.", origin),
			"role":              described("The ARN of the role to assume; its path and name may have parameters.", rolePathPlace.schema()),
			"region":            described("The region of the AWS token service, such as eu-central-1.", matching(sendAWSSyntax)),
			"service_account":   described("The service account that the result is for. Google Cloud: its e-mail address, to impersonate it.", way.serviceAccountPlace().schema()),
			"scopes":            described("OAuth scopes of the result. Default "+googleScope+".", listOf(item, 1, maxExchangeScopes)),
			"iam_url":           described("The origin of the API that impersonates. Default "+googleIAM+".", origin),
			"tenant":            described("The tenant's id or domain.", id),
			"client":            described("The client id of the application.", id),
			"scope":             described("The resource, followed by /.default, such as https://storage.azure.com/.default.", scope),
			"organization":      described("The organization's id.", id),
			"rule":              described("The id of the federation rule.", id),
			"workspace":         described("The id of the workspace. Default: the rule's own.", id),
			"identity_provider": described("The id of the workload identity provider.", id),
		}))
	}
	return object{"oneOf": ways}
}
