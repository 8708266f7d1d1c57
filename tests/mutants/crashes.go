package mutants

// crashes break what happens at C1 to C9.
var crashes = []Mutant{
	{
		Claim: "C1", Breaks: "commits a queued request although its caller has given up",
		File:    "internal/ledger/append.go",
		Old:     "\t\t\tj.taken.Swap(true)\n\t\t\treturn nil, postgres.Unavailable(\"waiting for a commit\"",
		New:     "\t\t\treturn nil, postgres.Unavailable(\"waiting for a commit\"",
		Package: "internal/ledger", Test: "^TestCallerThatGivesUp$",
	},
	{
		Claim: "C2", Breaks: "takes a lost answer for a failed commit, and does not read back",
		File: "internal/ledger/append.go",
		Old:  "answers = l.readBack(ctx, batch, err)", New: "answers = same(batch, postgres.Unavailable(\"committing\", err))",
		Package: "internal/ledger", Test: "^TestBeginSurvivesALostCommitResponse/^cut_before_the_answer$",
	},
	{
		Claim: "C2", Breaks: "takes a lost answer for a commit, without finding the record",
		File: "internal/ledger/append.go",
		Old:  "if !slices.Contains(leaves, j.entry.leaf) {", New: "if err != nil && !slices.Contains(leaves, j.entry.leaf) {",
		Package: "internal/ledger", Test: "^TestBeginSurvivesALostCommitResponse/^cut_before_the_statement$",
	},
	{
		Claim: "C3", Breaks: "takes a lost answer with a token for no token",
		File: "internal/mint/grant.go",
		Old:  "return nil, &broker.LostMintError{Err: err}\n", New: "return nil, err\n",
		Package: "internal/mint", Test: "^TestInvalidGrantResponseIsRevokedOrLost/^hangs_up_at_auth",
	},
	{
		Claim: "C3", Breaks: "leaves a request that was begun and never finished",
		File: "broker/sweep.go",
		Old:  "return s.move(ctx, h, StatusCompensated, unfinished)", New: "return false",
		Package: "broker", Test: "^TestSweepAdvances/^begun_and_never_finished_.C3.$",
	},
	{
		Claim: "C4", Breaks: "asks Vault once more when the answer with the credential is lost",
		File: "internal/mint/grant.go",
		Old:  "\tanswer, err := do(bounded)\n", New: "\tanswer, err := do(bounded)\n\tif err != nil && statusOf(err)/100 != 4 {\n\t\tanswer, err = do(bounded)\n\t}\n",
		Package: "internal/mint", Test: "^TestInvalidGrantResponseIsRevokedOrLost/^hangs_up_at_database",
	},
	{
		Claim: "C4", Breaks: "records a lost credential as one that was never made",
		File: "broker/issue.go",
		Old:  "if errors.As(cause, &lost) {", New: "if errors.As(cause, &lost) && lost.VaultLease.Lease != \"\" {",
		Package: "broker", Test: "^TestDynamicCredentialOrdersEvents/^answer_lost_.C4.$",
	},
	{
		Claim: "C4", Breaks: "compensates a lost credential without revoking its token",
		File: "broker/sweep.go",
		Old:  "if !h.lease().Empty() && s.revokeLease(ctx, h) != nil {", New: "if h.Kind == scopes.KindVaultToken && s.revokeLease(ctx, h) != nil {",
		Package: "broker", Test: "^TestSweepAdvances/^lost_with_a_handle_.C4.$",
	},
	{
		Claim: "C4", Breaks: "says that a token of GitHub never was, although GitHub may have made it",
		File: "broker/sweep.go",
		Old:  "case h.Status == StatusIntent && h.Kind == scopes.KindGitHub:\n\t\treturn s.settle(ctx, h)", New: "case false:\n\t\treturn s.settle(ctx, h)",
		Package: "broker", Test: "^TestSweepAdvances/^GitHub_was_asked,_nobody_has_the_token_.C4.$",
	},
	{
		Claim: "C5", Breaks: "leaves a token of GitHub alive that Vault could not store",
		File: "internal/mint/github.go",
		Old:  "if app.client.DeleteToken(ending, app.App, token.Secret) == nil && m.forgetGitHub", New: "if ending != nil && m.forgetGitHub",
		Package: "internal/mint", Test: "^TestVaultFailsWhileATokenIsMade$",
	},
	{
		Claim: "I6", Breaks: "records a token of GitHub as expired that is alive there",
		File: "broker/sweep.go",
		Old:  "if s.revokeLease(ctx, h) == nil {\n\t\t\treturn s.move", New: "if h.ID != \"\" {\n\t\t\treturn s.move",
		Package: "broker", Test: "^TestSweepAdvances/^a_token_of_GitHub_is_past_its_time$",
	},
	{
		Claim: "I7", Breaks: "accepts a token of GitHub with other permissions than the scope's",
		File: "internal/mint/github.go",
		Old:  "if other, wrong := errors.AsType[*github.GrantError](err); wrong {", New: "if other, wrong := errors.AsType[*github.GrantError](err); wrong && token.Expires.After(other.Token.Expires) {",
		Package: "internal/mint", Test: "^TestFailedInstallationTokenLeavesNothing$",
	},
	{
		Claim: "C4", Breaks: "says that a lost key is over while another system accepts it",
		File: "broker/sweep.go",
		Old:  "if h.mayBeElsewhere() && s.cfg.Now().Before(h.Expires) {", New: "if h.mayBeElsewhere() && s.cfg.Now().After(h.Expires) {",
		Package: "broker", Test: "^TestSweepAdvances/^irrevocable_and_lost,_may_live$",
	},
	{
		Claim: "C5", Breaks: "leaves a credential alive that it could not record",
		File:    "broker/issue.go",
		Old:     "b.discard(ctx, rec, credential.Minted.VaultLease)\n\t\tif errors.Is(err, ErrInvalidTransition) {",
		New:     "if errors.Is(err, ErrInvalidTransition) {\n\t\t\tb.discard(ctx, rec, credential.Minted.VaultLease)",
		Package: "broker", Test: "^TestDynamicCredentialOrdersEvents/^not_recorded_.C5.$",
	},
	{
		Claim: "C6", Breaks: "lets a credential live to its end without a renewal",
		File: "internal/mint/grant.go",
		Old:  "ttl := min(left, int(broker.UnrenewedLife/time.Second))", New: "ttl := left",
		Package: "internal/mint", Test: "^TestLeasedCredentials/^token$",
	},
	{
		Claim: "C6", Breaks: "keeps a record as issued although Vault has ended the credential",
		File: "broker/sweep.go",
		Old:  "if err == nil && !alive {\n\t\ts.end(", New: "if err == nil && !alive && h.Detail != \"\" {\n\t\ts.end(",
		Package: "broker", Test: "^TestSweepExpiresUnrenewedCredentials$",
	},
	{
		Claim: "C7", Breaks: "revokes what was not delivered only after a panic, and renews it after an error",
		File: "broker/issue.go",
		Old:  "\t\tif err != nil {\n\t\t\tb.end(ctx,", New: "\t\tif errors.Is(err, errUndelivered) {\n\t\t\tb.end(ctx,",
		Package: "broker", Test: "^TestDynamicCredentialOrdersEvents/^not_written_.C7.$",
	},
	{
		Claim: "C7", Breaks: "renews a credential whose answer a panic has cut off",
		File: "broker/issue.go",
		Old:  "\terr = errUndelivered // also after a panic\n", New: "",
		Package: "internal/httpapi", Test: "^TestLeaseIsRenewedOnlyAfterDelivery$",
	},
	{
		Claim: "C7", Breaks: "takes an answer that it could not flush for delivered",
		File: "internal/httpapi/tokens.go",
		Old:  "\t\terr = http.NewResponseController(inner).Flush()\n", New: "\t\t_ = http.NewResponseController(inner).Flush()\n",
		Package: "internal/httpapi", Test: "^TestLeaseIsRenewedOnlyAfterDelivery$",
	},
	{
		Claim: "C8", Breaks: "leaves a revocation that another replica has begun",
		File: "broker/sweep.go",
		Old:  "return s.revoke(ctx, h, s.term).Why == \"\"", New: "return false",
		Package: "broker", Test: "^TestSweepAdvances/^revoking_.C8.$",
	},
	{
		Claim: "C8", Breaks: "takes a revocation that was begun for one that Vault has carried out",
		File: "broker/sweep.go",
		Old:  "return s.revoke(ctx, h, s.term).Why == \"\"", New: "return s.move(ctx, h, final(h.Detail), h.Detail)",
		Package: "broker", Test: "^TestSweepAdvances/^revoking_.C8.$",
	},
	{
		Claim: "C9", Breaks: "uses up an approval whose intent is not committed",
		File: "internal/ledger/append.go",
		Old:  "FROM item WHERE i.id = item.approves AND item.verdict IS NULL", New: "FROM item WHERE i.id = item.approves",
		Package: "internal/ledger", Test: "^TestApprovalIsKeptUntilItsIntentIsCommitted$",
	},
}
