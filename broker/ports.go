package broker

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
)

// Ledger keeps every decision for good. All methods are safe for concurrent use, across replicas too.
// A method that cannot reach the store returns an error that is ErrLedgerUnavailable.
type Ledger interface {
	// Begin returns nil only after the record is durably committed. When the subject has used the record's
	// idempotency key before it commits nothing and returns the earlier record, else nil.
	// When its catalogue is not the one in force it commits nothing and returns ErrSuperseded.
	// When the record is over one of its limits it commits nothing and returns a *Limited; when its subject is in
	// quarantine or its task has ended, ErrQuarantined or ErrTaskEnded. What it commits counts against all of its
	// limits, in the same commit. A denied record is only committed.
	// Any other error leaves it open whether the record exists: the caller must not mint.
	Begin(ctx context.Context, rec Record) (earlier *View, err error)
	// RecordOutcome records the outcome of a begun record. A move that is not forward is ErrNotForward and changes nothing,
	// and so is one by a sweeper that no longer leads.
	RecordOutcome(ctx context.Context, out Outcome) error
	// Refuse records a call that never became a request.
	Refuse(ctx context.Context, ref Refusal) error
	// Get returns one record within reach, else ErrNotFound.
	Get(ctx context.Context, id string, reach Reach) (*View, error)
	// List returns the records within reach that match, newest first. ErrTooBroad when the search takes too long.
	List(ctx context.Context, q Query, reach Reach) (Page, error)
}

// EventFeed is the record as it is followed. Errors are as for Ledger.
type EventFeed interface {
	// Changes returns the records within reach that match and that entries from an index on are about. An index below
	// zero begins at the end.
	Changes(ctx context.Context, q Query, reach Reach, from int64) (Changes, error)
	// Timeline returns what is recorded of a task, or of a request, in order. ErrNotFound when nothing of it is within
	// reach.
	Timeline(ctx context.Context, of TimelineQuery, reach Reach) ([]Happening, error)
}

// LiveCredentials is what is alive, and what was ordered about it. All methods are safe for concurrent use, across replicas
// too; errors are as for Ledger.
type LiveCredentials interface {
	// Announce commits a command. From then on no replica begins what a quarantine or a task's end forbids.
	Announce(ctx context.Context, cmd Command) error
	// Live returns up to limit records that match, are within reach and may be alive (intent, issued, unknown or
	// revoking, and not past their time unless Vault may still hold them), ordered by id, with ids after the given
	// one. It reads what is committed, never a standby.
	Live(ctx context.Context, sel Selector, reach Reach, page LivePage) ([]LiveCredential, error)
	// Overdue returns up to limit records that the sweeper has to look at.
	Overdue(ctx context.Context, due Overdue) ([]LiveCredential, error)
	// Deadlines returns tasks whose end has come, by the store's clock, and has not been carried out: Close them with a
	// Command.
	Deadlines(ctx context.Context, limit int) ([]Task, error)
	// RequestsOfEndedTasks returns up to limit requests that wait for people, or for their redemption, although their task
	// has ended: of one task, or of all when task is its zero value.
	RequestsOfEndedTasks(ctx context.Context, task Task, limit int) ([]EndedTaskRequest, error)
	// Quarantines lists the standing ones within reach, by SPIFFE ID.
	Quarantines(ctx context.Context, reach Reach) ([]Quarantine, error)
}

// Tokens tells where access tokens stand. It is safe for concurrent use; errors are as for Ledger.
type Tokens interface {
	// TokenStanding reads what is committed, never a standby, in one query. A token is known by its id and the SHA-256 of its
	// claims together.
	TokenStanding(ctx context.Context, id string, claims [32]byte) (TokenStanding, error)
	// Alive tells of what was issued, of whatever kind, that its time has not come, and nobody has ended it, its task, or what
	// its sandbox may have. It reads as TokenStanding does.
	Alive(ctx context.Context, id string) (bool, error)
	// Cached tells of a token what TokenStanding would, from memory: that it is active. Not ok means that this replica does
	// not know, or cannot be sure to know of every end that WaitForReplicas has waited for.
	Cached(id string, claims [32]byte) (standing TokenStanding, ok bool)
	// WaitForReplicas returns once no replica goes by a memory from before what is committed when it is called: whatever that has
	// ended, and whatever catalogue it has put in force. That takes some milliseconds, and about half a second when a replica
	// does not answer. It does not end with ctx.
	WaitForReplicas(ctx context.Context)
	// EndedIn returns the places in a status list, in ascending order, of tokens that were ended. It reads as TokenStanding does.
	// Tokens count until a minute after their time; ErrNotFound when the list has none of them.
	EndedIn(ctx context.Context, list string) ([]int, error)
}

