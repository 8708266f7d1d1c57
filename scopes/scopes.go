// Package scopes defines what a sandbox may request and decides each request.
//
// A Catalogue is one immutable version of all scopes (YAML) and policies (Cedar), identified by one digest. Load rejects
// a catalogue that contains any mistake. It validates policies strictly against a schema generated from the scopes, so a
// typo is found when the catalogue is loaded. Decide returns allow, deny or pending, and the reason.
//
// The package must never read a clock, a file, the network or a context: the same catalogue, subject, request and time
// always give the same decision. It must never allow a request if any policy failed to evaluate, never let a field of a
// request change the caller's identity, and never return a TTL longer than any bound.
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

// The authority classes, from the least harmful to the most harmful.
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

// Scope is one action that an admin has defined. A Catalogue returns copies: changing one does not affect any decision.
type Scope struct {
	Name       string
	Title      string
	Authority  Authority
	Params     map[string]Param
	Resource   string // template such as github:repo/{repo}
	TTL        TTL
	Approval   *Approval // nil if no person can be asked
	Limits     []Limit   // each Per at most once as a rate and once as a live count
	Credential Credential
	Egress     []Egress // the calls that a gateway allows with such a credential; empty allows none
}

// TTL bounds the life of a credential, in whole seconds.
type TTL struct {
	Default time.Duration // used if the request sets none
	Max     time.Duration // a longer request is clamped to it
}

// Approval names the people who can turn a denied request into a permitted one.
type Approval struct {
	Group   string        // the group whose members may vote
	Quorum  int           // how many different people must approve
	Expires time.Duration // how long the request waits for approval
	// Remember is RememberTask if approvers may let their approval cover identical requests until the task ends, else
	// RememberNever.
	Remember string
	// BreakGlass is another group. BreakGlassQuorum of its members may approve in place of Group in an emergency. It is
	// empty if the scope has no break-glass group.
	BreakGlass string
	// Passkey is PasskeyRequired if an approval counts only with a passkey signature over what is approved, else
	// PasskeyNever.
	Passkey string
}

// The number of break-glass approvers, and the maximum TTL of what they approve. No scope can change either.
const (
	BreakGlassQuorum = 2
	BreakGlassTTL    = 30 * time.Minute
)

// How long an approval is remembered.
const (
	RememberNever = "never"
	RememberTask  = "task"
)

// Whether an approver has to sign the approval with a passkey.
const (
	PasskeyNever    = "never"
	PasskeyRequired = "required"
)

// Limit bounds how often a scope is granted, or how many of its credentials are live at once. Decide ignores limits. The
// code that records a decision enforces them, because only the record covers all replicas.
type Limit struct {
	Per    string        // what is counted separately: one of the Per constants
	Count  int           // the burst size; 0 if Live is set
	Window time.Duration // the time in which Count more become available, evenly; whole seconds
	Live   int           // how many may be live at once; 0 if the limit is a rate
}

// String describes the limit in words, such as "60 in 1h per sandbox" or "5 at a time per sandbox".
func (l Limit) String() string {
	per := strings.ReplaceAll(l.Per, "_", " ")
	if l.Live > 0 {
		return fmt.Sprintf("%d at a time per %s", l.Live, per)
	}
	return fmt.Sprintf("%d in %s per %s", l.Count, FormatDuration(l.Window), per)
}

// What a limit is counted per. Each is counted within one trust domain, so one trust domain cannot use up another's
// limit.
const (
	PerSandbox     = "sandbox"
	PerTask        = "task" // of one sandbox, which names its own tasks
	PerTrustDomain = "trust_domain"
)

