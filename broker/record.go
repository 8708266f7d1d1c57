package broker

import (
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/token"
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
	// CSR is a PEM certificate signing request and PublicKey an OpenSSH public key: the caller's own key, where the
	// scope certifies one.
	CSR, PublicKey string
	// JKT is the RFC 7638 thumbprint of the key that the caller has proved by DPoP (RFC 9449): a JWT is bound to it. Empty
	// when the caller sent no proof.
	JKT string
	// IdempotencyKey makes a repeated request answer once; empty means that each call is its own.
	IdempotencyKey string
	// Parent is the token that this one is handed down from; nil for none.
	Parent *token.Claims
	// User is the person on whose behalf the sandbox asks, as an ID token of theirs has proved; nil for nobody. The subject
	// is the sandbox all the same.
	User *scopes.User
	// Expect is neither decided upon nor recorded.
	Expect Expectation
}

// Status is where a request stands. It only moves forward.
type Status string

// The states of a request. A JWT is fully determined before it is signed, so committing its intent counts as
// issuing it: should the signature then fail, the state moves on to StatusFailed, and until then the record errs on
// the side of having issued. Everything else that Vault makes is StatusIntent until a second commit says what came
// of it.
const (
	StatusDenied  Status = "denied"
	StatusPending Status = "pending"
	// StatusApproved: as many people as it takes have said yes, and the sandbox may redeem it. StatusRedeemed: it has.
	StatusApproved Status = "approved"
	StatusRedeemed Status = "redeemed"
	// StatusRejected: a person has said no. StatusWithdrawn: the sandbox does not want it any more.
	StatusRejected  Status = "rejected"
	StatusWithdrawn Status = "withdrawn"
	// StatusIntent: recorded, and Vault is about to be asked.
	StatusIntent Status = "intent"
	StatusIssued Status = "issued"
	// StatusFailed: nothing was minted.
	StatusFailed Status = "failed"
	// StatusUnknown: Vault was asked and its answer is lost. What it may have made is not renewed, and dies.
	StatusUnknown Status = "unknown"
	// StatusCompensated: whatever a lost mint may have made is dead, and it was never delivered.
	StatusCompensated Status = "compensated"
	// StatusRevoking: inactive for everyone who asks here; Vault has not confirmed yet that it is dead.
	StatusRevoking Status = "revoking"
	// StatusRevoked and StatusReleased: dead before its time, by somebody else's will or by its holder's.
	StatusRevoked  Status = "revoked"
	StatusReleased Status = "released"
	// StatusUsed: a one-shot token, and somebody was told that it was in force.
	StatusUsed Status = "used"
	// StatusExpired: dead at its time. A leased credential's record says so once Vault confirms it; for other
	// credentials and for pending requests it is what a record reads as when its time has passed.
	StatusExpired Status = "expired"
)

// The causes of an early end, which the record keeps as the detail of the status.
const (
	CauseReleased    = "released"     // by its holder
	CauseTaskEnded   = "task_ended"   // by its holder, its orchestrator, or its deadline
	CauseRevoked     = "revoked"      // by an admin
	CauseQuarantined = "quarantined"  // by an admin
	CauseUndelivered = "undelivered"  // the answer did not reach the caller
	CauseOverdue     = "overdue"      // its time has passed, and Vault still holds it
	CauseGone        = "gone"         // found dead in Vault before its time
	CauseParentEnded = "parent_ended" // what it was handed down from has ended
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
	// ID and Expires are the record's.
	ID      string
	Expires time.Time
	Kind    string // one of the kinds of package scopes
	// Grant is what Vault is asked for. Nil for a JWT, which the fields below determine instead.
	Grant    *scopes.Grant
	Audience string
	// KeyID is the RFC 7638 thumbprint of the signing key, Algorithm its JWS name.
	KeyID     string
	Algorithm string
	// OneShot: it is StatusUsed after one use.
	OneShot bool
	// StatusList is the UUID of the list that tells whether it was ended, and StatusIndex its place there. Empty for none.
	StatusList  string
	StatusIndex int
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
	// Canonical is what people are shown of a request that waits for them, byte for byte; Approves is the request that
	// they have approved and that this record redeems.
	Canonical, Approves string
}

// Outcome moves a record to its next state.
type Outcome struct {
	ID     string
	Time   time.Time
	Status Status
	// Detail is a fixed code that says why, such as "vault_unavailable". Empty for StatusIssued, StatusExpired and StatusUsed.
	Detail string
	// Actor is the SPIFFE ID, or the id of the person, that caused it; empty when nobody but Brevet itself did.
	Actor string
	// Minted is set with StatusIssued; with StatusUnknown as far as it is known.
	Minted *Minted
	// Term is that of the sweeper that says so, who must still be the leader; zero for everybody else.
	Term int64
}