// TokenStanding is where an access token stands.
type TokenStanding struct {
	// Active: it was issued, its time has not come, and nobody has ended it, its task, or what its sandbox may have.
	Active bool
	// Catalogue is the digest of what is in force; empty when none was ever applied.
	Catalogue string
}

// Approvals is what waits for people, and what they said. All methods are safe for concurrent use, across replicas too;
// errors are as for Ledger.
type Approvals interface {
	Inbox
	// UpsertPerson commits who somebody is, as their provider has said, unless that is known, and returns what was said last.
	UpsertPerson(ctx context.Context, v Voter, at time.Time) (Voter, error)
	// Votes returns the votes on a request, oldest first, each with what is known of its voter now.
	Votes(ctx context.Context, request string) ([]Vote, error)
	// ReusableApprovals returns requests of a sandbox, for a task and a scope, that people have approved since, newest first: the
	// few whose yes may stand for more.
	ReusableApprovals(ctx context.Context, asked ReuseKey, since time.Time) ([]View, error)
	// ReusedBy returns the issuances of requests that the yes to a request has stood for; an empty one for each that has
	// none yet.
	ReusedBy(ctx context.Context, request string) ([]string, error)
	// Apply commits a step of a request. ErrOvertaken when the request is not, or not any more, as the step begins.
	Apply(ctx context.Context, step Transition) error
}

// ReuseKey is what a yes may be remembered for.
type ReuseKey struct{ SPIFFEID, Task, Scope string }

// Inbox is what waits for people. Errors are as for Ledger.
type Inbox interface {
	// Waiting returns requests that wait for people, and whether there are more: none whose time has passed, whose task has
	// ended or whose sandbox is in quarantine. They come in turn, of each trust domain and in it of each sandbox the oldest,
	// then the next: who asks often hides nobody else.
	Waiting(ctx context.Context, q WaitingQuery) (views []View, more bool, err error)
	// Decided returns those of the requests that are not pending any more.
	Decided(ctx context.Context, requests []string) ([]string, error)
	// Standing returns what Waiting does for any of the queries, in short and oldest first.
	Standing(ctx context.Context, queries []WaitingQuery) ([]Standing, error)
	// Views returns requests that wait for people, or have, oldest first. It may leave out some, and not all: ask for
	// those again.
	Views(ctx context.Context, requests []string) ([]View, error)
}

// Usage is how often credentials were used, as those who held them have said. All methods are safe for concurrent use, across
// replicas too; errors are as for Ledger.
type Usage interface {
	// Report commits what a holder says, unless they have said it before, and returns what stands. ErrNotFound when nothing
	// of that id was issued to them, or it has ended more than an hour ago.
	Report(ctx context.Context, use Use) (Use, error)
	// ScopeUsage returns what became of what was asked for within reach, by scope. ErrTooBroad when that takes too long.
	ScopeUsage(ctx context.Context, q UsageQuery, reach Reach) ([]ScopeUsage, error)
}

// DPoPReplayCache remembers for all replicas which DPoP proofs were used.
type DPoPReplayCache interface {
	// UseProof returns nil for the first use of a proof, once that is durable, and dpop.ErrReplayed for any other. Any other
	// error leaves it open, and is ErrLedgerUnavailable: the proof must not be accepted. A proof may be forgotten once it
	// would not be accepted any more.
	UseProof(ctx context.Context, p dpop.Proof) error
}

