package broker

import (
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Request is one ask of a sandbox. Who asks is not in it: the identity comes from the SVID alone.
type Request struct {
	Scope  string
	Params map[string]any
	// TTL is how long the credential should live; zero asks for the scope's default.
	TTL  time.Duration
	Task string
	// Reason is free text from the sandbox: shown to people as untrusted, recorded, never evaluated.
	Reason string
	// IdempotencyKey makes a repeated request answer once; empty means that each call is its own.
	IdempotencyKey string
}

// Status is where a request stands. It only moves forward.
type Status string

// The states of a request that this version reaches. A JWT is fully determined before it is signed, so
// committing its intent counts as issuing it: should the signature then fail, the state moves on to
// StatusFailed, and until then the record errs on the side of having issued.
const (
	StatusDenied  Status = "denied"
	StatusPending Status = "pending"
	StatusIssued  Status = "issued"
	StatusFailed  Status = "failed"
)

// Subject is who a record is about, as attested.
type Subject struct {
	ID   spiffeid.ID
	Kind attest.Kind
	// Thumbprint is the certificate's, as in RFC 8705 x5t#S256; empty for a JWT-SVID.
	Thumbprint string
}

// Intent says exactly which credential will be minted, before it is.
type Intent struct {
	Kind     string // "jwt"
	Audience string
	// KeyID is the RFC 7638 thumbprint of the signing key, Algorithm its JWS name.
	KeyID     string
	Algorithm string
	// Claims is the JWT's payload, byte for byte. It holds no secret: without a signature it opens nothing.
	Claims []byte
	// ClaimsDigest is the SHA-256 of Claims.
	ClaimsDigest [32]byte
}

// Record is one decided request, with the intent when it was allowed: what the ledger keeps for good.
type Record struct {
	// ID is a UUIDv7. It names the request, the issuance and the credential (jti) alike.
	ID       string
	Time     time.Time
	Subject  Subject
	Request  Request
	Decision scopes.Decision
	Status   Status
	// Expires is when the credential, or the wait for approval, ends; zero for a denial.
	Expires time.Time
	Intent  *Intent
	// Limits are what the request counts against.
	Limits []Limit
	// Digest is the SHA-256 of the request's canonical form, by which a repeated idempotency key is judged.
	Digest [32]byte
}

// Outcome moves a record to its next state.
type Outcome struct {
	ID     string
	Time   time.Time
	Status Status
	// Detail is a fixed code that says why, such as "vault_unavailable".
	Detail string
}

// Refusal is a call that never became a request: a failed attestation or input that was not understood.
type Refusal struct {
	Time time.Time
	// Code is the fixed problem code the caller was answered with, Detail the fixed code of the finding.
	Code, Detail string
	// Subject is who called, when that much was proven.
	Subject *Subject
	// Remote is the network address of the caller, Operation the API operation it called.
	Remote, Operation string
	// Suppressed counts the refusals since the last recorded one that were over the recording rate.
	Suppressed int
}
