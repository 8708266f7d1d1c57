// Package audit is for an auditor who trusts neither the database nor the broker. It defines the format of the log's
// checkpoints and proofs, and it checks the entries, the Merkle tree over them and the current state against each other.
// The log is a tree as in RFC 6962, with checkpoints as in c2sp.org/tlog-checkpoint.
//
// It must never open a file or a connection, and never take a value from the code that writes the ledger: it reads entries
// as anybody could who knows only their documentation.
package audit