// Catalogues keeps catalogues for good, and what became of each. All methods are safe for concurrent use, across replicas
// too; errors are as for Ledger.
type Catalogues interface {
	// InForce returns the catalogue that was applied last; its Version is 0 when none ever was. It reads what is
	// committed, never a standby.
	InForce(ctx context.Context) (CatalogueVersion, error)
	// CatalogueFiles returns the files of a catalogue that was proposed or applied, by name, else ErrNotFound.
	CatalogueFiles(ctx context.Context, digest string) ([]scopes.File, error)
	// ChangeCatalogue commits a step. ErrOvertaken when it does not follow on what is in force, or its proposal is not
	// open. When it applies a catalogue, no replica begins a record that another one decided from then on.
	ChangeCatalogue(ctx context.Context, step CatalogueStep) error
	// CatalogueChanges returns up to limit changes, newest first.
	CatalogueChanges(ctx context.Context, limit int) ([]CatalogueChange, error)
	// Proposal returns the open proposal of a catalogue, else ErrNotFound.
	Proposal(ctx context.Context, digest string) (CatalogueChange, error)
}

// WaitingQuery picks requests that wait for people.
type WaitingQuery struct {
	// Groups are those that they wait for, or that may stand in for those, Within the SPIFFE IDs, paths and trust domains
	// that they come from, or people.Everywhere.
	Groups, Within []string
	Limit          int
}

// Transition is one move of a request that waits for people.
type Transition struct {
	Request string
	// Was and Votes are the request before: the step is taken from there or not at all.
	Was     Status
	Votes   int
	Becomes Status
	Time    time.Time
	// Actor is the person's id, or the SPIFFE ID of the workload that withdraws the request or has ended its task. It is
	// empty when the task's deadline came.
	Actor string
	// Vote is what moves it, on what has this Hash; nil for a withdrawal, and when it reuses the approval of a Remembered request, whose
	// votes stand for this one.
	Vote       *Vote
	Hash       [32]byte
	Remembered string
}

// LivePage is where a listing of live records goes on.
type LivePage struct {
	After string // an id; empty begins
	Limit int
	// Leased leaves out what Vault cannot end.
	Leased bool
	// Before is an index of the ledger: what began there or later is left out. Zero leaves out nothing.
	Before int64
}

// Overdue says which records the sweeper looks for: those in StatusIntent since before Unfinished, all in StatusUnknown
// and StatusRevoking, and leased ones in StatusIssued whose time passed before Overdue; and what an order that stands
// should have ended: those in StatusIssued whose task has ended, whose subject is in quarantine, or whose parent has ended, for some seconds, with
// that cause as their Detail.
type Overdue struct {
	Unfinished, Overdue time.Time
	// Orders given before this are taken to have been carried out. Zero looks at all of them.
	Orders time.Time
	Limit  int
}

// Election makes one sweeper of all replicas the leader.
type Election interface {
	// AcquireLeadership waits until this replica leads, or ctx ends. Then it runs do with a term of its own, greater than any
	// before, and a context that ends when the lead may be lost. It returns what do returns.
	AcquireLeadership(ctx context.Context, do func(ctx context.Context, term int64) error) error
	// Prune forgets what limits no longer need, and proofs that would not be accepted any more.
	Prune(ctx context.Context) error
	// Tidy sorts what was recorded last into what is searched, so that neither records nor searches have to.
	Tidy(ctx context.Context) error
}

// Minter makes credentials through Vault, and ends them there.
type Minter interface {
	// Key returns the key that a JWT minted now is to be signed with.
	// It answers from memory; ErrVaultUnavailable when no key is known.
	Key() (Key, error)
	// Mint redeems the order and returns exactly the credential that its intent names. It asks Vault at most
	// once. Errors are ErrVaultUnavailable, ErrVaultRefused, ErrMintMismatch or ErrOrderSpent; after any of them no
	// credential is to be delivered. A *Lost besides says that something may be alive in Vault, for as long as
	// Unrenewed at most; without it nothing is.
	// What a dynamic credential lives under dies after Unrenewed, whatever happens here, unless Renew is called.
	Mint(ctx context.Context, order *Order) (Credential, error)
	// Renew lets what was minted live until its time, and never longer. It may be called again.
	Renew(ctx context.Context, minted Minted) error
	// Revoke returns nil only when Vault has confirmed that nothing of h is alive. It may be called again.
	Revoke(ctx context.Context, h VaultLease) error
	// Alive tells whether Vault still holds anything of h.
	Alive(ctx context.Context, h VaultLease) (bool, error)
}

