package broker

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
)

// The interfaces of the ledger are safe for concurrent use, also across replicas. A method returns ErrLedgerUnavailable if it cannot
// reach the store. A method that reads one thing returns ErrNotFound if there is none within reach.

// Ledger keeps every decision permanently.
type Ledger interface {
	// Begin commits a record. If it returns no error and no earlier record, the commit is durable, and counts against all limits of
	// the record.
	//
	// Begin commits nothing and returns:
	//   - the earlier record, if the subject has already used the record's idempotency key
	//   - ErrSuperseded, if the record was decided by a catalogue that is not in force
	//   - ErrAlreadyAsked, if the record waits for approval, has no idempotency key, and EqualRequest would return a pending request
	//   - ErrNotApproved, if the request that the record redeems cannot be redeemed any more
	//   - ErrInactive, if the record derives a token, and one that it comes from is not in force any more
	//   - ErrQuarantined, ErrTaskEnded, or a *Limited for one of its limits, unless the record is a denial
	//
	// After any other error, the record may or may not exist: the caller must not mint.
	Begin(ctx context.Context, rec Record) (earlier *View, err error)
	// RecordOutcome records the outcome of a record. It returns ErrInvalidTransition and changes nothing if the record's state does not
	// allow the transition, or if the sweeper that reports the outcome no longer leads.
	RecordOutcome(ctx context.Context, out Outcome) error
	// Refuse records a call that never became a request.
	Refuse(ctx context.Context, ref Refusal) error
	// Get returns one record within reach.
	Get(ctx context.Context, id string, reach Reach) (*View, error)
	// List returns the matching records within reach, newest first. It returns ErrTooBroad if the search takes too long.
	List(ctx context.Context, q Query, reach Reach) (Page, error)
}

// EventFeed lets callers follow the record as it grows.
type EventFeed interface {
	// Changes returns the matching records within reach that have changed since an index. A negative index starts at the end of
	// the ledger.
	Changes(ctx context.Context, q Query, reach Reach, from int64) (Changes, error)
	// Timeline returns the entries about a task or a request, in order.
	Timeline(ctx context.Context, of TimelineQuery, reach Reach) ([]TimelineEvent, error)
}

// LiveCredentials finds credentials that may be alive, and keeps the commands that end them.
type LiveCredentials interface {
	// Announce commits a command. After that, no replica begins a record that a quarantine or an ended task forbids.
	Announce(ctx context.Context, cmd Command) error
	// Live returns the matching records within reach that may be alive, ordered by ID. A record may be alive if its status is
	// intent, issued, unknown or revoking, and it has not expired or Vault may still hold it. Live reads committed data, never a
	// standby.
	Live(ctx context.Context, sel Selector, reach Reach, page LivePage) ([]LiveCredential, error)
	// Overdue returns up to due.Limit records that need the sweeper's attention.
	Overdue(ctx context.Context, due Overdue) ([]LiveCredential, error)
	// Deadlines returns up to limit tasks whose deadline has passed by the store's clock, and which no Command has ended yet.
	Deadlines(ctx context.Context, limit int) ([]Task, error)
	// TaskEnded returns the ID of the command that has ended a task or, unless by is zero, that ends it by then. It returns
	// ErrNotFound if there is none.
	TaskEnded(ctx context.Context, task Task, by time.Time) (command string, err error)
	// RequestsOfEndedTasks returns up to limit requests that still wait for approval or redemption although their task has ended:
	// those of one task, or of all tasks if task is the zero value.
	RequestsOfEndedTasks(ctx context.Context, task Task, limit int) ([]EndedTaskRequest, error)
	// Quarantines lists the quarantines in force within reach, ordered by SPIFFE ID.
	Quarantines(ctx context.Context, reach Reach) ([]Quarantine, error)
}

// Tokens reports the state of access tokens. It reads committed data, never a standby.
type Tokens interface {
	// TokenState returns the state of a token, which its ID and the SHA-256 of its claims identify together.
	TokenState(ctx context.Context, id string, claims [32]byte) (TokenState, error)
	// AliveAmong returns those of the ids whose credentials, of any kind, are in force: each was issued to the holder and has not
	// expired, and nobody has ended it or its task or quarantined its sandbox.
	AliveAmong(ctx context.Context, holder string, ids []string) ([]string, error)
	// Cached answers TokenState from memory, for active tokens only. Otherwise ok is false: this replica does not know that the
	// token is active, or it holds no lease and may not know yet that the token has ended.
	Cached(id string, claims [32]byte) (state TokenState, ok bool)
	// WaitForReplicas returns when no replica relies on cached state from before the call. Every replica then honors the ends and
	// the catalogue that were committed before the call. This takes some milliseconds, half a second if a replica does not
	// respond, and some seconds at most. It does not stop when ctx ends.
	WaitForReplicas(ctx context.Context)
	// EndedIn returns the indexes of the ended tokens in a status list, in ascending order. Tokens stay in a list until one minute
	// after they expire. EndedIn returns ErrNotFound if the list holds no tokens.
	EndedIn(ctx context.Context, list string) ([]int, error)
}

