package mutants

// invariants break I1 to I16.
var invariants = []Mutant{
	{
		Claim: "I1", Breaks: "mints although the record could not be written",
		File: "broker/issue.go",
		Old:  "earlier, err = b.cfg.Ledger.Begin(ctx, rec); err == nil {", New: "earlier, err = b.cfg.Ledger.Begin(ctx, rec); err == nil || errors.Is(err, ErrLedgerUnavailable) {",
		Package: "broker", Test: "^TestIssueOrdersEvents$",
	},
	{
		Claim: "I13", Breaks: "lets a credential that is being revoked become issued again",
		File: "migrations/00002_issuances.sql",
		Old:  "WHEN 'redeemed' THEN becomes = 'redeemed'", New: "WHEN 'redeemed' THEN becomes IN ('redeemed', 'rejected')",
		Package: "internal/ledger", Test: "^TestStatesMoveForwardOnly$",
	},
}
