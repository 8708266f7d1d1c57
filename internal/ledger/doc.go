// Package ledger keeps Brevet's record in Postgres. The record is an append-only table of entries, each with a gapless index
// and a leaf hash. The statement that appends entries also updates the current state of every request that they concern.
// Commands are entries too. An append checks what commands forbid under the lock that orders all appends, so a command holds
// on every replica once it is committed. The package also says whether a token is in force, makes every replica forget a token
// that has ended, and finds live credentials.
//
// The package must never report a record as durable before Postgres has confirmed it or a read-back has proven it. It must
// never send a record a second time when the answer to the first attempt was lost. One bad record must never make other
// records fail. An error must never contain a connection's URL or a record's contents.
package ledger