// TokenState is the state of an access token.
type TokenState struct {
	Active    bool   // it was issued and has not expired, and nobody has ended it or its task or quarantined its sandbox
	Catalogue string // digest of the catalogue in force; empty if none was ever applied
}

// Approvals keeps the requests that wait for approval, and the votes on them.
type Approvals interface {
	Inbox
	// UpsertPerson commits what the identity provider says about a person, unless the store already knows it, and returns the
	// latest version.
	UpsertPerson(ctx context.Context, v approval.Voter, at time.Time) (approval.Voter, error)
	// Votes returns the votes on a request, oldest first, each with the latest known data about its voter.
	Votes(ctx context.Context, request string) ([]approval.Vote, error)
	// EqualRequest returns the request of the same sandbox that is equal to a record which would wait for approval, and that is
	// pending or can be redeemed. It returns nil if there is none. Two requests are equal if people are shown the same, apart from
	// what is of one request alone and from the granted TTL, and if they ask for the same TTL. The reason does not count, and a
	// request with an idempotency key is equal to no other. EqualRequest skips the requests in except, those of an ended task and
	// those of a sandbox in quarantine.
	EqualRequest(ctx context.Context, rec Record, except []string) (*View, error)
	// ReusableApprovals returns requests whose approval may cover a new one: same sandbox, task and scope, approved since the
	// given time, newest first. It returns only a few.
	ReusableApprovals(ctx context.Context, asked ReuseKey, since time.Time) ([]View, error)
	// ReusedBy finds the requests that reused the approval of the given request. For each of them it returns the ID of the
	// issuance, or an empty string if there is no issuance yet.
	ReusedBy(ctx context.Context, request string) ([]string, error)
	// Apply commits a transition of a request. It returns ErrConcurrentChange if the request is not in the state that the transition
	// starts from.
	Apply(ctx context.Context, step Transition) error
}

// ReuseKey identifies the requests that one approval may cover.
type ReuseKey struct{ SPIFFEID, Task, Scope string }

// Inbox lists the requests that wait for approval.
type Inbox interface {
	// Waiting returns requests that wait for approval, and whether there are more. It leaves out a request that has expired,
	// whose task has ended or whose sandbox is in quarantine. The order alternates between trust domains, and in each between
	// sandboxes: first the oldest request of each, then the next. So a sandbox that asks often does not hide the others.
	Waiting(ctx context.Context, q WaitingQuery) (views []View, more bool, err error)
	// Decided returns those of the given requests that are no longer pending.
	Decided(ctx context.Context, requests []string) ([]string, error)
	// PendingRequests returns short forms of the requests that Waiting would return for any of the queries, oldest first.
	PendingRequests(ctx context.Context, queries []WaitingQuery) ([]PendingRequest, error)
	// Views returns requests that wait for approval, or have waited, oldest first. It may return only some: the caller asks again.
	Views(ctx context.Context, requests []string) ([]View, error)
}

// Usage keeps how often credentials were used, as their holders report it.
type Usage interface {
	// Report commits a holder's report, unless the holder has already sent one, and returns the recorded report. It returns
	// ErrNotFound if the credential was not issued to the holder, or ended more than an hour ago.
	Report(ctx context.Context, use Use) (Use, error)
	// ScopeUsage returns the outcomes of requests within reach, by scope. It returns ErrTooBroad if counting takes too long.
	ScopeUsage(ctx context.Context, q UsageQuery, reach Reach) ([]ScopeUsage, error)
	// ReportCalls commits a report of calls and returns the time of its record. If the report is recorded already, it only returns
	// that time. It returns ErrAlreadyReported if the session has a different report of that number, and ErrTooLarge if an entry
	// cannot hold the report.
	ReportCalls(ctx context.Context, report CallReport) (time.Time, error)
	// TaskCalls sums up the reports about a task of a sandbox within reach, as of one moment. It returns ErrNotFound if there are none,
	// and ErrTooBroad if counting takes too long.
	TaskCalls(ctx context.Context, spiffeID, task string, reach Reach) (TaskCalls, error)
}

