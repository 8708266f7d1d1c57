package mutants

// Claim is a promise of SECURITY.md, or a crash point of docs/credentials.md.
type Claim struct {
	Name string
	Says string // in a few words
}

// Claims are all promises and crash points. A test that shows one names it in a comment, or in what it says when it fails.
var Claims = []Claim{
	{"I1", "Brevet sends no byte of a credential before its record is durable."},
	{"I2", "Every lease, token and certificate belongs to one issuance. Within 60 seconds of a crash, nothing is alive that was not delivered."},
	{"I3", "A credential lives no longer than the tightest bound on it."},
	{"I4", "What people have approved is issued once at most, and exactly as they were shown it."},
	{"I5", "A quorum is of distinct people who may decide. None of them is the one it is for."},
	{"I6", "After a revocation is acknowledged, no replica calls the credential active."},
	{"I7", "What was minted equals the intent, or it is not delivered."},
	{"I8", "Verification finds any change of the record."},
	{"I9", "No secret is in logs, database, errors, traces, metrics or core dumps."},
	{"I10", "After any error, timeout or undefined value, Brevet mints nothing."},
	{"I11", "A decision reads one snapshot."},
	{"I12", "Every denial and every refused call is recorded, or counted."},
	{"I13", "States only move forward, each with one writer."},
	{"I14", "One trust domain cannot read another's data, and a reader who is limited to a path cannot read what is beside it."},
	{"I15", "If the database goes back, nothing is issued."},
	{"I16", "Brevet keeps no secret that it has delivered."},
	{"T1", "A sandbox is compromised, or obeys what it has read."},
	{"T2", "A scope admin widens their own reach."},
	{"T3", "A database admin edits the record, or votes."},
	{"T4", "Somebody steals the broker's Vault token."},
	{"T5", "Somebody is in the middle of a connection to Vault or Postgres."},
	{"T6", "One trust domain acts in another."},
	{"T7", "An approval is forged, or is for something else than people saw."},
	{"T8", "Somebody replays a token, a proof or a request."},
	{"T9", "An agent loops."},
	{"T10", "Somebody steals logs, traces or core dumps."},
	{"T11", "A neighbour is loud: it tries to use up queues, the record, disk or the console."},
	{"T12", "A sandbox reaches around its gateway, into it, or to the sandbox beside it."},
	{"C1", "The fault comes before the intent is committed."},
	{"C2", "The answer to that commit is lost."},
	{"C3", "Vault's answer with the short-lived token is lost."},
	{"C4", "Vault's answer with the secret is lost."},
	{"C5", "Vault has made the credential, and this is not recorded."},
	{"C6", "This is recorded, and the credential is neither written to the caller nor renewed."},
	{"C7", "The answer cannot be written to the caller."},
	{"C8", "The credential is inactive at Brevet, and Vault has not ended it or this is not recorded."},
	{"C9", "People have approved a request, and its intent is not committed."},
}
