// Package scopes holds what a sandbox may ask for and decides each ask.
//
// A Catalogue is one immutable version of all scopes (YAML) and policies
// (Cedar), named by one digest. Load refuses a catalogue with any mistake in
// it: policies are validated strictly against a schema that is generated from
// the scopes, so a typo is found when the catalogue is loaded. Decide says
// allow, deny or pending, and why.
//
// The package must never read a clock, a file, the network or a context: the
// same catalogue, subject, ask and time give the same decision, always. It must
// never allow when any policy failed to evaluate, never let a field of an ask
// change who is asking, and never give a longer TTL than any bound.
package scopes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Authority is the class of a scope: how much harm its credential can do.
type Authority string

// The authority classes, from the least harm to the most.
const (
	Read       Authority = "read"
	Draft      Authority = "draft"
	Write      Authority = "write"
	Delete     Authority = "delete"
	Payment    Authority = "payment"
	Permission Authority = "permission"
)

var authorities = []Authority{Read, Draft, Write, Delete, Payment, Permission}

// Rank orders authorities: 0 for read, 5 for permission, -1 for anything else.
func (a Authority) Rank() int { return slices.Index(authorities, a) }

// Scope is one action that an admin has defined. Values handed out by a
// Catalogue are copies: changing one changes no decision.
type Scope struct {
	Name       string
	Title      string
	Authority  Authority
	Params     map[string]Param
	Resource   string // template such as github:repo/{repo}
	TTL        TTL
	Approval   *Approval // nil when no person can be asked
	Limits     []Limit   // each Per at most once as a rate and once as a number alive
	Credential Credential
	Egress     []Egress // the calls that a gateway lets pass with such a credential; none when it is empty
}

// TTL bounds the life of a credential, in whole seconds.
type TTL struct {
	Default time.Duration // when the ask names none
	Max     time.Duration // longer asks are clamped to it
}

// Approval says who could turn a denied ask into a permitted one.
type Approval struct {
	Group   string        // the group whose members may vote
	Quorum  int           // how many distinct people must say yes
	Expires time.Duration // how long the ask waits for them
	// Remember is RememberTask when approvers may have their yes count for the same ask again while the task goes on,
	// else RememberNever.
	Remember string
	// BreakGlass is another group, of which BreakGlassQuorum people may stand in for Group in an emergency; empty when
	// nobody may.
	BreakGlass string
	// Passkey is PasskeyRequired when a yes counts only with a passkey's signature of what is approved, else PasskeyNever.
	Passkey string
}

// What breaking the glass takes, and how long what is issued then lives at most. No scope can change either.
const (
	BreakGlassQuorum = 2
	BreakGlassTTL    = 30 * time.Minute
)

// What an approval can be remembered for.
const (
	RememberNever = "never"
	RememberTask  = "task"
)

// Whether a yes has to be signed by a passkey of the person who says it.
const (
	PasskeyNever    = "never"
	PasskeyRequired = "required"
)

// Limit bounds how often a scope is given, or how many of its credentials are
// alive at a time. Decide does not know of it: whoever records a decision
// counts, since only there are all replicas seen.
type Limit struct {
	Per    string        // what is counted on its own, one of the Per constants
	Count  int           // how many in one go; 0 when Live is set
	Window time.Duration // the time in which Count more become free, evenly; whole seconds
	Live   int           // how many may be alive at a time; 0 when it is a rate
}

// String is the limit in words, such as "60 in 1h per sandbox" or "5 at a time
// per sandbox".
func (l Limit) String() string {
	per := strings.ReplaceAll(l.Per, "_", " ")
	if l.Live > 0 {
		return fmt.Sprintf("%d at a time per %s", l.Live, per)
	}
	return fmt.Sprintf("%d in %s per %s", l.Count, short(l.Window), per)
}

// What a limit can be counted per. Each is within one trust domain, so that no
// trust domain uses up what another one has.
const (
	PerSandbox     = "sandbox"
	PerTask        = "task" // of one sandbox, which names its tasks itself
	PerTrustDomain = "trust_domain"
)

// Credential says what is minted for a scope. Which fields are set depends on
// the kind; texts may be templates such as {repo}.
type Credential struct {
	Kind string // one of the Kind constants

	// jwt
	Audience string // the one audience of the token, an absolute URI
	Bind     string // what the token has to be bound to: "none", "mtls" (RFC 8705) or "dpop" (RFC 9449)
	OneShot  bool   // the token is good for one call
	// StatusList has the token name a list in which it can be seen whether it was ended.
	StatusList bool

	Mount      string            // database, pki, ssh: where the engine is mounted; never a template
	Role       string            // database, pki, ssh: the engine's role
	Path       string            // kv, vault: what is read or written
	Method     string            // vault: MethodRead or MethodWrite
	Data       map[string]string // vault: what is written
	Static     bool              // vault: the engine gives no lease. Always true for kv
	CommonName string            // pki
	DNSNames   []string          // pki: besides the common name
	ServerKey  bool              // pki: Vault makes the key, instead of certifying the caller's
	Principals []string          // ssh: one or more
	Policy     []Rule            // vault-token
	// WithinSVID ends the credential with the SVID that it was asked for with, at
	// the latest. For a JWT, Bind says so.
	WithinSVID bool
}

