package broker

import "time"

// LedgerStatus is how the store of the record is doing, for people to look at: nothing is decided by it.
type LedgerStatus struct {
	// RoundTrip is what the database took to say that it is there; zero when there is no clock to measure by.
	RoundTrip time.Duration
	// Version is the server's own, and Primary whether what was asked is the one to write to.
	Version string
	Primary bool
	// Entries is how many the ledger has, and Bytes what all tables and indexes take on disk.
	Entries, Bytes int64
	// Unrevoked is how many credentials should be dead and are not known to be.
	Unrevoked int64
	// Sweeper is who brings on what is unfinished, and Witnesses who has checkpoints witnessed.
	Sweeper, Witnesses Leadership
	// Checkpoint is the last one; zero when there is none.
	Checkpoint Checkpoint
	// Cosigned is what each witness has cosigned last, by name; none that has cosigned none of the last thousand.
	Cosigned []Cosigned
}

// Leadership is what one replica does for all.
type Leadership struct {
	// Held tells that some replica does it, and Here that it is this one.
	Held, Here bool
	// Term counts those who were elected; zero for an office without.
	Term int64
}

// Checkpoint is the size that was signed for, and when.
type Checkpoint struct {
	Size int64
	Time time.Time
}

// Cosigned is a checkpoint with what a witness has said to it, and when.
type Cosigned struct {
	Witness string
	Checkpoint
}

// How long after it began a revocation may be under way, or an answer of Vault's missing, before that counts as unrevoked.
const (
	UnrevokedAfter = alarmAfter
	UnknownAfter   = abandoned + alarmAfter
)

// VaultStatus is how Vault is doing, and the broker's login to it.
type VaultStatus struct {
	// RoundTrip is what Vault took to say whether it is sealed.
	RoundTrip time.Duration
	Version   string
	Sealed    bool
	// Login is how long the broker's token lives on unless it is renewed; zero is for ever.
	Login time.Duration
	// Worked is when Vault last did for the broker what it was asked for.
	Worked time.Time
}

// SigningKey is one version of the signing key.
type SigningKey struct {
	Key
	Created time.Time
	// Steady is from when on it may sign: every verifier has seen it by then.
	Steady time.Time
	// Signs tells that it signs now, and Published that verifiers are given it.
	Signs, Published bool
}
