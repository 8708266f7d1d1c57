package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// draftOf returns a copy of the example catalogue that the test may change.
func draftOf(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(exampleCatalogue)); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestCatalogTest checks that the shipped examples pass. It also checks that a change which breaks one shows the actual
// result, the expected result and the reason.
func TestCatalogTest(t *testing.T) {
	inProcess(t, "catalog", "test", exampleCatalogue).want(t, 0, "ok    a comment needs a person\n", "\n32 of 32 examples passed\n")
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "sandboxes.cedar"), "amount_cents <= 5000", "amount_cents <= 6000")
	got := inProcess(t, "catalog", "test", folder)
	got.want(t, 1, "\n31 of 32 examples passed\n")
	if want := golden(t, "examples.golden"); !strings.Contains(got.out, want) {
		t.Errorf("got\n%s\nwant in it\n%s", got.out, want)
	}
	inJSON := inProcess(t, "catalog", "test", folder, "--output", "json")
	inJSON.want(t, 1)
	report := object(t, inJSON.out)
	examples, _ := report["examples"].([]any)
	if report["ok"] != false || len(examples) != 32 {
		t.Fatalf("got %v, want 32 examples that do not all hold", report)
	}
	last, _ := examples[14].(map[string]any)
	if last["ok"] != false || last["outcome"] != "pending" || last["file"] != "examples.test.yaml" || last["ttl"] != 120.0 || len(last["failures"].([]any)) != 2 {
		t.Errorf("got %v, want the example that does not hold", last)
	}
}

func TestCatalogTestRefusesInvalidExamples(t *testing.T) {
	folder := draftOf(t)
	table := filepath.Join(folder, "examples.test.yaml")
	edit(t, table, "svid: jwt", `"svid\e[31m": jwt`)
	got := inProcess(t, "catalog", "test", folder)
	got.want(t, 1, `examples.test.yaml:15: example: unknown key "svid\x1b[31m"; the keys are`)
	if strings.Contains(got.err, "\x1b") {
		t.Errorf("got %q, want nothing that moves a cursor", got.err)
	}
	if err := os.Remove(table); err != nil {
		t.Fatal(err)
	}
	inProcess(t, "catalog", "test", folder).want(t, 1, "has no examples: add a file whose name ends in .test.yaml")
	inProcess(t, "catalog", "test", "testdata/broken").want(t, 1, "testdata/broken:\n", `scopes.yaml:5: scope`)
}

// TestCatalogPlan checks that a plan lists the changes and marks those that widen reach, and that scripts can tell by the
// exit code.
func TestCatalogPlan(t *testing.T) {
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "office.yaml"), "quorum: 2", "quorum: 1")
	edit(t, filepath.Join(folder, "office.yaml"), "default: 10m, max: 1h", "default: 5m, max: 1h")
	edit(t, filepath.Join(folder, "office.yaml"), "Refund part of one order", "Refund one order")
	edit(t, filepath.Join(folder, "github.yaml"), "name: github.repo.delete", "name: github.repo.remove")
	edit(t, filepath.Join(folder, "guardrails.cedar"), "context.ttl <= 300", "context.ttl <= 600")
	edit(t, filepath.Join(folder, "guardrails.cedar"), "@id(\"no-permission-scopes\")\nforbid (\n  principal,\n  action in Action::\"authority:permission\",\n  resource\n);\n", "")
	got := inProcess(t, "catalog", "plan", folder, "--from", exampleCatalogue)
	got.want(t, 0)
	if want := golden(t, "plan.golden"); got.out != want {
		t.Errorf("got\n%s\nwant\n%s", got.out, want)
	}
	inProcess(t, "catalog", "plan", folder, "--from", exampleCatalogue, "--detailed-exitcode").want(t, exitChanges)
	inJSON := inProcess(t, "catalog", "plan", folder, "--from", exampleCatalogue, "--output", "json")
	inJSON.want(t, 0)
	report := object(t, inJSON.out)
	summary, _ := report["summary"].(map[string]any)
	if report["changes"] != true || summary["add"] != 1.0 || summary["change"] != 3.0 || summary["remove"] != 2.0 || summary["widened"] != 2.0 || summary["unclear"] != 1.0 {
		t.Errorf("got %v, want the same in JSON", report)
	}
	if changed, _ := report["scopes"].([]any); len(changed) != 4 || changed[0].(map[string]any)["reach"] != "narrowed" {
		t.Errorf("got %v, want four scopes", report["scopes"])
	}
}

