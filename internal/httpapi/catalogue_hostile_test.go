package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// catalogueRows are calls of an admin of all trust domains that try to change the catalogue and must change nothing.
func catalogueRows(t *testing.T, s *testkit.Stack) []hostile {
	auth, tag := "Bearer "+s.JWT(t, chief), `If-Match: "`+digestOf(t, catalogue)+`"`
	var rows []hostile
	put := func(name, body string, status int, code, detail string, headers ...string) {
		if len(headers) == 0 {
			headers = []string{tag}
		}
		headers = append(headers, "Content-Type: application/json")
		call := wire{method: "PUT", target: "/v1/catalogue", auth: auth, body: body, headers: headers}
		rows = append(rows, hostile{name, call, status, code, detail})
	}
	good := `{"files":[{"name":"a.yaml","text":"scopes: []"}],"reason":"x"}`
	put("without If-Match", good, 428, "precondition_required", "if_match", "X-Nothing: 1")
	for _, bad := range []string{"*", `W/"` + noDigest + `"`, noDigest, `"` + noDigest + `", "` + noDigest + `"`, `"` + canary + `"`, `"` + strings.ToUpper(noDigest) + `"`} {
		detail := "parameter_header"
		put("If-Match of "+bad, good, 400, "invalid_parameter", detail, "If-Match: "+bad)
	}
	put("two of If-Match", good, 400, "invalid_parameter", "parameter_form", tag, tag)
	files := func(list string) string { return `{"files":[` + list + `],"reason":"x"}` }
	file := func(name, text string) string { return fmt.Sprintf(`{"name":%q,"text":%q}`, name, text) }
	for name, list := range map[string]string{
		"H52 a path that leads out": file("../a.yaml", "scopes: []"), "an absolute path": file("/a.yaml", "scopes: []"),
		"a hidden file": file(".a.yaml", "scopes: []"), "a file of another kind": file("a.sh", "true"),
		"a line in a name": file("a\nb.yaml", "scopes: []"), "an example table": file("a.test.yaml", "examples: []"),
		"one name twice":     file("a.yaml", "scopes: []") + "," + file("a.yaml", "scopes: []"),
		"no YAML":            file("a.yaml", "{"),
		"no policies":        file("a.yaml", "scopes: []"),
		"a policy too large": file("a.cedar", strings.Repeat("(", 65<<10)),
		"H37 unknown keys":   file("a.yaml", "Scopes: []"),
	} {
		put(name, files(list), 422, "invalid_catalogue", "catalogue")
	}
	put("no files", files(""), 422, "invalid_request", "files")
	put("257 files", files(strings.TrimSuffix(strings.Repeat(`{"name":"a.yaml","text":""},`, 257), ",")), 422, "invalid_request", "files")
	put("a file that is null", files("null"), 422, "invalid_request", "files")
	put("H38 a member that files do not have", files(`{"name":"a.yaml","text":"","`+canary+`":1}`), 422, "invalid_request", "files")
	put("no reason", `{"files":[`+file("a.yaml", "")+`]}`, 422, "invalid_request", "reason")
	put("a reason of 1001 bytes", `{"files":[`+file("a.yaml", "")+`],"reason":"`+strings.Repeat("é", 500)+`x"}`, 422, "invalid_request", "reason")
	put("H36 duplicate key in a file", files(`{"name":"a.yaml","name":"`+canary+`","text":""}`), 400, "malformed_body", "duplicate_member")
	put("H38 unknown member", `{"`+canary+`":1}`, 400, "malformed_body", "unknown_member")
	put("H41 one byte over 8 MiB", "{"+strings.Repeat(" ", 8<<20)+"}", 413, "too_large", "body_size")
	put("H44 NUL in a file", files(`{"name":"a.yaml","text":"\u0000"}`), 400, "malformed_body", "nul_character")
	put("H44 bad UTF-8", files("{\"name\":\"a.yaml\",\"text\":\"\xff\"}"), 400, "malformed_body", "utf8")
	var whole []string
	for _, f := range catalogue {
		whole = append(whole, file(f.Name, string(f.Data)))
	}
	put("another is in force", files(strings.Join(whole, ",")), 412, "precondition_failed", "if_match", `If-Match: "`+noDigest+`"`)
	return append(rows, proposalRows(auth, tag)...)
}

func proposalRows(auth, tag string) []hostile {
	var rows []hostile
	post := func(name, digest, body string, status int, code, detail string, headers ...string) {
		call := wire{target: "/v1/catalogue/proposals/" + digest, auth: auth, body: body, headers: headers}
		rows = append(rows, hostile{name, call, status, code, detail})
	}
	post("an unknown verdict", noDigest, `{"verdict":"`+canary+`"}`, 422, "invalid_request", "verdict", tag)
	post("a verdict without If-Match", noDigest, `{"verdict":"approve"}`, 428, "precondition_required", "if_match")
	post("what nobody has proposed", noDigest, `{"verdict":"approve"}`, 404, "not_found", "digest", tag)
	post("what is no digest", canary, `{"verdict":"approve"}`, 404, "not_found", "digest", tag)
	for name, call := range map[string]wire{
		"H92 files of no catalogue": {target: "/v1/catalogue/" + noDigest}, "files of no digest": {target: "/v1/catalogue/" + canary},
	} {
		call.method, call.auth = http.MethodGet, auth
		rows = append(rows, hostile{name, call, 404, "not_found", "digest"})
	}
	for _, limit := range []string{"-1", "0", "501", "1000000000", "x"} {
		call := wire{method: http.MethodGet, target: "/v1/catalogue/history?limit=" + limit, auth: auth}
		detail := "parameter_query"
		if limit == "x" {
			detail = "parameter_form"
		}
		rows = append(rows, hostile{"H99 limit " + limit, call, 400, "invalid_parameter", detail})
	}
	for _, method := range []string{"POST", "DELETE", "PATCH"} {
		rows = append(rows, hostile{method + " of the catalogue", wire{method: method, target: "/v1/catalogue", auth: auth}, 405, "method_not_allowed", "method"})
	}
	return rows
}

// Nothing of a refused catalogue is stored.
func TestHostileCatalogues(t *testing.T) {
	t.Parallel()
	o := kept
	s := testkit.NewStack(t, o)
	for _, row := range catalogueRows(t, s) {
		t.Run(row.name, func(t *testing.T) { row.check(t, s) })
	}
	var catalogues int
	if err := testkit.Connect(t, s.DB.AdminURL).QueryRow(t.Context(), `SELECT count(*) FROM catalogues`).Scan(&catalogues); err != nil {
		t.Fatal(err)
	}
	if catalogues != 1 {
		t.Errorf("%d catalogues are kept, want the first alone", catalogues)
	}
	s.DB.Check(t)
}
