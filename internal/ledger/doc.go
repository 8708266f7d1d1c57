// Package ledger keeps Brevet's record in Postgres: an append-only table of entries with a gapless index and a leaf
// hash each, and beside it the current state of every request, written by the same statement. Commands are entries too:
// what they forbid is looked up under the lock that orders all appends, so it holds on every replica once it is
// committed. It also finds what is alive, and elects the one replica that sweeps.
//
// It must never say that a record is durable before Postgres has said so or a read-back has proven it, never send a
// record a second time when the answer to the first was lost, never let one bad record take others down with it, and
// never put a connection's URL or a record's contents into an error.
package ledger