// Summary is the kind and what it is about, on one line, for lists that people
// read: "database database/creds/{env}-ro".
func (c Credential) Summary() string {
	about := map[string]string{
		KindJWT: c.Audience, KindKV: c.Path, KindVault: c.Path,
		KindDatabase: c.Mount + "/creds/" + c.Role, KindPKI: c.Mount + "/sign/" + c.Role, KindSSH: c.Mount + "/sign/" + c.Role,
	}[c.Kind]
	switch {
	case c.Kind == KindVaultToken:
		paths := make([]string, len(c.Policy))
		for i, r := range c.Policy {
			paths[i] = r.Path
		}
		about = strings.Join(paths, ", ")
	case c.ServerKey:
		about = c.Mount + "/issue/" + c.Role
	case c.Static:
		about += " (static)"
	}
	return c.Kind + " " + about
}

// The kinds of credentials.
const (
	KindJWT        = "jwt"         // signed by Vault's Transit engine
	KindVaultToken = "vault-token" // with a policy of the scope's own
	KindDatabase   = "database"    // a login of the database engine
	KindPKI        = "pki"         // an X.509 certificate
	KindSSH        = "ssh"         // an OpenSSH user certificate
	KindKV         = "kv"          // a secret that somebody stored: static
	KindVault      = "vault"       // whatever another engine gives at a path
)

// Leased tells whether Vault can end such a credential before its time.
func (c Credential) Leased() bool {
	switch c.Kind {
	case KindVaultToken, KindDatabase, KindPKI:
		return true
	case KindVault:
		return !c.Static
	default:
		return false
	}
}

// The ways in which Vault is asked.
const (
	MethodRead  = "read"
	MethodWrite = "write"
)

// Rule is what a Vault token may do at a path.
type Rule struct {
	Path         string
	Capabilities []string
}

// Grant is a credential template filled in: what Vault will be asked for. It
// holds no secret.
type Grant struct {
	// Policy is the Vault policy that the token which asks is limited to, from
	// VaultPolicies.
	Policy string
	// Method and Path are empty for a Vault token, which is the credential itself.
	Method string
	Path   string
	// Data is what is written, besides the lifetime: strings, and lists of them
	// joined by commas where Vault takes such.
	Data map[string]string
	// Leased and Static are as the scope's credential.
	Leased, Static bool
}

// VaultPolicy is a policy that has to be in Vault before the catalogue is used.
// Its name holds a digest of its text, so that one that is missing or of another
// version grants nothing.
type VaultPolicy struct{ Name, Text string }

// The ways a credential can be bound to its holder, and the values of
// context.binding in a policy.
const (
	BindNone = "none"
	BindMTLS = "mtls"
	BindDPoP = "dpop"
)

// ParamType is the type of a parameter.
type ParamType string

// The parameter types. Each is a type of its own in the Cedar schema: String
// for string and enum, Long for int, Bool for bool.
const (
	ParamString ParamType = "string"
	ParamEnum   ParamType = "enum"
	ParamInt    ParamType = "int"
	ParamBool   ParamType = "bool"
)

// Param is the definition of one parameter. Every parameter of a scope has to
// be in an ask.
type Param struct {
	Type      ParamType
	Pattern   string   // string: RE2, matches the whole value
	MaxLength int      // string: in bytes
	Values    []string // enum: the values, in the catalogue's order
	Min, Max  int64    // int: both inclusive
}

// clone keeps callers from reaching into the catalogue that others decide with.
func (s *Scope) clone() *Scope {
	c := *s
	c.Params = maps.Clone(s.Params)
	for name, p := range c.Params {
		p.Values = slices.Clone(p.Values)
		c.Params[name] = p
	}
	c.Approval = s.Approval.clone()
	c.Limits = slices.Clone(s.Limits)
	c.Egress = slices.Clone(s.Egress)
	for i := range c.Egress {
		c.Egress[i] = c.Egress[i].clone()
	}
	c.Credential = s.Credential.clone()
	return &c
}

func (c Credential) clone() Credential {
	c.Data = maps.Clone(c.Data)
	c.DNSNames, c.Principals, c.Policy = slices.Clone(c.DNSNames), slices.Clone(c.Principals), slices.Clone(c.Policy)
	for i := range c.Policy {
		c.Policy[i].Capabilities = slices.Clone(c.Policy[i].Capabilities)
	}
	return c
}

func (a *Approval) clone() *Approval {
	if a == nil {
		return nil
	}
	c := *a
	return &c
}