// DPoPReplayCache remembers used DPoP proofs for all replicas.
type DPoPReplayCache interface {
	// UseProof records that a proof was used. It returns nil for the first use, after a durable commit, and dpop.ErrReplayed for
	// any later use. Any other error is ErrLedgerUnavailable and leaves the result unknown: the caller must reject the proof. The
	// cache may forget a proof once it is too old to be accepted.
	UseProof(ctx context.Context, p dpop.Proof) error
}

// Catalogues keeps catalogues and their history permanently.
type Catalogues interface {
	// InForce returns the catalogue that was applied last. Its Version is 0 if none was ever applied. InForce reads committed
	// data, never a standby.
	InForce(ctx context.Context) (CatalogueVersion, error)
	// CatalogueFiles returns the files of a proposed or applied catalogue, ordered by name.
	CatalogueFiles(ctx context.Context, digest string) ([]scopes.File, error)
	// ChangeCatalogue commits a step. It returns ErrConcurrentChange if the step is not based on the catalogue in force, or if its
	// proposal is not open. Once a step has applied a catalogue, no replica begins a record that another catalogue decided, and all
	// requests that were open are void.
	ChangeCatalogue(ctx context.Context, step CatalogueStep) error
	// CatalogueChanges returns up to limit changes, newest first.
	CatalogueChanges(ctx context.Context, limit int) ([]CatalogueChange, error)
	// OpenRequests counts the requests that are pending, or approved and not redeemed. Another catalogue makes them void.
	OpenRequests(ctx context.Context) (int, error)
	// Proposal returns the open proposal of a catalogue.
	Proposal(ctx context.Context, digest string) (CatalogueChange, error)
}

// WaitingQuery selects requests that wait for approval.
type WaitingQuery struct {
	// Groups are the approver groups or the break-glass groups of the requests. Within holds the SPIFFE IDs, paths and trust
	// domains that the requests come from, or people.Everywhere.
	Groups, Within []string
	Limit          int
}

// Transition is one state change of a request that waits for approval.
type Transition struct {
	Request string
	Was     Status // before the transition; if Was or Votes do not match, Apply changes nothing
	Votes   int    // before the transition
	Becomes Status
	Time    time.Time
	// Actor is the ID of a person, or the SPIFFE ID of the workload that withdraws the request or has ended its task. It is empty
	// if the task's deadline has passed.
	Actor string
	// Vote is the vote that causes the transition, and Hash identifies what the voter was shown. Vote is nil for a withdrawal,
	// and for a request that reuses the approval of the request Remembered. The votes on Remembered then count for this request.
	Vote       *approval.Vote
	Hash       [32]byte
	Remembered string
}

// LivePage selects one page of a list of live records.
type LivePage struct {
	After  string // the ID to continue after; empty starts at the beginning
	Limit  int
	Leased bool  // excludes credentials that Vault cannot end
	Before int64 // excludes records that began at that ledger index or later; zero excludes nothing
}

// Overdue selects the records that the sweeper must advance:
//   - records in StatusIntent since before Unfinished
//   - all records in StatusUnknown and StatusRevoking
//   - leased records in StatusIssued that expired before Overdue
//   - records in StatusIssued that should have ended some seconds ago, because their task or their parent has ended, their
//     subject is in quarantine, or their approval was followed by a denial; Detail then holds that cause
type Overdue struct {
	Unfinished, Overdue time.Time
	Expired             time.Time // as Overdue, for what Brevet itself ends when it expires: tokens of GitHub
	Orders              time.Time // skips denials and commands from before this time, which have been carried out; zero skips none
	Limit               int
}

// Election elects one replica to run the sweeper.
type Election interface {
	// AcquireLeadership waits until this replica leads or ctx ends. It then runs do with a new term, which is greater than any
	// earlier term, and with a context that ends when this replica may have lost the lead. It returns what do returns.
	AcquireLeadership(ctx context.Context, do func(ctx context.Context, term int64) error) error
	// Prune deletes limit counters that no longer matter, DPoP proofs that are too old to be accepted, and ended sessions.
	Prune(ctx context.Context) error
	// Tidy moves new records into the search index, so that neither appends nor searches have to.
	Tidy(ctx context.Context) error
}

