package scopes_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

const (
	mailRule = "{hosts: [mail.example], methods: [GET], paths: [/in, /out]}"
	postRule = "{hosts: [mail.example], methods: [POST], paths: [/out]}"
)

// withRule adds a rule to the mail scope, which has no parameters.
func withRule(rule string) string { return "bind: mtls}\n    egress: [" + rule + "]\n" }

// mailJWT is the credential of the mail scope. withSend replaces it with another one that goes into calls.
const mailJWT = "{kind: jwt, audience: https://mail.example, bind: mtls}\n"

func withSend(send string) string {
	return "{kind: kv, path: secret/data/mail}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in]" + send + "}]\n"
}

func withCertificate(send string) string {
	return "{kind: pki, mount: pki, role: web, common_name: mail.example}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in]" + send + "}]\n"
}

func withLogins(rule string) string {
	return "{kind: database, mount: database, role: mail}\n    egress: [" + rule + "]\n"
}

var egressMistakes = []mistake{
	{
		name: "egress of another kind", old: "{kind: jwt, audience: https://mail.example, bind: mtls}\n", with: "{kind: ssh, mount: ssh, role: mail, principals: [mail]}\n    egress: [" + mailRule + "]\n",
		want: "scopes.yaml:44: scope mail.read: egress requires a credential that a call can carry, of kind jwt, vault-token, kv, vault or pki, or a login, of kind database; remove it",
	},
	{
		name: "egress to a database without a port", old: mailJWT, with: withLogins("{hosts: [db.example], databases: [mail]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "db.example" must be one host name with its port, such as db.acme.example:5432`,
	},
	{
		name: "egress to a database on any host", old: mailJWT, with: withLogins("{hosts: ['*.db.example:5432'], databases: [mail]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "*.db.example:5432" must be one host name with its port, such as db.acme.example:5432`,
	},
	{
		name: "egress to no database", old: mailJWT, with: withLogins("{hosts: ['db.example:5432']}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].databases is missing; example: {hosts: ['db.acme.example:5432'], databases: [orders]}",
	},
	{
		name: "egress to two databases in one", old: mailJWT, with: withLogins("{hosts: ['db.example:5432'], databases: ['mail host=evil']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].databases[0] "mail host=evil" must match ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`,
	},
	{
		name: "egress to a database with a long name", old: mailJWT, with: withLogins("{hosts: ['db.example:5432'], databases: [" + strings.Repeat("a", 64) + "]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].databases[0] "` + strings.Repeat("a", 64) + `" must match ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`,
	},
	{
		name: "egress of a key that is not sent", old: mailJWT, with: withSend(""),
		want: "scopes.yaml:44: scope mail.read: egress[0].send is missing: it defines how a credential of kind kv is sent; example: {as: header, name: x-api-key, field: key}",
	},
	{
		name: "egress of a key in no field", old: mailJWT, with: withSend(", send: {as: bearer}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send.field is missing: it names the member of the credential to send",
	},
	{
		name: "egress by another way", old: mailJWT, with: withSend(", send: {as: cookie, field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.as "cookie" is unknown; choose bearer, basic, header, query, aws or certificate`,
	},
	{
		name: "egress by a header without a name", old: mailJWT, with: withSend(", send: {as: header, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header requires name",
	},
	{
		name: "egress as a bearer with a name", old: mailJWT, with: withSend(", send: {as: bearer, name: x-key, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: bearer does not take name",
	},
	{
		name: "egress as nobody", old: mailJWT, with: withSend(", send: {as: basic, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: basic requires user",
	},
	{
		name: "egress as a user with a colon", old: mailJWT, with: withSend(", send: {as: basic, user: 'a:b', field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.user "a:b" must match ^[A-Za-z0-9._@+-]{1,100}$`,
	},
	{
		name: "egress by the host", old: mailJWT, with: withSend(", send: {as: header, name: host, field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "host" concerns the connection or the body and cannot carry a credential`,
	},
	{
		name: "egress by two headers", old: mailJWT, with: withSend(`, send: {as: header, name: "x-key: a\r\nx-user", field: key}`),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "x-key: a\r\nx-user" must match ^[a-z0-9]+(-[a-z0-9]+)*$`,
	},
	{
		name: "egress by a long header", old: mailJWT, with: withSend(", send: {as: header, name: " + strings.Repeat("a", 101) + ", field: key}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.name "` + strings.Repeat("a", 101) + `" is longer than 100 bytes`,
	},
	{
		name: "egress of a member of a token", old: "bind: mtls}\n", with: "bind: none}\n    egress: [{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: bearer, field: key}}]\n",
		want: "scopes.yaml:44: scope mail.read: egress[0].send.field cannot be used with kind jwt, whose credential is the token itself",
	},
	{
		name: "egress of a bound token", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: bearer}}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send cannot be used for a token with bind: mtls, which only the holder of its key can use",
	},
	{
		name: "egress that is signed for nothing", old: mailJWT, with: withSend(", send: {as: aws, region: eu-central-1}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires service",
	},
	{
		name: "egress that is signed nowhere", old: mailJWT, with: withSend(", send: {as: aws, service: s3}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires region",
	},
	{
		name: "egress that is signed for anything", old: mailJWT, with: withSend(", send: {as: aws, service: s3, region: '*'}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].send.region "*" must match ^[a-z0-9]+(-[a-z0-9]+)*$`,
	},
	{
		name: "egress that is signed by one member", old: mailJWT, with: withSend(", send: {as: aws, service: s3, region: eu-central-1, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws does not take field: it uses fixed members of the credential",
	},
	{
		name: "egress that is signed by a token", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in], send: {as: aws, service: s3, region: eu-central-1}}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: aws requires a credential of kind kv or vault",
	},
	{
		name: "egress of a header for a region", old: mailJWT, with: withSend(", send: {as: header, name: x-key, region: eu-central-1, field: key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header does not take region",
	},
	{
		name: "egress of a certificate in a header", old: mailJWT, with: withCertificate(", send: {as: header, name: x-key, field: private_key}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: header requires a credential of kind jwt, vault-token, kv or vault",
	},
	{
		name: "egress of a certificate that is not sent", old: mailJWT, with: withCertificate(""),
		want: "scopes.yaml:44: scope mail.read: egress[0].send is missing: it defines how a credential of kind pki is sent; example: {as: certificate}",
	},
	{
		name: "egress of half a certificate", old: mailJWT, with: withCertificate(", send: {as: certificate, field: certificate}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].send with as: certificate does not take field: it uses fixed members of the credential",
	},
	{
		name: "egress of nothing", old: "bind: mtls}\n", with: withRule(""),
		want: "scopes.yaml:44: scope mail.read: egress must list 1 to 16 rules, such as {hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}; without egress, no gateway accepts a token of the scope",
	},
	{
		name: "egress that is no list", old: "bind: mtls}\n", with: "bind: mtls}\n    egress: " + mailRule + "\n",
		want: "scopes.yaml:44: scope mail.read: egress must be a list",
	},
	{
		name: "egress without paths", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET]}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].paths is missing; example: {hosts: [api.github.com], methods: [GET], paths: ['/repos/{repo}/issues']}",
	},
	{
		name: "egress for no method", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [], paths: [/]}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].methods must list 1 to 32 items",
	},
	{
		name: "egress method in lower case", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [get], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].methods[0] "get" must be a method in upper case, such as GET, and not CONNECT or TRACE`,
	},
	{
		name: "egress for tunnels", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [CONNECT], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].methods[0] "CONNECT" must be a method in upper case, such as GET, and not CONNECT or TRACE`,
	},
	{
		name: "egress host in upper case", old: "bind: mtls}\n", with: withRule("{hosts: [Mail.example], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "Mail.example" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress to a top-level domain", old: "bind: mtls}\n", with: withRule("{hosts: ['*.example'], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "*.example" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress host that is a number", old: "bind: mtls}\n", with: withRule("{hosts: [169.254.169.254], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "169.254.169.254" must be a DNS name in lower case, such as api.github.com or api.github.com:8443; a leading *. matches any one label, and at least two labels must follow it`,
	},
	{
		name: "egress host with its own port", old: "bind: mtls}\n", with: withRule("{hosts: ['mail.example:443'], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts[0] "mail.example:443": omit :443; a host without a port covers 443 and 80`,
	},
	{
		name: "egress host twice", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example, mail.example], methods: [GET], paths: [/]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].hosts: "mail.example" is listed twice`,
	},
	{
		name: "egress path of an unknown parameter", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/{box}']}"),
		want: "scopes.yaml:44: scope mail.read: egress[0].paths[0] names {box}, which is not in params (none)",
	},
	{
		name: "egress path without a slash", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [in]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "in" must begin with a slash, such as /repos/{repo}/issues`,
	},
	{
		name: "egress path with an escape", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/a%20b']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/a%20b" may contain only {param} and letters, digits and / . _ ~ @ : + , = - *`,
	},
	{
		name: "egress path with dots", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: [/in/../out]}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in/../out" has an empty, . or .. segment`,
	},
	{
		name: "egress path with ** inside", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/**/in']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/**/in" has a ** that is not its last segment`,
	},
	{
		name: "egress path with half a *", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/in*']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/in*" has a * that is not a whole segment`,
	},
	{
		name: "egress path cut short", old: "bind: mtls}\n", with: withRule("{hosts: [mail.example], methods: [GET], paths: ['/{in']}"),
		want: `scopes.yaml:44: scope mail.read: egress[0].paths[0] "/{in" has a { without a }`,
	},
}

var issueRules = []scopes.Egress{
	{
		Hosts: []string{"api.github.com", "*.ghe.example", "ghe.example:8443"}, Methods: []string{"GET", "HEAD"},
		Paths: []string{"/repos/{repo}/issues", "/repos/{repo}/issues/*", "/{repo}.git/**", "/n/{n}", "/simple/"},
	},
	{Hosts: []string{"api.github.com"}, Methods: []string{"POST"}, Paths: []string{"/repos/{repo}/issues", "/"}},
}

var issueParams = map[string]any{"repo": "acme/api", "n": json.Number("7")}

func TestCallsThatPass(t *testing.T) {
	for _, call := range []scopes.Call{
		{"GET", "api.github.com", "/repos/acme/api/issues"},
		{"GET", "API.GitHub.com:443", "/repos/acme/api/issues?state=../../x&y=%2f"},
		{"GET", "api.github.com:80", "/repos/acme/api/issues/1"},
		{"GET", "api.github.com", "/repos/acme/api/issues/a%20b%C3%BC"},
		{"HEAD", "eu.ghe.example", "/repos/acme/api/issues"},
		{"GET", "ghe.example:8443", "/acme/api.git/info/refs?service=git-upload-pack"},
		{"GET", "api.github.com", "/acme/api.git/"},
		{"GET", "api.github.com", "/n/7"},
		{"GET", "api.github.com", "/simple/"},
		{"POST", "api.github.com", "/repos/acme/api/issues"},
		{"POST", "api.github.com", "/"},
	} {
		if ok, why := scopes.Allowed(issueRules, issueParams, call); !ok || why != "" {
			t.Errorf("%v: got %v %q, want it to pass", call, ok, why)
		}
	}
}

const (
	noHost   = "no egress rule covers this host; the rules cover *.ghe.example, api.github.com, ghe.example:8443"
	notAHost = "the host is not a DNS name with an optional port"
	noMethod = "no egress rule for this host allows this method; the rules allow GET, HEAD, POST"
	noPath   = "no egress rule for this host and method matches this path with the parameters of the token; the rules allow /n/{n}, /repos/{repo}/issues, /repos/{repo}/issues/*, /simple/, /{repo}.git/**"
	notPost  = "no egress rule for this host and method matches this path with the parameters of the token; the rules allow /, /repos/{repo}/issues"
	rawChar  = "the path contains a character that must be escaped or is never allowed, such as a control character, a backslash, a ; or a non-ASCII character"
	escaped  = "the path has an escaped control character, slash, backslash, percent sign, question mark, hash or semicolon"
	needless = "the path has an escaped letter, digit or one of - . _ ~, which must not be escaped"
	noEscape = "the path has a % that does not begin an escape"
	foreign  = "the path has an escape that is not UTF-8, or is a non-ASCII character other than a letter, mark or digit"
)

func TestCallsThatDoNotPass(t *testing.T) {
	issues := "/repos/acme/api/issues"
	for _, tt := range []struct {
		call scopes.Call
		want string
	}{
		{scopes.Call{"GET", "github.com", issues}, noHost},
		{scopes.Call{"GET", "ghe.example", issues}, noHost},
		{scopes.Call{"GET", "a.b.ghe.example", issues}, noHost},
		{scopes.Call{"GET", "api.github.com.evil.example", issues}, noHost},
		{scopes.Call{"GET", "api.github.com:8443", issues}, noHost},
		{scopes.Call{"GET", "api.github.com.", issues}, notAHost},
		{scopes.Call{"GET", "evil@api.github.com", issues}, notAHost},
		{scopes.Call{"GET", "api.github.com:", issues}, notAHost},
		{scopes.Call{"GET", "api.github.com:0443", issues}, notAHost},
		{scopes.Call{"GET", "127.0.0.1", issues}, notAHost},
		{scopes.Call{"GET", "[::1]:443", issues}, notAHost},
		{scopes.Call{"GET", "", issues}, notAHost},
		{scopes.Call{"DELETE", "api.github.com", issues}, noMethod},
		{scopes.Call{"get", "api.github.com", issues}, noMethod},
		{scopes.Call{"POST", "api.github.com", issues + "/1"}, notPost},
		{scopes.Call{"GET", "api.github.com", "/repos/acme/web/issues"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/repos/acme/api"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/repos/acme/apix/issues"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/repos/Acme/api/issues"}, noPath},
		{scopes.Call{"GET", "api.github.com", issues + "/"}, noPath},
		{scopes.Call{"GET", "api.github.com", issues + "/1/comments"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/acme/api.git"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/n/8"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/simple"}, noPath},
		{scopes.Call{"GET", "api.github.com", "/repos/acme%2Fapi/issues"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%2e%2e"}, needless},
		{scopes.Call{"GET", "api.github.com", issues + "/%2E."}, needless},
		{scopes.Call{"GET", "api.github.com", issues + "/.."}, "the path has a . or .. segment"},
		{scopes.Call{"GET", "api.github.com", issues + "/."}, "the path has a . or .. segment"},
		{scopes.Call{"GET", "api.github.com", "/repos//acme/api/issues"}, "the path has an empty segment"},
		{scopes.Call{"GET", "api.github.com", "//api.github.com" + issues}, "the path has an empty segment"},
		{scopes.Call{"GET", "api.github.com", issues + "/%5c"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%00"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%0d%0aX"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%252e"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%3f"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/%3b"}, escaped},
		{scopes.Call{"GET", "api.github.com", issues + "/..;"}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + `/..\x`}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + "/a b"}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + "/a\x00"}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + "/ü"}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + "/#x"}, rawChar},
		{scopes.Call{"GET", "api.github.com", issues + "/%"}, noEscape},
		{scopes.Call{"GET", "api.github.com", issues + "/%2"}, noEscape},
		{scopes.Call{"GET", "api.github.com", issues + "/%u002e"}, noEscape},
		{scopes.Call{"GET", "api.github.com", issues + "/%ff"}, foreign},
		{scopes.Call{"GET", "api.github.com", issues + "/%c0%af"}, foreign},
		{scopes.Call{"GET", "api.github.com", issues + "/%EF%BC%8F"}, foreign}, // a full-width slash
		{scopes.Call{"GET", "api.github.com", issues + "/%E2%80%AE"}, foreign}, // right-to-left override
		{scopes.Call{"GET", "api.github.com", "http://api.github.com" + issues}, "the path does not begin with a slash"},
		{scopes.Call{"OPTIONS", "api.github.com", "*"}, "the path does not begin with a slash"},
		{scopes.Call{"GET", "api.github.com", ""}, "the path does not begin with a slash"},
		{scopes.Call{"GET", "api.github.com", "/" + strings.Repeat("a", 4096)}, "the path is too long"},
	} {
		if ok, why := scopes.Allowed(issueRules, issueParams, tt.call); ok || why != tt.want {
			t.Errorf("%v: got %v %q, want %q", tt.call, ok, why, tt.want)
		}
	}
	call := scopes.Call{"GET", "api.github.com", issues}
	if ok, why := scopes.Allowed(nil, issueParams, call); ok || why != "the scope has no egress rules, so no gateway accepts its tokens" {
		t.Errorf("got %v %q without rules", ok, why)
	}
}

// A parameter that no decision could have accepted opens no path, not even a path that contains it literally.
func TestParametersThatAreNone(t *testing.T) {
	rules := []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{"/x/{p}/{q}"}}}
	for name, tt := range map[string]struct {
		params map[string]any
		path   string
	}{
		"missing":               {map[string]any{"p": "a"}, "/x/a/<nil>"},
		"any":                   {map[string]any{"p": "*", "q": "b"}, "/x/a/b"},
		"any that follow":       {map[string]any{"p": "a", "q": "**"}, "/x/a/b/c"},
		"dots":                  {map[string]any{"p": "..", "q": "b"}, "/x/../b"},
		"empty":                 {map[string]any{"p": "", "q": "b"}, "/x//b"},
		"a fraction":            {map[string]any{"p": 1.5, "q": "b"}, "/x/1.5/b"},
		"a list":                {map[string]any{"p": []any{"a"}, "q": "b"}, "/x/a/b"},
		"cut in two other ways": {map[string]any{"p": "a/b", "q": "c"}, "/x/a/b/c"},
	} {
		if ok, _ := scopes.Allowed(rules, tt.params, scopes.Call{"GET", "a.example", tt.path}); ok {
			t.Errorf("%s: %s passed", name, tt.path)
		}
	}
	for _, n := range []any{json.Number("1000000"), 1e6, int64(1000000), 1000000} {
		if ok, why := scopes.Allowed(rules, map[string]any{"p": n, "q": true}, scopes.Call{"GET", "a.example", "/x/1000000/true"}); !ok {
			t.Errorf("%T: got %q, want it to pass", n, why)
		}
	}
}

func TestEgressIsRead(t *testing.T) {
	with := replace(t, worldScopes, "bind: mtls}\n", withRule(mailRule+", {hosts: ['*.mail.example:8443'], methods: [M-SEARCH], paths: ['/**']}"))
	c := load(t, with, worldPolicies)
	want := []scopes.Egress{
		{Hosts: []string{"mail.example"}, Methods: []string{"GET"}, Paths: []string{"/in", "/out"}},
		{Hosts: []string{"*.mail.example:8443"}, Methods: []string{"M-SEARCH"}, Paths: []string{"/**"}},
	}
	got, _ := c.Scope("mail.read")
	if diff := cmp.Diff(want, got.Egress); diff != "" {
		t.Fatalf("egress (-want +got):\n%s", diff)
	}
	got.Egress[0].Hosts[0] = "evil.example"
	if again, _ := c.Scope("mail.read"); again.Egress[0].Hosts[0] != "mail.example" {
		t.Error("a copy of a scope reaches into the catalogue")
	}
}

// A credential with more than one member is also sent as the rule says.
func TestWaysOfMoreMembersAreRead(t *testing.T) {
	for text, want := range map[string]scopes.Send{
		withSend(", send: {as: aws, service: s3, region: eu-central-1}"): {As: scopes.SendAWS, Service: "s3", Region: "eu-central-1"},
		withSend(", send: {as: certificate}"):                            {As: scopes.SendCertificate},
		withCertificate(", send: {as: certificate}"):                     {As: scopes.SendCertificate},
	} {
		got, _ := load(t, replace(t, worldScopes, mailJWT, text), worldPolicies).Scope("mail.read")
		if len(got.Egress) != 1 || got.Egress[0].Send != want {
			t.Errorf("got %+v, want %+v", got.Egress, want)
		}
	}
}

// everything is a rule that allows all paths except malformed ones.
var everything = []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{"/**"}}}

// oneReading fails if another program could read an allowed path differently.
func oneReading(t interface{ Fatalf(string, ...any) }, sent string) {
	u, err := url.ParseRequestURI(sent)
	if err != nil {
		t.Fatalf("%q passed, and net/url says %v", sent, err)
	}
	judged := strings.Split(u.Path, "/")
	slash := ""
	if strings.HasSuffix(u.Path, "/") && u.Path != "/" {
		slash = "/"
	}
	again, err := url.PathUnescape(u.Path)
	if err != nil || again != u.Path {
		t.Fatalf("%q passed, and is %q when it is decoded twice", sent, again)
	}
	dots := func(s string) bool { return strings.Trim(s, ".") == "" && (s == "." || s == "..") }
	for name, read := range map[string]string{
		"cleaned": path.Clean(u.Path) + slash, "resolved": u.ResolveReference(&url.URL{}).Path, "folded": norm.NFKC.String(u.Path), "joined": u.JoinPath().Path,
		"with backslashes as slashes": strings.ReplaceAll(u.Path, `\`, "/"), "up to a parameter": strings.SplitN(u.Path, ";", 2)[0],
	} {
		segments := strings.Split(read, "/")
		if len(segments) != len(judged) || slices.ContainsFunc(segments, dots) || name != "folded" && read != u.Path {
			t.Fatalf("%q passed as %q, and is %q when it is %s", sent, u.Path, read, name)
		}
	}
	if strings.ContainsFunc(u.Path, unicode.IsControl) {
		t.Fatalf("%q passed with a control character in it", sent)
	}
	// Go's own router would redirect a path that is not clean.
	mux, answer := http.NewServeMux(), httptest.NewRecorder()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mux.ServeHTTP(answer, &http.Request{Method: "GET", URL: u, Host: "a.example", RequestURI: sent})
	if answer.Code != http.StatusTeapot {
		t.Fatalf("%q passed, and a router answers %d", sent, answer.Code)
	}
}

// pieces are parts of normal paths and of attacks.
var pieces = []string{
	"/", "/", "/", "a", "b", ".", "..", "%2e", "%2f", "%2F", "%5c", `\`, "%00", "%25", "%252e", ";", "%3b", "%3f", "#", "%23", "%20", "%C3%BC", "%c3", "ü",
	"%EF%BC%8F", "%EF%BC%8E", "%E2%80%A5", "%EF%BC%BC", "@", ":", "+", "%40", "~", "%7e", "=", "&", "\t", " ", "%0a", "%7f", "%", "%zz", "*", "%C2%85", "%F0%9F%98%80", "%EF%AC%81",
}

// H47: an allowed path has the same structure after any normalisation.
func TestPathsThatPassHaveOneReading(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		sent := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 8).Draw(t, "path"), "")
		if ok, _ := scopes.Allowed(everything, nil, scopes.Call{"GET", "a.example", sent}); ok {
			passed++
			oneReading(t, sent)
		}
	})
	if passed == 0 {
		t.Error("no path passed: nothing was checked")
	}
}

// A call that a rule with a parameter allows has exactly that value in exactly that place.
func TestParametersHoldTheirPlace(t *testing.T) {
	values := []string{"acme/api", "acme", "api", "acme/api/issues", "a/b/c", "a.git", "x"}
	rules := []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{"/r/{p}/issues/*"}}}
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		granted, sent := rapid.SampledFrom(values).Draw(t, "granted"), rapid.SampledFrom(values).Draw(t, "sent")
		number := rapid.SampledFrom([]string{"1", "%20x", "1/2", ""}).Draw(t, "number")
		ok, _ := scopes.Allowed(rules, map[string]any{"p": granted}, scopes.Call{"GET", "a.example", "/r/" + sent + "/issues/" + number})
		if want := granted == sent && !slices.Contains([]string{"1/2", ""}, number); ok != want {
			t.Fatalf("got %v, want %v", ok, want)
		}
		if ok {
			passed++
		}
	})
	if passed == 0 {
		t.Error("nothing passed: too little was checked")
	}
}

// FuzzAllowed: every allowed call has only one reading.
func FuzzAllowed(f *testing.F) {
	for _, seed := range append(slices.Clone(pieces), "/repos/acme/api/issues?x", "/a/%C3%BC/b", "//", "/./", "/a/../b") {
		f.Add("a.example", seed)
	}
	f.Fuzz(func(t *testing.T, host, sent string) {
		ok, why := scopes.Allowed(everything, nil, scopes.Call{"GET", host, sent})
		if ok == (why != "") || strings.ContainsFunc(why, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			t.Fatalf("got %v and %q", ok, why)
		}
		if !ok {
			return
		}
		if name := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(host), ":443"), ":80"); name != "a.example" {
			t.Fatalf("the host %q passed", host)
		}
		oneReading(t, sent)
	})
}