// VaultLease is what Vault knows a dynamic credential by. It is no secret: it opens nothing.
type VaultLease struct {
	Accessor string // of the token that the credential lives under; empty for what has none
	Lease    string // Vault's lease id; empty for what has none
}

// Minted says what Vault made. It holds no secret.
type Minted struct {
	VaultLease
	// Name is what the far side knows the credential by: the database user, the certificate's serial number, the
	// SSH certificate's key id, the token's display name.
	Name string
	// Digest is the SHA-256 of the secret, by which it can be recognised. Zero for a static secret, whose digest
	// could be guessed from.
	Digest [32]byte
	// Until is when it ends at the latest. Whole tells that it lives until then without being renewed, ShortLease that its
	// lease ends before that unless it is renewed too. None is recorded: what is renewed was minted a moment ago.
	Until             time.Time
	Whole, ShortLease bool
}

// Selector picks records that are alive. All the set fields have to match.
type Selector struct {
	ID             string
	SPIFFEID       string
	SPIFFEIDPrefix string // a path prefix that ends on a segment boundary
	TrustDomain    string
	Task           string
	Scope          string
	Catalogue      string // digest
}

// LiveCredential is a record whose credential is, or may be, alive.
type LiveCredential struct {
	ID         string
	Subject    string // SPIFFE ID
	Task       string
	Scope      string
	Kind       string
	Status     Status // intent, issued, unknown or revoking
	Detail     string // of revoking: the cause
	Actor      string // of revoking
	StatusTime time.Time
	Expires    time.Time
	VaultLease VaultLease
}

// The kinds of commands.
const (
	CommandTaskEnd          = "task.end"
	CommandQuarantineAdd    = "quarantine.add"
	CommandQuarantineRemove = "quarantine.remove"
	CommandRevoke           = "credentials.revoke"
)

// Command is somebody's order that concerns many records, or records to come. It is an entry of its own.
type Command struct {
	ID   string // a UUIDv7
	Time time.Time
	Kind string
	// Actor is who ordered it; nil when a deadline did.
	Actor *Actor
	// Target is what it concerns: SPIFFEID and Task for a task's end, SPIFFEID alone (which may be a path prefix or
	// "spiffe://" and a trust domain) for a quarantine, anything for a revocation.
	Target Selector
	// At is when a task ends; not after Time means now.
	At time.Time
	// Reason is free text of the actor.
	Reason string
	// Lifts is the command by which a quarantine stands that is to be lifted.
	Lifts string
}

// Quarantine is a standing order that sandboxes get nothing.
type Quarantine struct {
	SPIFFEID string // a SPIFFE ID, a path prefix of some, or "spiffe://" and a trust domain
	Since    time.Time
	Actor    string // a SPIFFE ID or a person
	Reason   string
	Command  string // by which it stands
	Index    int64  // of the command's entry: nothing of those sandboxes has begun after it
}

// Task is one task of one sandbox that has, or had, a deadline.
type Task struct {
	SPIFFEID, Task string
}

// EndedTaskRequest is a request that nobody can redeem any more, because its task has ended.
type EndedTaskRequest struct {
	ID     string
	Status Status // StatusPending or StatusApproved
	Votes  int
	// Actor is who ended the task: a SPIFFE ID or a person's id. It is empty when the task's deadline came.
	Actor string
}

// Refusal is a call that never became a request: a failed attestation or input that was not understood.
type Refusal struct {
	// ID names the record: the request id that the caller was told. The ledger makes one when it is empty.
	ID   string
	Time time.Time
	// Code is the fixed problem code the caller was answered with, Detail the fixed code of the finding.
	Code, Detail string
	// Subject is which workload called, Person the id of which person, when that much was proven.
	Subject *Subject
	Person  string
	// Remote is the network address of the caller, Operation the API operation it called.
	Remote, Operation string
	// Relayed: the call that was refused is somebody else's, whom the caller lets in or not. Such have a budget of their
	// own, because those who make them prove nothing.
	Relayed bool
	// Unsigned: a relayed call was refused without having shown anything that we have signed. Whoever reaches a gateway can
	// make such calls, so those of each Detail have a budget of their own, which is small.
	Unsigned bool
	// Suppressed counts the refusals since the last recorded one that were over the recording rate.
	Suppressed int
}
