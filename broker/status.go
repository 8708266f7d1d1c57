package broker

import "time"

// LedgerStatus is the state of the ledger's store, for display. No decision depends on it.
type LedgerStatus struct {
	// RoundTrip is how long the database took to answer a ping. It is zero if there is no clock to measure with.
	RoundTrip time.Duration
	// Version is the version of the server. Primary means that the server accepts writes.
	Version string
	Primary bool
	// Entries is the number of ledger entries. Bytes is the size of all tables and indexes on disk.
	Entries, Bytes int64
	// Unrevoked is the number of credentials that should be dead but may not be.
	Unrevoked int64
	// Sweeper is the leadership for the sweep. Witnesses is the leadership for sending checkpoints to witnesses.
	Sweeper, Witnesses Leadership
	// Checkpoint is the latest one. It is zero if there is none.
	Checkpoint Checkpoint
	// Cosigned lists the latest checkpoint that each witness has cosigned, ordered by name. It leaves out witnesses that cosigned
	// none of the last thousand checkpoints.
	Cosigned []Cosigned
}

// Leadership is the state of a duty that one replica performs for all.
type Leadership struct {
	// Held means that some replica leads. Here means that it is this one.
	Held, Here bool
	// Term counts the elections. It is zero for a leadership without terms.
	Term int64
}

// Checkpoint is the size and the time of a signed checkpoint.
type Checkpoint struct {
	Size int64
	Time time.Time
}

// Cosigned is a checkpoint that a witness has cosigned, and when.
type Cosigned struct {
	Witness string
	Checkpoint
}

// A credential counts as unrevoked if its revocation takes longer than UnrevokedAfter, or if the response to its mint has been
// missing for longer than UnknownAfter.
const (
	UnrevokedAfter = alarmAfter
	UnknownAfter   = abandoned + alarmAfter
)

// VaultStatus is the state of Vault and of the broker's login.
type VaultStatus struct {
	// RoundTrip is how long Vault took to answer whether it is sealed.
	RoundTrip time.Duration
	Version   string
	Sealed    bool
	// Login is how long the broker's token lives without renewal. Zero means forever.
	Login time.Duration
	// Worked is when Vault last did what the broker asked for.
	Worked time.Time
}

// SigningKey is one version of the signing key.
type SigningKey struct {
	Key
	Created time.Time
	// Steady is when the key may start to sign: by then every verifier has fetched it.
	Steady time.Time
	// Signs means that the key signs now. Published means that verifiers can fetch it.
	Signs, Published bool
}
