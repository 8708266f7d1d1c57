// Package audit is what an auditor needs who trusts neither the database nor the broker: the form of the log's
// checkpoints and proofs, and the checks that hold entries, the Merkle tree over them and the current state to each
// other. The log is a tree as in RFC 6962, with checkpoints as in c2sp.org/tlog-checkpoint.
//
// It must never open a file or a connection, and never take over a value from the code that writes the ledger: it reads entries as anybody
// could who only knows their documentation.
package audit