func TestCatalogPlanWithoutChanges(t *testing.T) {
	got := inProcess(t, "catalog", "plan", exampleCatalogue, "--from", exampleCatalogue, "--detailed-exitcode")
	if got.want(t, 0); got.out != "No changes.\n" {
		t.Errorf("got %q, want no changes", got.out)
	}
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "github.yaml"), "# What a sandbox may ask for on GitHub,", "# GitHub,")
	got = inProcess(t, "catalog", "plan", folder, "--from", exampleCatalogue, "--detailed-exitcode")
	got.want(t, exitChanges, "Only comments and formatting change; scopes and policies stay the same.\n")
	inProcess(t, "catalog", "plan", folder, "--from", filepath.Join(folder, "nowhere")).want(t, 1, "nowhere")
	inProcess(t, "catalog", "plan", "testdata/broken", "--from", folder).want(t, 1, "broken:\n")
}

// TestCatalogPlanPrintsNoTerminalEscapes checks that a plan shows no terminal escapes, because its reader did not write its content (H71).
func TestCatalogPlanPrintsNoTerminalEscapes(t *testing.T) {
	folder := draftOf(t)
	edit(t, filepath.Join(folder, "guardrails.cedar"), "unless { context.approved };", "// \x1b[2Jnothing\u202e to see\nunless { context.approved };")
	got := inProcess(t, "catalog", "plan", folder, "--from", exampleCatalogue)
	got.want(t, 0, `+ // \u001b[2Jnothing\u202e to see`)
	if strings.ContainsAny(got.out, "\x1b\u202e") {
		t.Errorf("got %q, want nothing that moves a cursor or turns text round", got.out)
	}
}

func TestCatalogExplain(t *testing.T) {
	const research = "spiffe://acme.example/research/r-7"
	got := inProcess(t, "catalog", "explain", exampleCatalogue, "github.issues.write", "repo=acme/api", "--as", research, "--ttl", "1h")
	got.want(t, 0)
	if want := golden(t, "explain.golden"); got.out != want {
		t.Errorf("got\n%s\nwant\n%s", got.out, want)
	}
	inProcess(t, "catalog", "explain", exampleCatalogue, "github.issues.write", "repo=acme/api", "--as", research).
		want(t, 0, "pending: 1 person of the group oncall", "approval     1 of oncall within 10m", "guardrails.cedar:13: forbid changes-need-a-person")
	inProcess(t, "catalog", "explain", exampleCatalogue, "calendar.events.read", "calendar=a@acme.example", "--as", research, "--svid", "jwt").
		want(t, 0, "deny: This scope binds its credential", "by JWT-SVID")
	// For a scope that certifies a key, explain assumes that the key was sent.
	inProcess(t, "catalog", "explain", exampleCatalogue, "services.certificate.issue", "service=shop", "--as", research).
		want(t, 0, "deny: No policy permits services.certificate.issue on service:shop", "No policy applies.")
}

// TestCatalogExplainShowsNearMisses checks that a denial names the permit that nearly permitted, its place, and what does not hold.
func TestCatalogExplainShowsNearMisses(t *testing.T) {
	ask := []string{"catalog", "explain", exampleCatalogue, "github.issues.read", "repo=evil/api", "--as", "spiffe://acme.example/research/r-7"}
	inProcess(t, ask...).want(t, 0, "deny: No policy permits", "research-reads-issues (params.repo)",
		"sandboxes.cedar:10: permit research-reads-issues would apply, but this does not hold:\n    when { context.params.repo like \"acme/*\" }\n")
	report := object(t, inProcess(t, append(ask, "-o", "json")...).out)
	misses, _ := report["near_misses"].([]any)
	if len(misses) != 1 || misses[0].(map[string]any)["id"] != "research-reads-issues" || misses[0].(map[string]any)["failed"] == "" {
		t.Errorf("got %v, want the permit", report["near_misses"])
	}
}

