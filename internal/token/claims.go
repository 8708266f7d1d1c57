package token

import (
	"encoding/json"
	"errors"
	"time"

	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Type is the typ header of an access token (RFC 9068, section 2.1).
const Type = "at+jwt"

// Claims is the payload of an access token: the claims of RFC 9068, the grant in RFC 9396 form, the task and, if the
// scope requires it, the key that the token is bound to. Times are whole seconds since 1970.
type Claims struct {
	Issuer   string   `json:"iss"`
	Subject  string   `json:"sub"` // SPIFFE ID
	ClientID string   `json:"client_id"`
	Audience string   `json:"aud"`
	IssuedAt int64    `json:"iat"`
	Expires  int64    `json:"exp"`
	ID       string   `json:"jti"`
	Scope    string   `json:"scope"`
	Task     string   `json:"task"`
	Details  []Detail `json:"authorization_details"`
	// OneShot means that only the first introspection finds the token active. Nobody may accept it without introspection.
	OneShot bool     `json:"one_shot,omitempty"`
	Confirm *Confirm `json:"cnf,omitempty"`
	Actor   *Actor   `json:"act,omitempty"`
	// Status says where to check whether the token was revoked; nil if only introspection reports it.
	Status *Status `json:"status,omitempty"`
	// OnBehalfOf is the person whom the sandbox acts for. The subject is still the sandbox.
	OnBehalfOf *Person `json:"on_behalf_of,omitempty"`
}

// FederatedType is the typ header of a token for the token exchange of another system. It differs from Type, so that no
// resource server of ours, and no introspection, accepts such a token: its subject is not the sandbox.
const FederatedType = "JWT"

// FederatedClaims is the payload of a token for the token exchange of another system. Only its issuer, subject and audience
// identify the sandbox there; the other system can record the rest.
type FederatedClaims struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"` // rendered from the scope's template
	Audience  string `json:"aud"`
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expires   int64  `json:"exp"`
	ID        string `json:"jti"`
	ClientID  string `json:"client_id"` // SPIFFE ID of the sandbox
	Scope     string `json:"scope"`
	Task      string `json:"task"`
}

// Person is a person as identified by their OpenID provider.
type Person struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// ExpiresAt returns the time at which the token expires. At that moment it is no longer valid.
func (c Claims) ExpiresAt() time.Time { return time.Unix(c.Expires, 0).UTC() }

// Actor is the party that acts for the subject (RFC 8693, section 4.1), with the actors before it.
type Actor struct {
	Subject string `json:"sub"` // SPIFFE ID
	Actor   *Actor `json:"act,omitempty"`
}

// Holder returns who holds the token: the outermost actor, or the subject if there is no actor.
func (c Claims) Holder() string {
	if c.Actor != nil {
		return c.Actor.Subject
	}
	return c.Subject
}

// Actors returns how many times the subject's token was exchanged for another holder.
func (c Claims) Actors() int {
	n := 0
	for a := c.Actor; a != nil; a = a.Actor {
		n++
	}
	return n
}

// Detail grants one scope. Type is the scope's name, Actions its authority class and Identifier its rendered resource. In
// verified claims, the numbers in Params are json.Number, exactly as they were signed.
type Detail struct {
	Type       string         `json:"type"`
	Actions    []string       `json:"actions"`
	Locations  []string       `json:"locations"`
	Identifier string         `json:"identifier"`
	Params     map[string]any `json:"params,omitempty"`
}

// Confirm is the key that a token is bound to (RFC 7800). The presenter of the token must prove every member.
type Confirm struct {
	X5T string `json:"x5t#S256,omitempty"` // thumbprint of the client's certificate (RFC 8705)
	JKT string `json:"jkt,omitempty"`      // thumbprint of the key of its DPoP proofs (RFC 9449)
}

// Presented is what the presenter of a token has proved to hold. A field is empty if nothing was proved.
type Presented struct {
	X5T string // base64url SHA-256 of the certificate of its TLS connection
	JKT string // RFC 7638 thumbprint of the key of its DPoP proof, once the proof was checked against the token
}

// Bound returns nil if what was presented satisfies the token's cnf, else ErrBinding. It also refuses a proof for a token
// that is not bound to the proof's key (RFC 9449, section 7.1): otherwise another caller's token would pass for the
// prover's.
func (c Claims) Bound(p Presented) error {
	bound := Confirm{}
	if c.Confirm != nil {
		bound = *c.Confirm
		if bound == (Confirm{}) {
			return ErrBinding // bound by a method that we cannot check
		}
	}
	if bound.X5T != "" && bound.X5T != p.X5T || bound.JKT != p.JKT {
		return ErrBinding
	}
	return nil
}

// received is Claims as read, with the claims that only restrict validity.
type received struct {
	Claims
	NotBefore int64 `json:"nbf"`
}

// numbers keeps a number as written, because a float64 would change a large one.
var numbers = strict.WithUnmarshalers(strict.UnmarshalFromFunc(func(d *jsontext.Decoder, v *any) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported // use the default
	}
	text, err := d.ReadValue()
	*v = json.Number(text)
	return err
}))

// maxUnixTime is the end of the year 9999. It keeps times within what RFC 3339 can represent.
const maxUnixTime = 253402300799