// Minter makes credentials through Vault, and ends them there.
type Minter interface {
	// Key returns the key that signs the next JWT with a JWS algorithm. It reads from memory. If Vault has no key for that algorithm, it
	// returns ErrVaultRefused. If it is not known whether a key may sign now, it returns ErrVaultUnavailable.
	Key(algorithm string) (Key, error)
	// Mint redeems the order and returns exactly the credential that its intent names. It asks Vault at most once.
	//
	// Errors are ErrVaultUnavailable, ErrVaultRefused, ErrMintMismatch and ErrOrderSpent. After an error, the caller must not
	// deliver a credential. If the error is also a *LostMintError, something may be alive in Vault, for at most UnrenewedLife. Otherwise
	// nothing is.
	//
	// A dynamic credential expires in Vault after UnrenewedLife unless Renew is called, even if Brevet fails.
	Mint(ctx context.Context, order *Order) (Credential, error)
	// Renew extends a credential to its expiry and never beyond. It may be called again.
	Renew(ctx context.Context, minted Minted) error
	// Revoke returns nil only if Vault has confirmed that neither the token nor the lease of h exists any more. It may be
	// called again.
	Revoke(ctx context.Context, h VaultLease) error
	// Alive reports whether Vault still has the token or the lease of h.
	Alive(ctx context.Context, h VaultLease) (bool, error)
	// MissingPolicies returns those of the named policies that a credential's token cannot have: Vault does not have them, or does
	// not let the broker assign them. It takes a few seconds at most. Without an answer of Vault it returns ErrVaultUnavailable.
	MissingPolicies(ctx context.Context, names []string) ([]string, error)
}

// Signer signs documents that are not credentials.
type Signer interface {
	// Sign returns the signature of a JWS, its third part, over the first two parts. It uses exactly the given key and verifies
	// the result. Errors are as for Mint.
	Sign(ctx context.Context, key Key, signingInput string) (string, error)
}

// UnrenewedLife is how long a dynamic credential lives in Vault if it is not renewed.
const UnrenewedLife = 30 * time.Second

// Key names one version of a signing key.
type Key struct {
	ID        string // RFC 7638 thumbprint
	Algorithm string // JWS algorithm: "ES256", "EdDSA" or "RS256"
	Version   int    // Vault's key version
}

// Credential is a credential for the caller. It is delivered once.
type Credential struct {
	// Secret is the token itself for a JWT. For any other kind it is a JSON object whose members depend on the kind.
	Secret secret.Text
	// Minted is the part of a dynamic credential that the record keeps. It is nil for a JWT.
	Minted *Minted
}

// View is a record as read from the ledger, with its latest status and its place in the ledger.
type View struct {
	ID      string
	Index   int64 // of the entry that recorded the decision
	Time    time.Time
	Subject Subject
	Scope   string
	scopes.RequestContext
	Authority string // empty when the scope was unknown
	Resource  string
	Params    map[string]any
	Reason    string
	TTLAsked  time.Duration // zero for the scope's default
	TTL       time.Duration
	Decision  string // allow, deny, pending

	DecisionCode, Explanation string
	Policies, Clamps          []string
	Catalogue                 string

	Status              Status
	StatusDetail        string
	StatusTime, Expires time.Time
	// VoidedBy is the version of the catalogue that made the request void, for StatusVoid. StatusTime is when it was applied.
	VoidedBy int64

	ApprovalGroup  string
	ApprovalQuorum int
	BreakGlass     string // the group that may approve in place of ApprovalGroup; empty if there is none
	Broken         bool   // a member of the BreakGlass group has approved

	CredentialKind, Audience, KeyID string
	ClaimsDigest                    string // hex
	// VaultPath is the path that Vault was asked for, and Minted is what Vault made. Both are empty for a JWT.
	VaultPath      string
	Minted         Minted
	Leased, Static bool   // those of the grant; both false for a JWT
	Actor          string // who ended it: a SPIFFE ID or a person
	RequestDigest  [32]byte
	// Canonical is what approvers are shown of a pending request. Votes is the number of votes on it.
	Canonical string
	Votes     int
	// RedeemedBy is the issuance of the last redemption of the request, and Redemptions counts them. Approves is the request that
	// this issuance redeems.
	RedeemedBy, Approves string
	Redemptions          int
	Remembered           string       // the request whose approval also covers this one
	Parent               string       // the issuance that this one was delegated from
	User                 *scopes.User // the person that the sandbox acts for, with the groups at that time; or nil
}

// Voided returns the error for a request that is void.
func (v *View) Voided() error { return &VoidError{Since: v.StatusTime, Version: v.VoidedBy} }

