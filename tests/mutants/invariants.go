package mutants

// invariants break I1 to I16. Where a promise has several bounds or halves, each has a mutant.
var invariants = []Mutant{
	{
		Claim: "I1", Breaks: "mints although the record could not be written",
		File: "broker/issue.go",
		Old:  "earlier, err = b.cfg.Ledger.Begin(ctx, rec); err == nil {", New: "earlier, err = b.cfg.Ledger.Begin(ctx, rec); err == nil || errors.Is(err, ErrLedgerUnavailable) {",
		Package: "broker", Test: "^TestIssueOrdersEvents$",
	},
	{
		Claim: "I1", Breaks: "delivers a Vault credential although what was minted could not be recorded",
		File: "broker/issue.go",
		Old:  "Minted: credential.Minted})\n\tif err != nil {", New: "Minted: credential.Minted})\n\tif err != nil && !errors.Is(err, ErrLedgerUnavailable) {",
		Package: "broker", Test: "^TestDynamicCredentialOrdersEvents$",
	},
	{
		Claim: "I2", Breaks: "forgets an order to revoke that could not be carried out",
		File: "broker/sweep.go",
		Old:  "return (open || h.Kind == scopes.KindGitHub) && ordered(h)", New: "return (open || h.Kind == scopes.KindGitHub) && !ordered(h)",
		Package: "broker", Test: "^TestSweepRetriesFailedRevocations$",
	},
	{
		Claim: "I2", Breaks: "makes credentials that live their whole time before they are delivered",
		File: "internal/mint/grant.go",
		Old:  "ttl := min(left, int(broker.UnrenewedLife/time.Second))", New: "ttl := left",
		Package: "internal/mint", Test: "^TestUnrenewedCredentialsExpire$",
	},
	{
		Claim: "I3", Breaks: "grants a longer life than the scope's maximum",
		File: "scopes/decide.go",
		Old:  "clamp(BoundScopeMax, def.scope.TTL.Max)", New: "clamp(BoundScopeMax, max(def.scope.TTL.Max, def.scope.TTL.Default*5))",
		Package: "scopes", Test: "^TestDecide$",
	},
	{
		Claim: "I3", Breaks: "lets a credential that is bound to an SVID outlive it by a part of a second",
		File: "scopes/decide.go",
		Old:  "clamp(BoundSVID, max(0, who.Expires.Sub(now).Truncate(time.Second)))", New: "clamp(BoundSVID, max(0, who.Expires.Sub(now).Round(time.Second)))",
		Package: "scopes", Test: "^TestDecide$",
	},
	{
		Claim: "I3", Breaks: "ignores when the person's ID token expires",
		File: "scopes/decide.go",
		Old:  "if who.User != nil && !who.User.Until.IsZero() {", New: "if who.User != nil && who.User.Until.IsZero() {",
		Package: "scopes", Test: "^TestIDTokenBoundsTheTTL$",
	},
	{
		Claim: "I3", Breaks: "lets an exchanged token outlive its parent",
		File: "broker/tokenexchange.go",
		Old:  "if d.Outcome == scopes.Allow && d.TTL > left {", New: "if d.Outcome == scopes.Allow && d.TTL > 2*left {",
		Package: "broker", Test: "^TestDelegatedTokenEndsWithItsParent$",
	},
	{
		Claim: "I3", Breaks: "makes a break-glass credential that lives for an hour",
		File: "scopes/decide.go",
		Old:  "if d.TTL > BreakGlassTTL {", New: "if d.TTL > 2*BreakGlassTTL {",
		Package: "scopes", Test: "^TestBreakGlassCredentialIsShortLived$",
	},
	{
		Claim: "I3", Breaks: "keeps a credential that Vault renewed for longer than granted",
		File: "internal/mint/lifecycle.go",
		Old:  "case r.got > wanted:", New: "case r.got > 2*wanted:",
		Package: "internal/mint", Test: "^TestUnexpectedRenewalIsRefused$",
	},
	{
		Claim: "I3", Breaks: "accepts a renewal for too long of a login that no token ends",
		File: "internal/mint/lifecycle.go",
		Old:  `if minted.Accessor != "" { // the lease ends with its token`, New: "if minted.Lease != \"\" {",
		Package: "internal/mint", Test: "^TestUnexpectedRenewalOfACarriedLoginIsRefused$",
	},
	{
		Claim: "I3", Breaks: "makes a login with a shared token that would end it early",
		File: "internal/mint/carrier.go",
		Old:  "needed := &m.carriers, intent.Grant.Policy, intent.Expires.Add(carrierSlack)", New: "needed := &m.carriers, intent.Grant.Policy, m.cfg.Now()",
		Package: "internal/mint", Test: "^TestCarrierOutlivesItsLogins$",
	},
	{
		Claim: "I4", Breaks: "redeems an approval again although its first credential reached the sandbox and was revoked later",
		File: "migrations/00003_approvals.sql",
		Old: `OR p.leased AND p.status = 'revoked' AND p.status_detail = 'undelivered'))));
END $$;

-- One approval is good for one live credential, whatever else goes wrong.
CREATE UNIQUE INDEX issuances_one_per_approval ON issuances (approves)
    WHERE approves IS NOT NULL AND status NOT IN ('failed', 'compensated')
        AND NOT (leased AND status = 'revoked' AND status_detail = 'undelivered');`,
		New: `OR p.status = 'revoked'))));
END $$;

-- One approval is good for one live credential, whatever else goes wrong.
CREATE UNIQUE INDEX issuances_one_per_approval ON issuances (approves)
    WHERE approves IS NOT NULL AND status NOT IN ('failed', 'compensated', 'revoked');`,
		Package: "internal/ledger", Test: "^TestDeliveredCredentialUsesUpItsApproval$",
	},
	{
		Claim: "I4", Breaks: "counts a vote on a request that a change of the catalogue has made void",
		File: "internal/ledger/announce.go",
		Old:  " AND NOT is_void(item.id)", New: "",
		Package: "internal/ledger", Test: "^TestCatalogueChangeMakesOpenRequestsVoid$",
	},
	{
		Claim: "I4", Breaks: "redeems an approval after the catalogue changed and changed back",
		File: "migrations/00003_approvals.sql",
		Old:  "            AND NOT outdated(i.entry_index)\n            AND (i.status", New: "            AND (i.status",
		Package: "internal/ledger", Test: "^TestCatalogueChangeMakesOpenRequestsVoid$",
	},
	{
		Claim: "I4", Breaks: "issues for another key than people were shown",
		File: "migrations/00003_approvals.sql",
		Old:  "            AND i.jkt IS NOT DISTINCT FROM NEW.jkt AND i.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of\n            AND i.on_behalf_groups", New: "            AND i.on_behalf_of IS NOT DISTINCT FROM NEW.on_behalf_of\n            AND i.on_behalf_groups",
		Package: "internal/ledger", Test: "^TestApprovalIsForOneKey$",
	},
	{
		Claim: "I4", Breaks: "gives what people have approved for one key to a request with another",
		File: "migrations/00003_approvals.sql",
		Old:  "AND likeness(i.canonical) = wanted;", New: "AND likeness(i.canonical) - 'jkt' = wanted - 'jkt';",
		Package: "internal/httpapi", Test: "^TestOnlyAnEqualRequestCollects$",
	},
	{
		Claim: "I5", Breaks: "counts two votes of one person as two people",
		File: "broker/approval/approval.go",
		Old:  "distinct[v.Voter.ID] = true", New: "distinct[v.Voter.ID+v.Time.String()] = true",
		Package: "broker/approval", Test: "^TestPersonCountsOnce$",
	},
	{
		Claim: "I5", Breaks: "lets the owner of a sandbox vote on its requests",
		File: "broker/approval/approval.go",
		Old:  "case p.Owners.Owns(v.Handle, r.SPIFFEID), r.User", New: "case r.User",
		Package: "broker/approval", Test: "^TestNext$",
	},
	{
		Claim: "I5", Breaks: "redeems with the vote of a person who has left the group",
		File: "migrations/00003_approvals.sql",
		Old:  "v.verdict = 'approve' AND i.approval_group = ANY (p.groups) AND", New: "v.verdict = 'approve' AND",
		Package: "internal/ledger", Test: "^TestUnapprovedRequestIsNotRedeemed$",
	},
	{
		Claim: "I5", Breaks: "lets the console vote with the groups of an old login",
		File: "internal/console/session.go",
		Old:  "return c.cfg.Now().Sub(who.Began) <= c.cfg.LoginMaxAge", New: "return !who.Began.IsZero()",
		Package: "internal/console", Test: "^TestChangeRequiresARecentLogin$",
	},
	{
		Claim: "I5", Breaks: "sends the vote that somebody else has typed",
		File: "internal/console/session.go",
		Old:  "if k.Person != c.nameless(who.Person) {", New: "if k.Person == \"\" {",
		Package: "internal/console", Test: "^TestVoteSurvivesTheEndOfTheSession$",
	},
	{
		Claim: "I5", Breaks: "lets people vote on requests on their own behalf",
		File: "migrations/00003_approvals.sql",
		Old:  "i.id = NEW.request AND i.on_behalf_of = NEW.voter", New: "i.id = NEW.request AND i.spiffe_id = NEW.voter",
		Package: "internal/ledger", Test: "^TestPersonCannotApproveOnTheirOwnBehalf$",
	},
	{
		Claim: "I6", Breaks: "acknowledges a revocation before the other replicas know of it",
		File: "broker/end.go",
		Old:  "\tb.cfg.Tokens.WaitForReplicas(ctx)\n\tlisted :=", New: "\tlisted :=",
		Package: "broker", Test: "^TestRevocationIsConfirmedOnceAllReplicasKnow$",
	},
	{
		Claim: "I6", Breaks: "does not tell a replica's cache of revocations",
		File: "internal/ledger/replica.go",
		Old:  "'issuance.issued', 'issuance.reported', 'call.refused'", New: "'issuance.issued', 'issuance.reported', 'issuance.revoked', 'call.refused'",
		Package: "internal/ledger", Test: "^TestEndedTokenLeavesEveryCache$",
	},
	{
		Claim: "I6", Breaks: "exchanges a token after it has ended",
		File: "migrations/00002_issuances.sql",
		Old:  "WHERE a.status <> 'issued' OR a.expires_at <= moment OR", New: "WHERE a.expires_at <= moment OR",
		Package: "internal/ledger", Test: "^TestTokenIsNotExchangedAfterAnAncestorHasEnded$",
	},
	{
		Claim: "I6", Breaks: "promises to revoke a key that nobody can revoke",
		File: "internal/mint/farside.go",
		Old:  "case firstText(answer.Data, \"session_token\", \"security_token\") != \"\":", New: "case firstText(answer.Data, \"token_of_session\") != \"\":",
		Package: "internal/mint", Test: "^TestLeasesThatEndNothingAreNotCounted$",
	},
	{
		Claim: "I6", Breaks: "says revoked because a standby does not know the credential yet",
		File: "internal/mint/active.go",
		Old:  "\tif !m.hasStandbys(ctx) {\n\t\treturn m.exchange", New: "\tif m != nil {\n\t\treturn m.exchange",
		Package: "internal/mint", Test: "^TestStandbysConfirmNoEnd$",
	},
	{
		Claim: "I6", Breaks: "says revoked although Vault still has the lease",
		File: "internal/mint/lifecycle.go",
		Old:  "if err == nil && alive {\n\t\terr = fmt.Errorf(\"%w: %w\", broker.ErrVaultUnavailable, errStillThere)\n\t}", New: "_ = alive",
		Package: "internal/mint", Test: "^TestRevocationNeedsVaultsConfirmation$",
	},
	{
		Claim: "I7", Breaks: "delivers a token whose signature it has not verified",
		File: "internal/mint/sign.go",
		Old:  "Verify(input, got.signature, v.public) != nil {", New: "Verify(input, got.signature, v.public) != nil && len(got.signature) == 0 {",
		Package: "internal/mint", Test: "^TestMintReleasesOnlyTheIntendedToken$",
	},
	{
		Claim: "I7", Breaks: "delivers a key that another system accepts for longer than it was granted",
		File: "internal/mint/farside.go",
		Old:  "case got > wanted:", New: "case got > 9*wanted:",
		Package: "internal/mint", Test: "^TestLivesOfTheOtherSystemThatDifferAreRefused$",
	},
	{
		Claim: "I7", Breaks: "accepts a Vault token that has one policy more than intended",
		File: "internal/mint/grant.go",
		Old:  "case !slices.Equal(auth.Policies, only), auth", New: "case !slices.Contains(auth.Policies, only[0]), auth",
		Package: "internal/mint", Test: "^TestUnexpectedVaultTokenIsRevoked$",
	},
	{
		Claim: "I8", Breaks: "takes a signed checkpoint as good although the entries do not match it",
		File: "internal/audit/evidence.go",
		Old:  "if signed.N != v.next || v.lost || v.resolve(signed) {", New: "if v.resolve(signed); true {",
		Package: "tests/tamper", Test: "^TestTampering$",
	},
	{
		Claim: "I8", Breaks: "does not miss a tail that was cut off together with the head",
		File: "internal/audit/evidence.go",
		Old:  "case max(size, v.last) > v.next:", New: "case size > v.next:",
		Package: "tests/tamper", Test: "^TestTampering$",
	},
	{
		Claim: "I9", Breaks: "prints a secret that is logged or formatted",
		File: "internal/secret/secret.go",
		Old:  "func (Text) LogValue() slog.Value         { return slog.StringValue(redacted) }", New: "func (t Text) LogValue() slog.Value       { return slog.StringValue(t.Reveal()) }",
		Package: "internal/secret", Test: "^TestSecretIsNeverPrinted$",
	},
	{
		Claim: "I9", Breaks: "repeats a token in an error when an answer of Vault does",
		File: "internal/safetext/safetext.go",
		Old:  "if len(word) > longestWord {", New: "if len(word) > 10*longestWord {",
		Package: "internal/mint", Test: "^TestInvalidGrantResponseIsRevokedOrLost$/^echoes_at_",
	},
	{
		Claim: "I9", Breaks: "logs the token that another system repeats when it refuses the exchange",
		File: "internal/egress/exchange.go",
		Old:  "text = newMask(e.hidden).text(text)\n", New: "\n",
		Package: "internal/egress", Test: "^TestFailedExchangesAreRefused$/^refusal$",
	},
	{
		Claim: "I10", Breaks: "authenticates with a trust bundle that has been stale for more than a day",
		File: "attest/bundle.go",
		Old:  "if h.err != nil && h.now().Sub(h.since) > MaxStale {", New: "if h.err != nil && h.now().Sub(h.since) > 2*MaxStale {",
		Package: "internal/httpapi", Test: "^TestStaleBundleIsUsedForADay$",
	},
	{
		Claim: "I10", Breaks: "permits a request by the other policies when one cannot be evaluated",
		File: "scopes/decide.go",
		Old:  "v.erred = append(v.erred, string(e.PolicyID))", New: "_ = e",
		Package: "scopes", Test: "^TestFailingPolicyDenies$",
	},
	{
		Claim: "I10", Breaks: "issues although the database refuses to count the request against its limits",
		File: "internal/ledger/append.go",
		Old:  "answers = same(batch, postgres.Unavailable(\"committing\", err))\n\tdefault:", New: "answers = same(batch, nil)\n\tdefault:",
		Package: "internal/httpapi", Test: "^TestLimitsFailClosed$",
	},
	{
		Claim: "I11", Breaks: "records a decision under a catalogue that is no longer in force",
		File: "migrations/00002_issuances.sql",
		Old:  "WHEN t.catalogue <> in_force THEN 'superseded'", New: "WHEN t.catalogue <> in_force AND t.task IS NULL THEN 'superseded'",
		Package: "internal/ledger", Test: "^TestRecordUnderAnotherCatalogueIsRefused$",
	},
	{
		Claim: "I12", Breaks: "does not record a refused handshake",
		File: "internal/httpapi/http.go",
		Old:  "recordHandshake(core, log, remote.String(), refusal.Reason(refused))", New: "log.Info(\"handshake refused\", \"remote\", remote.String(), \"reason\", refusal.Reason(refused))",
		Package: "internal/httpapi", Test: "^TestRefusedHandshakesAreRecorded$",
	},
	{
		Claim: "I12", Breaks: "loses the count of refusals when one cannot be recorded",
		File: "broker/refuse.go",
		Old:  "sampler.PutBack(kind, suppressed+1)", New: "_ = suppressed",
		Package: "broker", Test: "^TestRefusalsAreSampledAndCountedExactly$",
	},
	{
		Claim: "I13", Breaks: "lets a credential that is being revoked become issued again",
		File: "migrations/00002_issuances.sql",
		Old:  "WHEN 'revoking' THEN becomes IN ('revoked', 'released')", New: "WHEN 'revoking' THEN becomes IN ('issued', 'revoked', 'released')",
		Package: "internal/ledger", Test: "^TestStatesMoveForwardOnly$",
	},
	{
		Claim: "I13", Breaks: "lets a sweeper that no longer leads move states",
		File: "internal/ledger/append.go",
		Old:  "m.term IS NULL OR m.term = m.current_term", New: "m.term IS NULL OR m.term <= m.current_term",
		Package: "internal/ledger/leader", Test: "^TestDeposedLeader$",
	},
	{
		Claim: "I13", Breaks: "makes an ended token active again by an answer that comes late",
		File: "internal/tokencache/tokencache.go",
		Old:  "if max(k.young[id].at, k.old[id].at) <= t.at {", New: "if t.at >= 0 {",
		Package: "internal/tokencache", Test: "^TestLateAnswerDoesNotReviveAnEndedToken$",
	},
	{
		Claim: "I14", Breaks: "shows records of other trust domains to a reader with a role in one",
		File: "internal/ledger/record/record.go",
		Old:  "trustDomain+\" = ANY (@reach_domains::text[])\"", New: "trustDomain+\" >= ANY (@reach_domains::text[])\"",
		Package: "internal/ledger", Test: "^TestQueriesStayWithinReach$",
	},
	{
		Claim: "I14", Breaks: "shows what is beside a path to a reader who is limited to it",
		File: "internal/ledger/record/record.go",
		Old:  "spiffe_id >= @%[1]s::text || '/' AND", New: "spiffe_id >= @%[1]s::text AND",
		Package: "internal/ledger", Test: "^TestQueriesStayWithinReach$",
	},
	{
		Claim: "I14", Breaks: "takes a SPIFFE ID for one below a path because it begins like it",
		File: "broker/record.go",
		Old:  "rest, ok := strings.CutPrefix(id, prefix)\n\treturn ok && (rest == \"\" || rest[0] == '/')", New: "return strings.HasPrefix(id, prefix)",
		Package: "broker", Test: "^TestReachCovers$",
	},
	{
		Claim: "I15", Breaks: "goes on with a database that has fewer entries than the replica has seen",
		File: "internal/ledger/tlog/seal.go",
		Old:  "case size < last.N || seen != nil && last.N < seen.N:", New: "case size < last.N:",
		Package: "internal/ledger", Test: "^TestRolledBackDatabaseRefusesAppends$",
	},
	{
		Claim: "I15", Breaks: "goes on with a database that has less than the file of checkpoints says",
		File: "internal/ledger/tlog/tlog.go",
		Old:  "\tl.judge(ctx, err)\n\treturn nil\n}\n\n// Growth", New: "\treturn nil\n}\n\n// Growth",
		Package: "internal/ledger", Test: "^TestOlderBackupBlocksAppends$",
	},
	{
		Claim: "I15", Breaks: "goes on with a database that does not have what was signed",
		File: "internal/ledger/tlog/seal.go",
		Old:  "if tree.Hash != last.Hash && last.N > 0 {", New: "if tree.Hash != last.Hash && last.N < 0 {",
		Package: "internal/ledger", Test: "^TestRolledBackDatabaseRefusesAppends$",
	},
	{
		Claim: "I15", Breaks: "appends to a database that lacks the last entry that the replica has appended",
		File: "internal/ledger/append.go",
		Old:  "if err == nil && !there {", New: "if err == nil && !there && known.index < 0 {",
		Package: "internal/ledger", Test: "^TestMissingLastEntryBlocksAppends$",
	},
	{
		Claim: "I16", Breaks: "records a login together with its password",
		File: "internal/mint/grant.go",
		Old:  "return handOver(made, made.Username, sha", New: "return handOver(made, made.Username+\":\"+made.Password, sha",
		Package: "tests/canary", Test: "^TestCanaries$",
	},
}
