package mutants

// threats break what stops T1 to T12.
var threats = []Mutant{
	{
		Claim: "T1", Breaks: "permits what no policy mentions",
		File: "scopes/decide.go",
		Old:  "case v.permitted:\n", New: "case v.permitted, len(v.decided) == 0:\n",
		Package: "scopes", Test: "^TestNoRequestFieldChangesTheSubject$",
	},
	{
		Claim: "T1", Breaks: "accepts parameters that the scope does not have",
		File: "scopes/params.go",
		Old:  "return nil, invalid(field, \"is unknown; this scope takes %s\", takes)", New: "_ = []string{field, takes}",
		Package: "scopes", Test: "^TestDecideRefusesMalformedRequests$",
	},
	{
		Claim: "T2", Breaks: "lets an admin approve their own catalogue",
		File: "broker/catalogue.go",
		Old:  "if open.Actor == v.Actor {", New: "if open.ID == v.Actor {",
		Package: "internal/httpapi", Test: "^TestCatalogueNeedsASecondAdmin$",
	},
	{
		Claim: "T2", Breaks: "applies a change of one admin at once",
		File: "broker/catalogue.go",
		Old:  "\t\tstep.Becomes = CatalogueProposed\n", New: "",
		Package: "internal/httpapi", Test: "^TestCatalogueNeedsASecondAdmin$",
	},
	{
		Claim: "T3", Breaks: "lets the owner of the database edit entries",
		File: "migrations/00001_ledger.sql",
		Old:  "CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries", New: "CREATE TRIGGER entries_append_only BEFORE DELETE OR TRUNCATE ON entries",
		Package: "internal/ledger", Test: "^TestDatabaseRolesHaveOnlyTheirPrivileges$",
	},
	{
		Claim: "T3", Breaks: "lets a database login run code as the owner of the database",
		File: "migrations/00006_access.sql",
		Old:  "extend_entries, follow_entries,\n", New: "extend_entries,\n",
		Package: "internal/ledger", Test: "^TestFunctionsOfTheOwnerAreClosed$",
	},
	{
		Claim: "T3", Breaks: "lets a database login add a person whom no entry names",
		File: "migrations/00003_approvals.sql",
		Old:  "CREATE TRIGGER people_entry_says_so AFTER INSERT OR UPDATE ON people", New: "CREATE TRIGGER people_entry_says_so AFTER UPDATE ON people",
		Package: "internal/ledger", Test: "^TestForgedApprovals$",
	},
	{
		Claim: "T3", Breaks: "counts approvals without checking the signatures of their passkeys",
		File: "broker/approval/approval.go",
		Old:  "p.Entitled(v.Voter, says, r) == nil && p.signed(v, r) == nil", New: "p.Entitled(v.Voter, says, r) == nil",
		Package: "broker/approval", Test: "^TestNoVoteCountsWithoutASignature$",
	},
	{
		Claim: "T4", Breaks: "may make Vault tokens that hold the default policy too",
		File: "internal/mint/policy.hcl",
		Old:  "\"policies\"          = []\n    \"no_default_policy\" = [true]", New: "\"policies\"          = []\n    \"no_default_policy\" = []",
		Package: "internal/mint", Test: "^TestVaultPolicyAllowsNothingElse$",
	},
	{
		Claim: "T4", Breaks: "may make copies of itself that have no limit of uses",
		File: "internal/mint/policy.hcl",
		Old:  "\"num_uses\"          = [\"1000\"]", New: "\"num_uses\"          = []",
		Package: "internal/mint", Test: "^TestVaultPolicyAllowsNothingElse$",
	},
	{
		Claim: "T4", Breaks: "may make Vault tokens of every role",
		File: "internal/mint/policy.hcl",
		Old:  "path \"auth/token/create/{{token_role}}\" {", New: "path \"auth/token/create/*\" {",
		Package: "internal/mint", Test: "^TestVaultPolicyAllowsNothingElse$",
	},
	{
		Claim: "T5", Breaks: "accepts any certificate of Vault if no authority is pinned",
		File: "internal/mint/transport.go",
		Old:  "trust := &tls.Config{MinVersion: tls.VersionTLS12}", New: "trust := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: cfg.CAFile == \"\"}",
		Package: "internal/mint", Test: "^TestVaultIsTrustedByThePinnedAuthorityAlone$",
	},
	{
		Claim: "T5", Breaks: "reaches Postgres with TLS that does not verify the server",
		File: "migrations/network.go",
		Old:  "t.TLSConfig != nil && !t.TLSConfig.InsecureSkipVerify && ", New: "t.TLSConfig != nil && ",
		Package: "migrations", Test: "^TestURLOverAnUnprotectedNetworkIsRefused$",
	},
	{
		Claim: "T6", Breaks: "merges the bundles of the trust domains",
		File: "attest/x509.go",
		Old:  "authorities := slices.DeleteFunc(bundle.X509Authorities(), ",
		New: `merged := bundle.X509Authorities()
	for other := range a.domains {
		if more, err := a.bundles.GetX509BundleForTrustDomain(other); err == nil {
			merged = append(merged, more.X509Authorities()...)
		}
	}
	authorities := slices.DeleteFunc(merged, `,
		Package: "attest", Test: "^TestX509Refuses$",
	},
	{
		Claim: "T6", Breaks: "makes an admin of one trust domain an admin of all",
		File: "internal/httpapi/roles.go",
		Old:  "by[role.ID] = append(by[role.ID], td.IDString())", New: "by[role.ID] = append(by[role.ID], map[bool]string{true: people.Everywhere}[!td.IsZero()])",
		Package: "internal/httpapi", Test: "^TestRecordOutsideReachIsNotFound$",
	},
	{
		Claim: "T7", Breaks: "counts a vote on other content than the voter was shown",
		File: "broker/approval.go",
		Old:  "if c.Canonical == \"\" || c.Hash() != cast.Hash {", New: "if c.Canonical == \"\" {",
		Package: "internal/httpapi", Test: "^TestIneligibleVotesAreRefused$",
	},
	{
		Claim: "T7", Breaks: "shows requests as the same if their large numbers are the same as floats",
		File: "broker/approval/shown.go",
		Old:  "\t\tParams json.RawMessage `json:\"params\"` // as written, because two large numbers may be equal as floats\n", New: "",
		Package: "broker/approval", Test: "^TestRequestsWithOneKeyShowTheSameContent$",
	},
	{
		Claim: "T8", Breaks: "accepts a DPoP proof a second time",
		File: "internal/ledger/token.go",
		Old:  "case tag.RowsAffected() == 0:\n\t\treturn dpop.ErrReplayed", New: "case tag.RowsAffected() > 1:\n\t\treturn dpop.ErrReplayed",
		Package: "internal/httpapi", Test: "^TestInvalidProofsAreRefused/^replayed$",
	},
	{
		Claim: "T8", Breaks: "mints again for an idempotency key that was used before",
		File: "broker/issue.go",
		Old:  "\tcase earlier != nil:\n\t\treturn ErrAlreadyIssued\n", New: "\tcase earlier != nil && earlier.Status == StatusRedeemed:\n\t\treturn ErrAlreadyIssued\n",
		Package: "broker", Test: "^TestIdempotencyKeyUsedBefore$",
	},
	{
		Claim: "T9", Breaks: "counts only the first request against a limit",
		File: "migrations/00002_issuances.sql",
		Old:  "SET tat = greatest(r.tat, moment) + (excluded.tat - moment);", New: "SET tat = greatest(r.tat, moment);",
		Package: "internal/httpapi", Test: "^TestLimitedRequests$",
	},
	{
		Claim: "T9", Breaks: "quarantines only the sandbox of exactly that name",
		File: "migrations/00002_issuances.sql",
		Old:  "WHERE q.spiffe_id = array_to_string((string_to_array(t.subject, '/'))[:parts], '/'))", New: "WHERE q.spiffe_id = t.subject AND parts > 0)",
		Package: "internal/httpapi", Test: "^TestQuarantine$",
	},
	{
		Claim: "T10", Breaks: "logs a secret in full",
		File:    "internal/secret/secret.go",
		Old:     "func (Text) LogValue() slog.Value         { return slog.StringValue(redacted) }",
		New:     "func (t Text) LogValue() slog.Value { return slog.StringValue(t.Reveal()) }",
		Package: "internal/secret", Test: "^TestSecretIsNeverPrinted$",
	},
	{
		Claim: "T10", Breaks: "encodes a secret in full as text",
		File:    "internal/secret/secret.go",
		Old:     "func (Text) MarshalText() ([]byte, error) { return []byte(redacted), nil }",
		New:     "func (t Text) MarshalText() ([]byte, error) { return []byte(t.Reveal()), nil }",
		Package: "internal/secret", Test: "^TestSecretIsNeverPrinted$",
	},
	{
		Claim: "T11", Breaks: "lets many sandboxes of one trust domain take all places",
		File: "internal/ratelimit/ratelimit.go",
		Old:  "case g.all >= share, g.keys[key] >= own:", New: "case g.keys[key] >= own:",
		Package: "internal/ratelimit", Test: "^TestSharesAreFairAndLent$",
	},
	{
		Claim: "T11", Breaks: "lets one sandbox take the share of its whole trust domain",
		File: "internal/ratelimit/ratelimit.go",
		Old:  "own := min(s.perKey, max(1, share/(1+len(g.keys)+newcomer(g.keys, key))))", New: "own := min(s.perKey, share)",
		Package: "internal/ratelimit", Test: "^TestSharesAreFairAndLent$",
	},
	{
		Claim: "T11", Breaks: "records without a bound what many sandboxes of one trust domain do",
		File: "internal/ratelimit/ratelimit.go",
		Old:  "b.keys.Allow(group+\"\\x00\"+key, now) && b.groups.Allow(group, now)", New: "b.keys.Allow(group+\"\\x00\"+key, now)",
		Package: "internal/ratelimit", Test: "^TestBudgetCountsExactly$",
	},
	{
		Claim: "T11", Breaks: "loses count of what it does not record",
		File: "internal/ratelimit/ratelimit.go",
		Old:  "b.suppressed[of] += n", New: "b.suppressed[of] = n",
		Package: "internal/ratelimit", Test: "^TestBudgetCountsExactly$",
	},
	{
		Claim: "T11", Breaks: "commits the queue of a loud sandbox before the command of an admin",
		File:    "internal/ledger/append.go",
		Old:     "case ready(turn):\n",
		New:     "case ready(normally):\n\t\t\tturn = normally\n\t\tcase ready(turn):\n",
		Package: "internal/ledger", Test: "^TestUrgentEntriesOvertake$",
	},
	{
		Claim: "T11", Breaks: "lets the orders of a loud admin stop the requests of all sandboxes",
		File:    "internal/ledger/append.go",
		Old:     "turn = 1 - turn\n\t}\n",
		New:     "turn = urgently\n\t}\n",
		Package: "internal/ledger", Test: "^TestUrgentEntriesLeaveTurns$",
	},
	{
		Claim: "T12", Breaks: "lets a confined program open Unix sockets",
		File: "internal/confine/filter_linux.go",
		Old:  "local, datagrams := deny(unix.EACCES), deny(unix.EACCES)", New: "local, datagrams := uint32(allow), deny(unix.EACCES)",
		Package: "internal/confine", Test: "^TestConfinedProgramIsRefused$",
	},
	{
		Claim: "T12", Breaks: "leaves the devices of other folders usable",
		File: "internal/confine/mounts_linux.go",
		Old:  "Attr_set: unix.MOUNT_ATTR_NODEV", New: "Attr_set: unix.MOUNT_ATTR_NOSUID",
		Package: "internal/confine", Test: "^TestKernelIsHiddenAtOtherPathsToo$",
	},
	{
		Claim: "T12", Breaks: "leaves a second /proc visible",
		File: "internal/confine/mounts_linux.go",
		Old:  "\t\"proc\", \"sysfs\",", New: "\t\"sysfs\",",
		Package: "internal/confine", Test: "^TestKernelIsHiddenAtOtherPathsToo$",
	},
	{
		Claim: "T12", Breaks: "shows the keys and logins that the caller hides",
		File: "internal/confine/mounts_linux.go",
		Old:  "range slices.Concat(hidden, private) {", New: "range slices.Concat(hidden, private[:0]) {",
		Package: "internal/confine", Test: "^TestFilesOfTheCallerAreHidden$",
	},
	{
		Claim: "T12", Breaks: "lets a crash start a program of the host",
		File: "internal/confine/setup_linux.go",
		Old:  "&unix.Rlimit{Cur: 1, Max: 1}", New: "&unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}",
		Package: "internal/confine", Test: "^TestConfinedProgramHasNoPrivileges$",
	},
	{
		Claim: "T12", Breaks: "passes any descriptor on as standard input",
		File: "internal/confine/setup_linux.go",
		Old:  "for fd := range control {", New: "for fd := range 0 {",
		Package: "internal/confine", Test: "^TestStandardFilesThatLeadOutAreRefused$",
	},
	{
		Claim: "T12", Breaks: "changes the mode of a file that a sandbox links to",
		File: "internal/secret/file.go",
		Old:  "err = os.Rename(fresh.Name(), path)", New: "err = errors.Join(os.Rename(fresh.Name(), path), os.Chmod(path, mode))",
		Package: "internal/secret", Test: "^TestPublicFileFollowsNoLink$",
	},
	{
		Claim: "T12", Breaks: "opens a socket in a folder that others can replace",
		File: "internal/private/private.go",
		Old:  "if !safe || !Trusted(info) {", New: "if _ = safe; !Trusted(info) {",
		Package: "internal/private", Test: "^TestSocketInAFolderOfOthersIsRefused$",
	},
	{
		Claim: "T12", Breaks: "lets one sandbox take all connections of a listener",
		File: "internal/egress/entrance.go",
		Old:  "if v.leave == nil || v.sandbox == sandbox {", New: "if v.leave != nil || v.sandbox == sandbox {",
		Package: "internal/egress", Test: "^TestConnectionsAreSharedFairly$",
	},
}
