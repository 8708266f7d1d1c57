package broker

import (
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Request is a request of a sandbox. It does not name the caller: the identity comes only from the SVID.
type Request struct {
	Scope  string
	Params map[string]any
	TTL    time.Duration // zero asks for the scope's default
	scopes.RequestContext
	// Reason is free text from the sandbox. It is recorded and shown to people as untrusted, and never evaluated.
	Reason string
	// CSR (PEM) and PublicKey (OpenSSH) hold the caller's own key, for scopes that certify one.
	CSR, PublicKey string
	// JKT is the RFC 7638 thumbprint of the key that the caller proved with DPoP (RFC 9449), to which a JWT is bound; or empty.
	JKT string
	// IdempotencyKey makes retries of a request return one result. If it is empty, each call is a separate request.
	IdempotencyKey string
	Parent         *token.Claims // the token that this request delegates, or nil
	// User is the person that the sandbox acts for, as proved by that person's ID token, or nil. The subject is always the sandbox.
	User   *scopes.User
	Expect Expectation // not part of the decision, and not recorded
}

// Status is the state of a request. It only moves forward.
type Status string

// The states of a request. The intent of a JWT fixes every byte but the signature, so committing the intent counts as issuing. If
// signing then fails, the state moves on to StatusFailed; until then the record claims too much rather than too little. A permit
// (KindNone) has nothing to mint, so it begins as issued too. Every other credential stays in StatusIntent until a second commit records
// the result.
const (
	StatusDenied  Status = "denied"
	StatusPending        = Status(approval.Pending)
	// StatusApproved: enough people have approved, and the sandbox may redeem the request. StatusRedeemed: it has done so.
	StatusApproved = Status(approval.Approved)
	StatusRedeemed = Status(approval.Redeemed)
	// StatusRejected: a person has denied the request. StatusWithdrawn: the sandbox has withdrawn it.
	StatusRejected  = Status(approval.Rejected)
	StatusWithdrawn = Status(approval.Withdrawn)
	// StatusVoid: another catalogue came into force while the request was pending or approved. Nobody can decide on the request or redeem
	// it any more.
	StatusVoid = Status(approval.Void)
	// StatusIntent: the intent is recorded, and Vault will be asked next.
	StatusIntent Status = "intent"
	StatusIssued Status = "issued"
	// StatusFailed: nothing was minted.
	StatusFailed Status = "failed"
	// StatusUnknown: Vault was asked, and its response was lost. Whatever Vault made is not renewed, and expires.
	StatusUnknown Status = "unknown"
	// StatusCompensated: whatever a lost mint made is dead, and was never delivered.
	StatusCompensated Status = "compensated"
	// StatusRevoking: Brevet reports the credential as inactive, but Vault has not confirmed yet that it is dead.
	StatusRevoking Status = "revoking"
	// StatusRevoked and StatusReleased: the credential ended before it expired. Its holder released it, or others revoked it.
	StatusRevoked  Status = "revoked"
	StatusReleased Status = "released"
	// StatusUsed: the token was one-shot, and Brevet has confirmed it to one caller.
	StatusUsed Status = "used"
	// StatusExpired: the credential has expired. The record of a leased credential says so once Vault confirms it. Other
	// credentials and pending requests read as expired once their time has passed.
	StatusExpired Status = "expired"
)

// The causes of an early end. The record keeps them as the detail of the status.
const (
	CauseReleased    = "released"     // by its holder
	CauseTaskEnded   = "task_ended"   // by its holder, its orchestrator or its deadline
	CauseRevoked     = "revoked"      // by an admin
	CauseQuarantined = "quarantined"  // by an admin
	CauseUndelivered = "undelivered"  // the response did not reach the caller
	CauseOverdue     = "overdue"      // it has expired, but Vault still holds it
	CauseGone        = "gone"         // it vanished from Vault before it expired
	CauseParentEnded = "parent_ended" // the token that it was delegated from has ended
)

// Subject is the attested workload that a record is about.
type Subject struct {
	ID         spiffeid.ID
	Kind       attest.Kind
	Thumbprint string // of the certificate, as in RFC 8705 x5t#S256; empty for a JWT-SVID
}

// Intent describes exactly the credential to mint. It is recorded before the mint.
type Intent struct {
	ID      string    // that of the record
	Expires time.Time // that of the record
	Kind    string    // one of the kinds of package scopes
	// Grant is what to ask Vault for. It is nil for a JWT, which the fields below describe instead, and for a permit (KindNone), which
	// has none of them.
	Grant     *scopes.Grant
	Audience  string
	KeyID     string // RFC 7638 thumbprint of the signing key
	Algorithm string // of the key: its JWS name
	Type      string // the typ header of a JWT for another system; empty for an access token
	OneShot   bool   // the token moves to StatusUsed after one use
	// StatusList is the UUID of the token's status list, or empty. StatusIndex is the token's index in it.
	StatusList  string
	StatusIndex int
	// Claims is the payload of the JWT, byte for byte. It is not secret: without a signature it grants nothing.
	Claims       []byte
	ClaimsDigest [32]byte // SHA-256 of Claims
}

// Record is one decided request, with its intent if it was allowed. The ledger keeps it permanently.
type Record struct {
	// ID is a UUIDv7. It identifies the request, the issuance and the credential (jti).
	ID       string
	Time     time.Time
	Subject  Subject
	Request  Request
	Decision scopes.Decision
	Status   Status
	Expires  time.Time // of the credential, or the end of the wait for approval; zero for a denial
	Intent   *Intent
	Limits   []Limit // that the request counts against
	// Digest is the SHA-256 of the request's canonical form. Brevet compares it when an idempotency key is used again.
	Digest [32]byte
	// Canonical is what approvers are shown of a pending request, byte for byte. Approves is the approved request that this
	// record redeems.
	Canonical, Approves string
}

// Outcome moves a record to its next state.
type Outcome struct {
	ID     string
	Time   time.Time
	Status Status
	// Detail is a fixed code for the reason, such as "vault_unavailable". It is empty for StatusIssued, StatusExpired and
	// StatusUsed.
	Detail string
	Actor  string  // the SPIFFE ID of the workload, or the ID of the person, that caused the outcome; empty if Brevet itself did
	Minted *Minted // set with StatusIssued; with StatusUnknown it holds what is known
	// MayLiveUntil is set with StatusUnknown if what was made can be revoked by nobody: then it is dead at this time.
	MayLiveUntil time.Time
	Term         int64 // of the sweeper that reports the outcome, which must still lead; zero for any other caller
}

// VaultLease identifies a dynamic credential in Vault. It is not secret: it grants nothing.
type VaultLease struct {
	Accessor string // of the token that the credential lives under; empty if there is none
	Lease    string // the lease ID in Vault, or the path of a GitHubLease; empty if there is none
}

// Empty reports whether Vault holds nothing that could be revoked.
func (l VaultLease) Empty() bool { return l == VaultLease{} }

// GitHubLease returns the lease of an installation access token: the path in Vault where the token is kept until it is revoked. It
// follows from the id of the record, so it is known for a record that was never finished.
func GitHubLease(id string) string { return scopes.GitHubTokens + "/" + id }

// Minted describes what Vault made. It holds no secret.
type Minted struct {
	VaultLease
	// Name is the credential's name in the target system: the database user, the serial number of the certificate, the key ID of
	// the SSH certificate, or the display name of the token.
	Name string
	// Digest is the SHA-256 of the secret, which identifies it. It is zero for a static secret, because a digest would help an
	// attacker to guess the secret.
	Digest [32]byte
	// Until is the latest expiry. If Whole is set, the credential lives until then without renewal. If ShortLease is set, its
	// lease ends before its token does, and must be renewed as well. These fields are not recorded: a credential is renewed
	// only right after its mint.
	Until             time.Time
	Whole, ShortLease bool
}

// Selector selects live records. A record must match all fields that are set.
type Selector struct {
	ID, SPIFFEID             string
	SPIFFEIDPrefix           string // a path prefix that ends on a segment boundary
	TrustDomain, Task, Scope string
	Catalogue                string // digest
}

// LiveCredential is a record whose credential is alive, or may be.
type LiveCredential struct {
	ID                  string
	Subject             string // SPIFFE ID
	Task, Scope, Kind   string
	Status              Status // intent, issued, unknown or revoking
	Detail, Actor       string // the cause and who ordered it, for StatusRevoking
	StatusTime, Expires time.Time
	// Leased and Static are those of the grant. Both are false for a JWT, for a permit (KindNone) and for a denial.
	Leased, Static bool
	VaultLease     VaultLease
}

// lease returns what to revoke. It includes what the record of an unfinished mint does not have yet.
func (h LiveCredential) lease() VaultLease {
	if h.Kind == scopes.KindGitHub && h.VaultLease.Lease == "" {
		return VaultLease{Accessor: h.VaultLease.Accessor, Lease: GitHubLease(h.ID)}
	}
	return h.VaultLease
}

// The kinds of commands.
const (
	CommandTaskEnd          = "task.end"
	CommandQuarantineAdd    = "quarantine.add"
	CommandQuarantineRemove = "quarantine.remove"
	CommandRevoke           = "credentials.revoke"
)

// Command is an order that affects many records, or future records. It has its own ledger entry.
type Command struct {
	ID    string // a UUIDv7
	Time  time.Time
	Kind  string
	Actor *Actor // who gave the order; nil if a deadline did
	// Target is what the order affects. For the end of a task it holds SPIFFEID and Task. For a quarantine it holds only
	// SPIFFEID, which may be a path prefix, or "spiffe://" and a trust domain. For a revocation any fields may be set.
	Target Selector
	At     time.Time // when the task ends; a time that is not in the future means now
	Reason string    // free text of the actor
	Lifts  string    // the ID of the command that set the quarantine which this one lifts
}

// Quarantine is an order in force that sandboxes get no credentials.
type Quarantine struct {
	SPIFFEID string // a SPIFFE ID, a path prefix, or "spiffe://" and a trust domain
	Since    time.Time
	Actor    string // a SPIFFE ID or a person
	Reason   string
	Command  string // the command that ordered it
	Index    int64  // of the command's entry: no record of those sandboxes has begun after it
}

// Task is a task of a sandbox that has a deadline, or had one.
type Task struct {
	SPIFFEID, Task string
}

// EndedTaskRequest is a request that cannot be redeemed any more, because its task has ended.
type EndedTaskRequest struct {
	ID     string
	Status Status // StatusPending or StatusApproved
	Votes  int
	Actor  string // who ended the task: a SPIFFE ID or the ID of a person; empty if its deadline passed
}

// Refusal is a call that never became a request, because attestation failed or the input was invalid.
type Refusal struct {
	ID   string // the request ID that the caller was given; if it is empty, the ledger makes one
	Time time.Time
	// Code is the problem code in the response to the caller. Detail is a fixed code for the specific cause.
	Code, Detail string
	// Subject is the calling workload, and Person is the ID of the calling person, as far as they were authenticated.
	Subject *Subject
	Person  string
	// Remote is the network address of the caller. Operation is the API operation that it called.
	Remote, Operation string
	// Relayed means that a gateway asked about a call that somebody else made to it. These refusals have a separate budget,
	// because the original callers prove nothing.
	Relayed bool
	// Unsigned means that a relayed call carried nothing that Brevet signed. Anybody who reaches a gateway can make such calls,
	// so each Detail has a separate, small budget.
	Unsigned   bool
	Suppressed int // how many refusals exceeded the recording rate since the last recorded one
}

// Actor is a workload or a person that gives an order.
type Actor struct {
	Workload Subject // zero for a person
	// Person is the ID of a person. Name is the person's display name, which is untrusted and not unique. Both are empty for a
	// workload.
	Person, Name string
}

func workload(who attest.Identity) Subject {
	return Subject{ID: who.ID(), Kind: who.Kind(), Thumbprint: who.Thumbprint()}
}

// WorkloadActor returns the actor for a workload.
func WorkloadActor(who attest.Identity) Actor {
	return Actor{Workload: workload(who)}
}

// PersonActor returns the actor for a person.
func PersonActor(who people.Person) Actor { return Actor{Person: who.ID(), Name: who.Name()} }

// ID returns the SPIFFE ID of a workload, or the ID of a person: issuer, # and subject. No string can be both.
func (a Actor) ID() string {
	if a.Person != "" {
		return a.Person
	}
	return a.Workload.ID.String()
}

// Reach limits what a reader may see. The zero value reaches nothing.
type Reach struct {
	// Subject, if set, limits the reach to that sandbox's own records.
	Subject string
	// TrustDomains reaches all records of these trust domains. Within reaches the records of SPIFFE IDs at or below these paths.
	// A record is within reach if either reaches it.
	TrustDomains, Within []string
	// All reaches everything. It is only for Brevet's own maintenance, never for a caller.
	All bool
}

// ReachOf returns the reach of SPIFFE IDs, paths and trust domains ("spiffe://" and a name). It ignores anything else. Equal
// reaches have the same form.
func ReachOf(prefixes []string) Reach {
	var r Reach
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) { // wider prefixes come first
		id, err := spiffeid.FromString(prefix)
		switch {
		case err != nil || r.Covers(prefix):
		case id.Path() == "":
			r.TrustDomains = append(r.TrustDomains, id.TrustDomain().Name())
		default:
			r.Within = append(r.Within, prefix)
		}
	}
	return r
}

// Covers reports whether the trust domains and paths contain all of id: a SPIFFE ID with everything below it, or a whole trust
// domain.
func (r Reach) Covers(id string) bool {
	parsed, err := spiffeid.FromString(id)
	if err != nil {
		return false
	}
	return slices.Contains(r.TrustDomains, parsed.TrustDomain().Name()) ||
		slices.ContainsFunc(r.Within, func(prefix string) bool { return below(id, prefix) })
}

// below reports whether an ID is the prefix or below it. A prefix ends at a segment boundary.
func below(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && (rest == "" || rest[0] == '/')
}