// Credential defines what is minted for a scope. The kind determines which fields are set. A text may be a template such
// as {repo}. Of kind none, nothing is minted: the record of such a request is a permit for the calls of the egress rules.
type Credential struct {
	Kind string // one of the Kind constants

	// jwt
	Audience string // the one audience of the token, an absolute URI
	Bind     string // what the token must be bound to: "none", "mtls" (RFC 8705) or "dpop" (RFC 9449)
	// Algorithm is the JWS algorithm of the signature: ES256, or EdDSA (RFC 8037) if the audience accepts it. With a federation it is
	// empty.
	Algorithm string
	OneShot   bool // the token is good for one call
	// StatusList makes the token name a status list, which shows whether the token was revoked.
	StatusList bool
	// Federation makes the token one for another system's token exchange. Its zero value makes it an access token.
	Federation Federation

	Mount  string            // database, pki, ssh: the engine's mount path; never a template
	Role   string            // database, pki, ssh: the engine's role
	Path   string            // kv, vault: the path to read or write
	Method string            // vault: MethodRead or MethodWrite
	Data   map[string]string // vault: the data to write
	Static bool              // vault: the engine returns no lease. Always true for kv
	// Irrevocable means that another system accepts the credential until it expires, whatever Vault does with its lease. MinTTL is the
	// shortest life that the other system gives; zero if it has no minimum. Both are for kind vault only.
	Irrevocable bool
	MinTTL      time.Duration
	CommonName  string   // pki
	DNSNames    []string // pki: in addition to the common name
	ServerKey   bool     // pki: Vault generates the key instead of certifying the caller's
	Principals  []string // ssh: one or more
	Policy      []Rule   // vault-token

	// github
	App          string            // the App's name in the server's configuration
	Installation int64             // the id of the App's installation
	Repositories []string          // templates of full names, such as acme/{repo}; one or more
	Permissions  map[string]string // templates of read, write or admin, by GitHub's names of permissions; one or more

	// WithinSVID makes the credential end with the SVID of the request at the latest. For a JWT, Bind decides this.
	WithinSVID bool
}

// Federation describes a JWT that its holder exchanges at another system: a client assertion (RFC 7523) or a subject token
// (RFC 8693) for workload identity federation. Brevet and its resource servers never accept it.
type Federation struct {
	Subject   string // template of the claim sub; never empty if the credential has a federation
	Algorithm string // JWS algorithm: RS256 or ES256
	Exchange  Exchange
}

// The JWS algorithms of tokens. Every system that federates accepts RS256; some accept nothing else.
const (
	AlgorithmES256 = "ES256"
	AlgorithmEdDSA = "EdDSA"
	AlgorithmRS256 = "RS256"
)

// Federated reports whether the credential is a JWT for the token exchange of another system.
func (c Credential) Federated() bool { return c.Federation.Subject != "" }

// AccessToken reports whether the credential is an access token, which resource servers accept.
func (c Credential) AccessToken() bool { return c.Kind == KindJWT && !c.Federated() }

// Summary describes the kind and its target on one line, for lists that people read: "database database/creds/{env}-ro".
func (c Credential) Summary() string {
	about := map[string]string{
		KindJWT: c.Audience, KindKV: c.Path, KindVault: c.Path,
		KindDatabase: c.Mount + "/creds/" + c.Role, KindPKI: c.Mount + "/sign/" + c.Role, KindSSH: c.Mount + "/sign/" + c.Role,
		KindGitHub: strings.Join(c.Repositories, ", ") + " " + joinPermissions(c.Permissions),
	}[c.Kind]
	switch {
	case c.Kind == KindNone:
		return "no credential: opens hosts"
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
	case c.Irrevocable:
		about += " (irrevocable)"
	case c.Federated():
		about += " as " + c.Federation.Subject + " (federation)"
		if c.Federation.Exchange.As != "" {
			about += " for " + c.Federation.Exchange.String()
		}
	}
	return c.Kind + " " + about
}

// The kinds of credentials.
const (
	KindJWT        = "jwt"         // signed by Vault's Transit engine
	KindVaultToken = "vault-token" // with a policy specific to the scope
	KindDatabase   = "database"    // a login from the database engine
	KindPKI        = "pki"         // an X.509 certificate
	KindSSH        = "ssh"         // an OpenSSH user certificate
	KindKV         = "kv"          // a stored secret: static
	KindVault      = "vault"       // whatever another engine returns at a path
	KindGitHub     = "github"      // an installation access token of a GitHub App
	KindNone       = "none"        // no credential: a permit for calls that need none
)