// Signer signs what is no credential.
type Signer interface {
	// Sign returns the third part of a JWS for the first two, made with exactly that key and verified. Errors are as for Mint.
	Sign(ctx context.Context, key Key, signingInput string) (string, error)
}

// Unrenewed is how long a dynamic credential lives in Vault without being renewed.
const Unrenewed = 30 * time.Second

// Key names one version of the signing key.
type Key struct {
	ID        string // RFC 7638 thumbprint
	Algorithm string // JWS algorithm: "ES256" or "EdDSA"
	Version   int    // Vault's key version
}

// Credential is what is handed over, once.
type Credential struct {
	// Secret is the token of a JWT; for every other kind a JSON object, whose members depend on the kind.
	Secret secret.Text
	// Minted is what the record keeps of a dynamic credential; nil for a JWT.
	Minted *Minted
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
	BreakGlass     string // the group that may stand in for ApprovalGroup; empty when none may
	Broken         bool   // somebody of it has said yes
	CredentialKind string
	Audience       string
	KeyID          string
	ClaimsDigest   string // hex
	// VaultPath is what Vault was asked for, Minted what it made. Both are empty for a JWT.
	VaultPath     string
	Minted        Minted
	Actor         string // who ended it: a SPIFFE ID or a person
	RequestDigest [32]byte
	// Canonical is what people are shown of a request that waits for them, and Votes how many they have cast.
	Canonical string
	Votes     int
	// RedeemedBy is the issuance that the request was redeemed by, at the last of so many Redemptions; Approves is the
	// request that an issuance redeems.
	RedeemedBy, Approves string
	Redemptions          int
	// Remembered is the request whose approval stands for this one too.
	Remembered string
	// Parent is the issuance that this one was handed down from.
	Parent string
	// User is the person on whose behalf it was asked, with the groups of then; nil for nobody.
	User *scopes.User
}

// Query narrows a List. Zero fields do not narrow.
type Query struct {
	SPIFFEID       string
	SPIFFEIDPrefix string // a path prefix that ends on a segment boundary
	TrustDomain    string
	Scope          string
	Task           string
	Decision       string
	DecisionCode   string
	Status         Status
	Since, Until   time.Time // Since is inclusive, Until exclusive
	// Words are all in the reason, in any order and case.
	Words string
	// Params are parameters by name. What reads as a number or a bool is matched as that too.
	Params map[string]string
	// Approver has voted on the request, or on the one that it was approved by.
	Approver string
	// User is the person on whose behalf it was asked.
	User string
	// Credential is the SHA-256 of a token's claims, or of what else a finder would hold; Name is what the far side knows
	// it by.
	Credential []byte
	Name       string
	// Group is the one that people are asked in.
	Group, Authority, Resource, Catalogue, KeyID string
	// Limit is the page size, 1 to 500.
	Limit int
	// Before continues after the record with this index: only smaller indexes follow. Zero starts at the newest.
	Before int64
	// From, unless zero, goes back instead: the page is the last one, in the same order, whose indexes are all at least
	// this.
	From int64
}

// TimelineQuery names the task of a sandbox, or one request by its ID.
type TimelineQuery struct {
	SPIFFEID, Task string
	ID             string
	// From is the least index, Limit the most entries: 1 to 500.
	From  int64
	Limit int
}

// Happening is an entry as people read it.
type Happening struct {
	Index    int64
	Time     time.Time
	Kind, ID string // the entry's
	// Status is what the request became, Detail why.
	Status Status
	Detail string
	// Scope, Resource, Code and Explanation are of a decision.
	Scope, Resource, Code, Explanation string
	// Actor is who did it: a SPIFFE ID, or a person with their name then.
	Actor, ActorName string
	// Verdict, Covers and Note are of a vote.
	Verdict, Covers, Note string
	Reason                string
	At                    time.Time // when the task is to end
	Calls                 *int64    // that a holder has reported
}

// Page is one page of a List. Next is the Before of the following page, zero at the end; Prev is the From of the one
// before, zero on the first.
type Page struct {
	Records    []View
	Next, Prev int64
}
