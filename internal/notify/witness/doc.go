// Package witness carries the checkpoints of the ledger out of the building: to witnesses, who cosign them only where they
// continue what they cosigned before (c2sp.org/tlog-witness), and to anchors, where copies of them lie.
//
// It must never keep a cosignature that it has not verified, and never have anybody wait who issues.
package witness
