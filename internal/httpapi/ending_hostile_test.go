package httpapi_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

const someID = "019a9f4e-6a34-7cc1-8a4f-3a1b7c0d9e21"

// endingRows are calls that try to end something and must end nothing.
func endingRows(t *testing.T, s *testkit.Stack) []hostile {
	asAdmin := "Bearer " + s.JWT(t, admin)
	var rows []hostile
	add := func(name string, call wire, status int, code, detail string) {
		rows = append(rows, hostile{name, call, status, code, detail})
	}
	for _, target := range []string{"/v1/tasks/t/end", "/v1/issuances/" + someID + "/release", "/v1/revocations", "/v1/quarantines"} {
		add("nobody at "+target, wire{target: target, auth: "none"}, 401, "unauthenticated", "no_identity")
		for _, method := range []string{"PUT", "PATCH"} {
			add(method+" "+target, wire{method: method, target: target}, 405, "method_not_allowed", "method")
		}
	}
	return append(append(append(append(rows, roleRows()...), taskRows()...), releaseRows()...), adminRows(asAdmin)...)
}

// roleRows are calls of a sandbox that tries to act as an admin.
func roleRows() []hostile {
	refused := func(name string, call wire) hostile { return hostile{name, call, 403, "not_allowed", "role"} }
	return []hostile{
		refused("a sandbox revokes", wire{target: "/v1/revocations", body: `{"id":"` + someID + `","reason":"` + canary + `"}`}),
		refused("a sandbox revokes nonsense", wire{target: "/v1/revocations", body: canary}),
		refused("a sandbox puts another in quarantine", wire{target: "/v1/quarantines", body: `{"spiffe_id":"` + twin + `","reason":"` + canary + `"}`}),
		refused("a sandbox lists quarantines", wire{method: "GET", target: "/v1/quarantines"}),
		refused("a sandbox lifts a quarantine", wire{method: "DELETE", target: "/v1/quarantines?spiffe_id=" + agent}),
	}
}

func taskRows() []hostile {
	var rows []hostile
	add := func(name, task, body string, status int, code, detail string) {
		rows = append(rows, hostile{name, wire{target: "/v1/tasks/" + task + "/end", body: body}, status, code, detail})
	}
	for _, task := range []string{"-" + canary, canary + ",b", canary + "=", strings.Repeat("x", 129), ":x", "$" + canary} {
		add("task "+task, task, "{}", 400, "invalid_parameter", "parameter_path")
	}
	for _, task := range []string{"..", ".", "%2e%2e", "a%2fb", "", canary + "%00", canary + "%0d%0aX:1"} {
		add("H47 task "+task, task, "{}", 404, "not_found", "path_form")
	}
	for _, id := range []string{"", "spiffe://ACME.test/x", "spiffe://acme.test", "spiffe://acme.test/" + canary + "/", "spiffe://acme.test/%2e", canary, "spiffe://" + strings.Repeat("a", 2050)} {
		add("H32 spiffe_id "+id, canary, `{"spiffe_id":"`+id+`"}`, 422, "invalid_request", "spiffe_id")
	}
	add("H92 a foreign sandbox's task", canary, `{"spiffe_id":"`+twin+`"}`, 404, "not_found", "spiffe_id")
	add("H92 a foreign trust domain's task", canary, `{"spiffe_id":"`+foreign+`"}`, 404, "not_found", "spiffe_id")
	for _, at := range []string{"now", "2030-02-30T00:00:00Z", "2030-01-01", "2030-01-01T00:00:00", "", "9999-12-31T23:59:59-01:00"} {
		add("at "+at, canary, `{"at":"`+at+`"}`, 422, "invalid_request", "at")
	}
	add("at is a number", canary, `{"at":7}`, 422, "invalid_request", "at")
	add("reason of 1001 bytes", canary, `{"reason":"`+strings.Repeat("é", 500)+`x"}`, 422, "invalid_request", "reason")
	add("H36 duplicate key", canary, `{"reason":"a","reason":"`+canary+`"}`, 400, "malformed_body", "duplicate_member")
	add("H38 unknown field", canary, `{"`+canary+`":1}`, 400, "malformed_body", "unknown_member")
	add("H38 a field of another call", canary, `{"scope":"`+canary+`"}`, 400, "malformed_body", "unknown_member")
	add("H39 trailing JSON", canary, "{}{}", 400, "malformed_body", "trailing_data")
	add("H41 one byte over 64 KiB", canary, "{"+strings.Repeat(" ", 64<<10)+"}", 413, "too_large", "body_size")
	add("H44 NUL", canary, `{"reason":"`+canary+`\u0000"}`, 400, "malformed_body", "nul_character")
	rows = append(rows,
		hostile{"H42 gzip", wire{target: "/v1/tasks/t/end", body: "{}", headers: []string{"Content-Encoding: gzip"}}, 415, "unsupported_media_type", "content_encoding"},
		hostile{"H43 chunked", wire{target: "/v1/tasks/t/end", body: chunked, length: "none", headers: []string{"Transfer-Encoding: chunked"}}, 400, "malformed_body", "transfer_encoding"},
		hostile{"a query", wire{target: "/v1/tasks/t/end?spiffe_id=" + twin, body: "{}"}, 400, "invalid_parameter", "query_unknown"},
	)
	return rows
}