// Query narrows a List. Zero fields do not narrow.
type Query struct {
	SPIFFEID, TrustDomain  string
	SPIFFEIDPrefix         string // a path prefix that ends on a segment boundary
	Scope, Task            string
	Decision, DecisionCode string
	Status                 Status
	Since, Until           time.Time         // Since is inclusive, Until exclusive
	Words                  string            // must all occur in the reason, in any order and case
	Params                 map[string]string // by name; a value such as "5" or "true" also matches that number or boolean
	Approver               string            // a person who voted on the request, or on the one that this issuance redeems
	User                   string            // the person that the sandbox acts for
	// Credential is the SHA-256 of a token's claims, or of the secret of another kind of credential. Name is the credential's
	// name in the target system.
	Credential []byte
	Name       string
	// Group is the approver group that was asked.
	Group, Authority, Resource, Catalogue, KeyID string
	Limit                                        int // the page size, 1 to 500
	// Before continues a listing: only records with smaller indexes follow. Zero starts at the newest record.
	Before int64
	// From, if not zero, reads the preceding page: the oldest records with an index of at least From. The newest of them still
	// comes first.
	From int64
}

// TimelineQuery selects a task of a sandbox, or one request by its ID.
type TimelineQuery struct {
	SPIFFEID, Task string
	ID             string
	From           int64 // the lowest index
	Limit          int   // of entries, 1 to 500
}

// TimelineEvent is a ledger entry in readable form.
type TimelineEvent struct {
	Index    int64
	Time     time.Time
	Kind, ID string // of the entry
	Status   Status // of the request afterwards
	Detail   string // the reason for Status
	// Scope, Resource, Code and Explanation describe a decision.
	Scope, Resource, Code, Explanation string
	// Actor is a SPIFFE ID, or the ID of a person. ActorName is the person's name at that time.
	Actor, ActorName string
	// Verdict, Covers and Note describe a vote.
	Verdict, Covers, Note string
	Reason                string
	At                    time.Time // when the task is to end
	Calls                 *int64    // the number of uses that a holder reported, or of calls that an egress gateway reported
	Refused               *int64    // the number of those that the egress gateway refused
}

// Page is one page of a List. Next goes into Query.Before to read the following page; it is zero if this is the last. Prev goes
// into Query.From to read the preceding page; it is zero if this is the first.
type Page struct {
	Records    []View
	Next, Prev int64
}

// NoticeKind is the kind of a notice.
type NoticeKind string

// The kinds of notices.
const (
	NoticeWaiting   NoticeKind = "approval.waiting"     // a request waits for approval
	NoticeDecided   NoticeKind = "approval.decided"     // it was approved, rejected, withdrawn, or has expired
	NoticeBroken    NoticeKind = "approval.break_glass" // somebody approved it in place of the group that was asked
	NoticeUnrevoked NoticeKind = "credential.unrevoked" // a credential should be dead, but may not be
)

// NoticeLease is how long an Outbox owns a subscriber after its last call.
const NoticeLease = 30 * time.Second

// Notice is a message to an external system. It contains no secret, and no free text of a sandbox.
type Notice struct {
	ID      string // the same for each attempt and each subscriber
	Kind    NoticeKind
	Time    time.Time // of the event
	Request string    // the ID of the request or the issuance
	Status  Status    // after the event

	SPIFFEID, Scope, Authority, Resource, Task string // as in View

	Group    string // empty for NoticeUnrevoked; the break-glass group for NoticeBroken, with its quorum in Quorum
	Quorum   int
	Expires  time.Time
	Attempts int   // including this one
	Index    int64 // of the entry that caused it
}

// Subscription selects the notices for one subscriber. The store identifies the subscriber by Name, permanently.
type Subscription struct {
	Name  string
	Kinds []NoticeKind
	// Within are SPIFFE IDs, paths and trust domains, or people.Everywhere.
	Within []string
}

// Outbox queues the notices that subscribers have not received yet. It loses no event that is in the ledger.
type Outbox interface {
	// Subscribe starts a subscription at the end of the ledger, unless it already exists.
	Subscribe(ctx context.Context, name string) error
	// Next returns the oldest notice that is due, and postpones it by NoticeLease. It returns nil if there is none, or if
	// another Outbox owns the subscriber (see NoticeLease).
	Next(ctx context.Context, sub Subscription) (*Notice, error)
	// MarkDelivered removes a notice after its delivery.
	MarkDelivered(ctx context.Context, name string, n Notice) error
	// PutOff makes a notice due again after a delay.
	PutOff(ctx context.Context, name string, n Notice, after time.Duration) error
	// Release lets another Outbox serve this subscriber at once.
	Release(ctx context.Context, name string) error
}
