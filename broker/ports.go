package broker

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/secret"
)

// Ledger keeps every decision for good. All methods are safe for concurrent use, across replicas too.
// A method that cannot reach the store returns an error that is ErrLedgerUnavailable.
type Ledger interface {
	// Begin returns nil only after the record is durably committed. When the subject has used the record's
	// idempotency key before it commits nothing and returns the earlier record, else nil.
	// When the record is over one of its limits it commits nothing and returns a *Limited. What it commits counts
	// against all of them, in the same commit.
	// Any other error leaves it open whether the record exists: the caller must not mint.
	Begin(ctx context.Context, rec Record) (earlier *View, err error)
	// Settle records the outcome of a begun record. A move that is not forward is an error and changes nothing.
	Settle(ctx context.Context, out Outcome) error
	// Refuse records a call that never became a request.
	Refuse(ctx context.Context, ref Refusal) error
	// Get returns one record within reach, else ErrNotFound.
	Get(ctx context.Context, id string, reach Reach) (*View, error)
	// List returns the records within reach that match, newest first.
	List(ctx context.Context, q Query, reach Reach) (Page, error)
}

// Minter makes credentials through Vault.
type Minter interface {
	// Key returns the key that a JWT minted now is to be signed with.
	// It answers from memory; ErrVaultUnavailable when no key is known.
	Key() (Key, error)
	// Mint redeems the order and returns exactly the credential that its intent names. It asks Vault at most
	// once. Errors are ErrVaultUnavailable, ErrMintMismatch or ErrOrderSpent; after any of them no credential
	// is to be delivered.
	Mint(ctx context.Context, order *Order) (Credential, error)
}

// Key names one version of the signing key.
type Key struct {
	ID        string // RFC 7638 thumbprint
	Algorithm string // JWS algorithm: "ES256" or "EdDSA"
	Version   int    // Vault's key version
}

// Credential is what is handed over, once.
type Credential struct {
	Secret secret.Text
}

// View is a record as it is read back: the record, its latest state, and its place in the ledger.
type View struct {
	ID             string
	Index          int64 // of the entry that recorded the decision
	Time           time.Time
	Subject        Subject
	Task           string
	Scope          string
	Authority      string // empty when the scope was unknown
	Resource       string
	Params         map[string]any
	Reason         string
	TTLAsked       time.Duration // zero when the default was asked for
	TTL            time.Duration
	Decision       string // allow, deny, pending
	DecisionCode   string
	Explanation    string
	Policies       []string
	Clamps         []string
	Catalogue      string
	Status         Status
	StatusDetail   string
	StatusTime     time.Time
	Expires        time.Time
	ApprovalGroup  string
	ApprovalQuorum int
	CredentialKind string
	Audience       string
	KeyID          string
	ClaimsDigest   string // hex
	RequestDigest  [32]byte
}

// Reach limits what a reader may see. It is never empty: the zero value reaches nothing.
type Reach struct {
	// Subject, when set, reaches that sandbox's own records only.
	Subject string
	// TrustDomains reaches all records of these trust domains.
	TrustDomains []string
}

// Query narrows a List. Zero fields do not narrow.
type Query struct {
	SPIFFEID       string
	SPIFFEIDPrefix string // a path prefix that ends on a segment boundary
	TrustDomain    string
	Scope          string
	Task           string
	Decision       string
	Status         Status
	Since, Until   time.Time // Since is inclusive, Until exclusive
	// Limit is the page size, 1 to 500.
	Limit int
	// Before continues after the record with this index: only smaller indexes follow. Zero starts at the newest.
	Before int64
}

// Page is one page of a List. Next is the Before of the following page, zero at the end.
type Page struct {
	Records []View
	Next    int64
}
