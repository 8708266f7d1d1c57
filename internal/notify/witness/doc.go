// Package witness sends the checkpoints of the ledger to other systems: to witnesses, which cosign only checkpoints that
// extend those they cosigned before (c2sp.org/tlog-witness), and to anchors, which store copies.
//
// It must never store a cosignature that it has not verified, and never delay the issuing of credentials.
package witness