func releaseRows() []hostile {
	var rows []hostile
	for _, id := range []string{canary, "1", someID, strings.ToUpper(someID), "%2e%2e", "{" + someID + "}"} {
		detail := "id"
		if strings.ContainsAny(id, "%{") {
			detail = "path_form"
		}
		rows = append(rows, hostile{"H100 release " + id, wire{target: "/v1/issuances/" + id + "/release", body: nothing}, 404, "not_found", detail})
	}
	target := "/v1/issuances/" + someID + "/release"
	return append(rows,
		hostile{"a body where none is taken", wire{target: target, body: `{"` + canary + `":1}`}, 400, "malformed_body", "body_unexpected"},
		hostile{"a chunked body where none is taken", wire{target: target, body: chunked, length: "none", headers: []string{"Transfer-Encoding: chunked"}}, 400, "malformed_body", "body_unexpected"},
		hostile{"GET with a body", wire{method: "GET", target: "/v1/issuances", body: canary}, 400, "malformed_body", "body_unexpected"},
		hostile{"release by GET", wire{method: "GET", target: target}, 405, "method_not_allowed", "method"},
	)
}

func adminRows(auth string) []hostile {
	var rows []hostile
	add := func(name, target, body string, status int, code, detail string) {
		rows = append(rows, hostile{name, wire{target: target, auth: auth, body: body}, status, code, detail})
	}
	revoke := func(name, members, detail string) {
		add(name, "/v1/revocations", `{"reason":"`+canary+`"`+members+`}`, 422, "invalid_request", detail)
	}
	revoke("revoke everything", "", "body")
	revoke("revoke no id", `,"id":""`, "id")
	revoke("revoke null", `,"id":null`, "id")
	revoke("revoke a list", `,"id":["`+someID+`"]`, "id")
	revoke("H32 revoke spiffe_id", `,"spiffe_id":"spiffe://acme.test/`+canary+`/.."`, "spiffe_id")
	revoke("revoke a trust domain as spiffe_id", `,"spiffe_id":"spiffe://acme.test"`, "spiffe_id")
	revoke("H35 revoke a prefix that crosses a segment", `,"spiffe_id_prefix":"spiffe://acme.test/`+canary+`*"`, "spiffe_id_prefix")
	revoke("H34 revoke a malformed trust domain", `,"trust_domain":"ACME.test"`, "trust_domain")
	revoke("revoke a malformed task", `,"task":"`+canary+` *"`, "task")
	revoke("revoke no scope", `,"scope":""`, "scope")
	for name, body := range map[string]string{
		"unknown id": `{"id":"` + someID + `","reason":"x"}`, "malformed id": `{"id":"` + canary + `","reason":"x"}`,
		"SQL": `{"id":"' OR 1=1 --","reason":"x"}`,
	} {
		detail := "id"
		if name == "unknown id" {
			detail = "selection"
		}
		add("revoke "+name, "/v1/revocations", body, 404, "not_found", detail)
	}
	add("H100 revoke in a foreign trust domain", "/v1/revocations", `{"trust_domain":"other.test","reason":"`+canary+`"}`, 404, "not_found", "selection")
	add("revoke without a reason", "/v1/revocations", `{"id":"`+someID+`","task":"t"}`, 422, "invalid_request", "reason")
	add("revoke for an empty reason", "/v1/revocations", `{"id":"`+someID+`","reason":""}`, 422, "invalid_request", "reason")
	add("quarantine without a reason", "/v1/quarantines", `{"spiffe_id":"`+agent+`"}`, 422, "invalid_request", "reason")
	for _, id := range []string{"", canary, "spiffe://", "spiffe://acme.test/", "spiffe://acme.test/" + canary + "/*", "spiffe://ACME.test", "https://acme.test/x", "*"} {
		add("quarantine "+id, "/v1/quarantines", `{"spiffe_id":"`+id+`","reason":"x"}`, 422, "invalid_request", "spiffe_id")
	}
	add("T6 quarantine in a foreign trust domain", "/v1/quarantines", `{"spiffe_id":"`+foreign+`","reason":"`+canary+`"}`, 404, "not_found", "spiffe_id")
	add("T6 quarantine a foreign trust domain", "/v1/quarantines", `{"spiffe_id":"spiffe://other.test","reason":"`+canary+`"}`, 404, "not_found", "spiffe_id")
	for query, detail := range map[string]string{
		"": "parameter_form", "?spiffe_id=": "parameter_query", "?spiffe_id=" + canary: "parameter_query",
		"?spiffe_id=" + agent + "&spiffe_id=" + twin: "parameter_form", "?spiffe_id=" + agent + "&" + canary + "=1": "query_unknown",
		"?spiffe_id=" + agent + "&reason=%00": "query_encoding", "?spiffe_id=" + agent + "&reason=" + strings.Repeat("%c3%a9", 501): "parameter_query",
	} {
		rows = append(rows, hostile{"lift " + query, wire{method: "DELETE", target: "/v1/quarantines" + query, auth: auth}, 400, "invalid_parameter", detail})
	}
	return append(rows,
		hostile{"lift what does not stand", wire{method: "DELETE", target: "/v1/quarantines?spiffe_id=" + agent, auth: auth}, 404, "not_found", "spiffe_id"},
		hostile{"T6 lift in a foreign trust domain", wire{method: "DELETE", target: "/v1/quarantines?spiffe_id=" + foreign, auth: auth}, 404, "not_found", "spiffe_id"},
		hostile{"DELETE with a body", wire{method: "DELETE", target: "/v1/quarantines?spiffe_id=" + agent, auth: auth, body: canary}, 400, "malformed_body", "body_unexpected"},
	)
}
