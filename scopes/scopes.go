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
	Limits     []Limit   // each Per at most once
	Credential Credential
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
}

// Limit bounds how often a scope is given. Decide does not know of it: whoever
// records a decision counts, since only there are all replicas seen.
type Limit struct {
	Per    string        // what is counted on its own, one of the Per constants
	Count  int           // how many in one go
	Window time.Duration // the time in which Count more become free, evenly; whole seconds
}

// String is the limit in words, such as "60 in 1h per sandbox".
func (l Limit) String() string {
	return fmt.Sprintf("%d in %s per %s", l.Count, short(l.Window), strings.ReplaceAll(l.Per, "_", " "))
}

// What a limit can be counted per. Each is within one trust domain, so that no
// trust domain uses up what another one has.
const (
	PerSandbox     = "sandbox"
	PerTask        = "task" // of one sandbox, which names its tasks itself
	PerTrustDomain = "trust_domain"
)

// Credential says what is minted for a scope.
type Credential struct {
	Kind     string // "jwt"
	Audience string // the one audience of the token, an absolute URI
	Bind     string // "none" or "mtls" (RFC 8705)
}

// The ways a credential can be bound to its holder, and the values of
// context.binding in a policy.
const (
	BindNone = "none"
	BindMTLS = "mtls"
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
	return &c
}

func (a *Approval) clone() *Approval {
	if a == nil {
		return nil
	}
	c := *a
	return &c
}
