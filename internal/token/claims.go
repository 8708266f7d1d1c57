package token

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Type is the typ of an access token's header (RFC 9068, section 2.1).
const Type = "at+jwt"

// Claims is the payload of an access token: RFC 9068, with the grant in RFC 9396 form, the task, and the key that it is
// bound to where the scope asks for that. Times are whole seconds since 1970.
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
	// OneShot: only the first who asks at introspection finds it in force, and nobody may accept it without having asked.
	OneShot bool     `json:"one_shot,omitempty"`
	Confirm *Confirm `json:"cnf,omitempty"`
	Actor   *Actor   `json:"act,omitempty"`
	// Status says where it is told whether the token was ended; nil when only introspection tells.
	Status *Status `json:"status,omitempty"`
	// OnBehalfOf is the person on whose behalf it was asked for. The subject is the sandbox all the same.
	OnBehalfOf *Person `json:"on_behalf_of,omitempty"`
}

// Person is somebody as their OpenID provider names them.
type Person struct {
	Issuer  string `json:"iss"`
	Subject string `json:"sub"`
}

// ExpiresAt is when the token ends: at that moment it is not valid any more.
func (c Claims) ExpiresAt() time.Time { return time.Unix(c.Expires, 0).UTC() }

// Actor is who acts for the subject (RFC 8693, section 4.1), and for whom before it.
type Actor struct {
	Subject string `json:"sub"` // SPIFFE ID
	Actor   *Actor `json:"act,omitempty"`
}

// Holder is whose token it is: the outermost actor, and else the subject.
func (c Claims) Holder() string {
	if c.Actor != nil {
		return c.Actor.Subject
	}
	return c.Subject
}

// Actors is how often the subject's token was handed down.
func (c Claims) Actors() int {
	n := 0
	for a := c.Actor; a != nil; a = a.Actor {
		n++
	}
	return n
}

// Detail grants one scope: its name is the type, its authority class the action, the rendered resource the identifier.
// In claims that were verified the numbers among Params are json.Number, as they were signed.
type Detail struct {
	Type       string         `json:"type"`
	Actions    []string       `json:"actions"`
	Locations  []string       `json:"locations"`
	Identifier string         `json:"identifier"`
	Params     map[string]any `json:"params,omitempty"`
}

// Confirm is the key that a token is bound to (RFC 7800). Whoever presents the token has to prove all of it.
type Confirm struct {
	X5T string `json:"x5t#S256,omitempty"` // of the client's certificate (RFC 8705)
	JKT string `json:"jkt,omitempty"`      // of the key of its DPoP proofs (RFC 9449)
}

// Presented is what the presenter of a token has proved to hold, each empty when it did not.
type Presented struct {
	X5T string // base64url SHA-256 of the certificate of its TLS connection
	JKT string // RFC 7638 thumbprint of the key of its DPoP proof, once that was checked against the token
}

// Bound is nil when what was presented satisfies the token's cnf, else ErrBinding. A proof for a token that is not bound
// to its key is refused too (RFC 9449, section 7.1): somebody else's token would pass for the prover's own.
func (c Claims) Bound(p Presented) error {
	bound := Confirm{}
	if c.Confirm != nil {
		bound = *c.Confirm
		if bound == (Confirm{}) {
			return ErrBinding // by what we cannot check
		}
	}
	if bound.X5T != "" && bound.X5T != p.X5T || bound.JKT != p.JKT {
		return ErrBinding
	}
	return nil
}

// received is Claims as they are read, with what only restricts.
type received struct {
	Claims
	NotBefore int64 `json:"nbf"`
}

// numbers keeps a number as it was written: as a float64 a large one would become another.
var numbers = strict.WithUnmarshalers(strict.UnmarshalFromFunc(func(d *jsontext.Decoder, v *any) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported // the usual way
	}
	text, err := d.ReadValue()
	*v = json.Number(text)
	return err
}))

// parseClaims reads a payload in its only reading: no duplicate members, names with their case, numbers that are whole
// where they have to be. Members that we do not know are ignored (RFC 9068, section 2.2).
func parseClaims(payload []byte) (received, error) {
	var c received
	if err := strict.Unmarshal(payload, &c, numbers); err != nil {
		return received{}, ErrMalformed // its text quotes the payload
	}
	if slices.Contains([]string{c.Issuer, c.Subject, c.ClientID, c.Audience, c.ID}, "") {
		return received{}, ErrMalformed
	}
	if c.IssuedAt <= 0 || c.Expires <= c.IssuedAt || c.Expires > maxUnixTime {
		return received{}, ErrMalformed
	}
	return c, nil
}

// maxUnixTime is the end of the year 9999. It keeps times within what RFC 3339 can print.
const maxUnixTime = 253402300799