func TestCatalogExplainOnBehalfOfSomebody(t *testing.T) {
	folder := draftOf(t)
	policy := `@id("sre-alone") forbid (principal, action == Action::"github.issues.read", resource)
unless { context has user && context.user.groups.contains("sre") };`
	if err := os.WriteFile(filepath.Join(folder, "people.cedar"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := []string{"catalog", "explain", folder, "github.issues.read", "repo=acme/api", "--as", "spiffe://acme.example/research/r-7"}
	inProcess(t, ask...).want(t, 0, "deny: Forbidden by sre-alone.")
	ask = append(ask, "--user", "https://idp.example#ann")
	inProcess(t, ask...).want(t, 0, "deny: Forbidden by sre-alone.", "on behalf of https://idp.example#ann")
	inProcess(t, append(ask, "--user-groups", "dev,sre")...).want(t, 0, "allow: ")
}

func TestCatalogExplainInJSON(t *testing.T) {
	got := inProcess(t, "catalog", "explain", exampleCatalogue, "payments.refund", "order=ord_123456", "amount_cents=9000", "currency=EUR",
		"--as", "spiffe://acme.example/support/s-1", "--ttl", "1h", "--output", "json")
	got.want(t, 0)
	report := object(t, got.out)
	narrowest, _ := report["narrowest"].(map[string]any)
	params, _ := narrowest["params"].(map[string]any)
	clamped, _ := report["clamped"].([]any)
	if report["outcome"] != "deny" || report["reason"] != "no_permit" || params["amount_cents"] != 5000.0 || len(clamped) != 1 || report["ttl"] != 600.0 {
		t.Errorf("got %v, want it denied with the largest refund as hint", report)
	}
	report = object(t, inProcess(t, "catalog", "explain", exampleCatalogue, "github.issues.write", "repo=acme/api",
		"--as", "spiffe://acme.example/research/r-7", "--output", "json").out)
	policies, _ := report["policies"].([]any)
	approval, _ := report["approval"].(map[string]any)
	limits, _ := report["limits"].([]any)
	if len(policies) != 2 || approval["group"] != "oncall" || len(limits) != 1 || limits[0] != "60 in 1h per sandbox" {
		t.Fatalf("got %v, want two policies, the approvers and the limit", report)
	}
	first, _ := policies[0].(map[string]any)
	if text, _ := first["text"].(string); first["file"] != "guardrails.cedar" || first["line"] != 13.0 || first["effect"] != "forbid" || !strings.HasSuffix(text, "unless { context.approved };") {
		t.Errorf("got %v, want the policy with its place and text", first)
	}
}

func TestCatalogExplainRefusesInvalidRequests(t *testing.T) {
	for _, tc := range []struct{ name, args, want string }{
		{"parameter", "github.issues.read repo=.. --as spiffe://acme.example/a", "the request is invalid: params.repo must not contain an empty, . or .. segment"},
		{"SPIFFE ID", "github.issues.read repo=a/b --as acme.example/a", "--as: "},
		{"nobody", "github.issues.read repo=a/b --as spiffe://acme.example", "a SPIFFE ID with a path is required"},
		{"no parameter", "github.issues.read repo --as spiffe://acme.example/a", "neither name=text nor name:=JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inProcess(t, append([]string{"catalog", "explain", exampleCatalogue}, strings.Fields(tc.args)...)...).want(t, 1, tc.want)
		})
	}
}

func TestCatalogSchemaForEditors(t *testing.T) {
	for _, what := range []string{"scopes", "examples"} {
		schema := object(t, inProcess(t, "catalog", "schema", "--for", what).out)
		properties, _ := schema["properties"].(map[string]any)
		if schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" || len(properties) != 1 || properties[what] == nil {
			t.Errorf("got %v, want the schema of %s", schema, what)
		}
	}
	inProcess(t, "catalog", "schema").want(t, 1, "requires a folder")
}