// Leased reports whether Brevet can revoke such a credential before it expires.
func (c Credential) Leased() bool {
	switch c.Kind {
	case KindVaultToken, KindDatabase, KindPKI, KindGitHub:
		return true
	case KindVault:
		return !c.Static && !c.Irrevocable
	default:
		return false
	}
}

// How Vault is called.
const (
	MethodRead  = "read"
	MethodWrite = "write"
)

// Rule lists what a Vault token may do at a path.
type Rule struct {
	Path         string
	Capabilities []string
}

// Grant is a credential template with its values filled in: the request that Brevet will send to Vault. It holds no
// secret.
type Grant struct {
	// Policy names the Vault policy, one of VaultPolicies, of the token that calls Vault. For a Vault token it is the
	// policy of the credential itself.
	Policy string
	// Method and Path are empty for a Vault token, because the token itself is the credential.
	Method string
	Path   string
	// Data is what is written in addition to the lifetime. Its values are strings; where Vault takes a list, the items
	// are joined by commas.
	Data map[string]string
	// Leased and Static have the values of the scope's credential. A grant of kind vault that is neither is for a credential that
	// nobody can revoke, and MinTTL is the shortest life that the other system gives it.
	Leased, Static bool
	MinTTL         time.Duration
}

// VaultPolicy is a policy that must exist in Vault before the catalogue is used. Its name contains a digest of its text,
// so a missing policy, or one of another version, grants nothing.
type VaultPolicy struct{ Name, Text string }

// Scope returns the name of the scope that needs the policy.
func (p VaultPolicy) Scope() string {
	name := strings.TrimPrefix(p.Name, PolicyPrefix)
	return name[:max(0, strings.LastIndexByte(name, '.'))]
}

// The ways to bind a credential to its holder. They are also the values of context.binding in a policy.
const (
	BindNone = "none"
	BindMTLS = "mtls"
	BindDPoP = "dpop"
)

// ParamType is the type of a parameter.
type ParamType string

// The parameter types. In the Cedar schema, string and enum are String, int is Long and bool is Bool.
const (
	ParamString ParamType = "string"
	ParamEnum   ParamType = "enum"
	ParamInt    ParamType = "int"
	ParamBool   ParamType = "bool"
)

// Param is the definition of one parameter. A request must set every parameter of its scope.
type Param struct {
	Type      ParamType
	Pattern   string   // string: RE2, must match the whole value
	MaxLength int      // string: in bytes
	Values    []string // enum: the values, in catalogue order
	Min, Max  int64    // int: both inclusive
}

// clone makes a deep copy, so a caller cannot modify the catalogue that decisions use.
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
	for i, e := range c.Egress {
		e.Hosts, e.Methods, e.Paths, e.Databases = slices.Clone(e.Hosts), slices.Clone(e.Methods), slices.Clone(e.Paths), slices.Clone(e.Databases)
		e.Headers = slices.Clone(e.Headers)
		c.Egress[i] = e
	}
	out := &c.Credential
	out.Data = maps.Clone(out.Data)
	out.Federation.Exchange = out.Federation.Exchange.clone()
	out.DNSNames, out.Principals, out.Policy = slices.Clone(out.DNSNames), slices.Clone(out.Principals), slices.Clone(out.Policy)
	out.Repositories, out.Permissions = slices.Clone(out.Repositories), maps.Clone(out.Permissions)
	for i := range out.Policy {
		out.Policy[i].Capabilities = slices.Clone(out.Policy[i].Capabilities)
	}
	return &c
}

func (a *Approval) clone() *Approval {
	if a == nil {
		return nil
	}
	c := *a
	return &c
}
