package egressrule_test

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
	"github.com/brevet-dev/brevet/scopes/egressrule"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

var issueRules = []scopes.Egress{
	{
		Hosts: []string{"api.github.com", "*.ghe.example", "ghe.example:8443"}, Methods: []string{"GET", "HEAD"},
		Paths: []string{"/repos/{repo}/issues", "/repos/{repo}/issues/*", "/{repo}.git/**", "/n/{n}", "/simple/"},
	},
	{Hosts: []string{"api.github.com"}, Methods: []string{"POST"}, Paths: []string{"/repos/{repo}/issues", "/"}},
}

var issueParams = map[string]any{"repo": "acme/api", "n": json.Number("7")}

func TestMatchingCallsAreAllowed(t *testing.T) {
	for _, call := range []egressrule.Call{
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
		if ok, why := egressrule.Allowed(issueRules, issueParams, call); !ok || why != "" {
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

func TestOtherCallsAreRefused(t *testing.T) {
	issues := "/repos/acme/api/issues"
	for _, tt := range []struct {
		call egressrule.Call
		want string
	}{
		{egressrule.Call{"GET", "github.com", issues}, noHost},
		{egressrule.Call{"GET", "ghe.example", issues}, noHost},
		{egressrule.Call{"GET", "a.b.ghe.example", issues}, noHost},
		{egressrule.Call{"GET", "api.github.com.evil.example", issues}, noHost},
		{egressrule.Call{"GET", "api.github.com:8443", issues}, noHost},
		{egressrule.Call{"GET", "api.github.com.", issues}, notAHost},
		{egressrule.Call{"GET", "evil@api.github.com", issues}, notAHost},
		{egressrule.Call{"GET", "api.github.com:", issues}, notAHost},
		{egressrule.Call{"GET", "api.github.com:0443", issues}, notAHost},
		{egressrule.Call{"GET", "127.0.0.1", issues}, notAHost},
		{egressrule.Call{"GET", "[::1]:443", issues}, notAHost},
		{egressrule.Call{"GET", "", issues}, notAHost},
		{egressrule.Call{"DELETE", "api.github.com", issues}, noMethod},
		{egressrule.Call{"get", "api.github.com", issues}, noMethod},
		{egressrule.Call{"POST", "api.github.com", issues + "/1"}, notPost},
		{egressrule.Call{"GET", "api.github.com", "/repos/acme/web/issues"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/repos/acme/api"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/repos/acme/apix/issues"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/repos/Acme/api/issues"}, noPath},
		{egressrule.Call{"GET", "api.github.com", issues + "/"}, noPath},
		{egressrule.Call{"GET", "api.github.com", issues + "/1/comments"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/acme/api.git"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/n/8"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/simple"}, noPath},
		{egressrule.Call{"GET", "api.github.com", "/repos/acme%2Fapi/issues"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%2e%2e"}, needless},
		{egressrule.Call{"GET", "api.github.com", issues + "/%2E."}, needless},
		{egressrule.Call{"GET", "api.github.com", issues + "/.."}, "the path has a . or .. segment"},
		{egressrule.Call{"GET", "api.github.com", issues + "/."}, "the path has a . or .. segment"},
		{egressrule.Call{"GET", "api.github.com", "/repos//acme/api/issues"}, "the path has an empty segment"},
		{egressrule.Call{"GET", "api.github.com", "//api.github.com" + issues}, "the path has an empty segment"},
		{egressrule.Call{"GET", "api.github.com", issues + "/%5c"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%00"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%0d%0aX"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%252e"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%3f"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/%3b"}, escaped},
		{egressrule.Call{"GET", "api.github.com", issues + "/..;"}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + `/..\x`}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + "/a b"}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + "/a\x00"}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + "/ü"}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + "/#x"}, rawChar},
		{egressrule.Call{"GET", "api.github.com", issues + "/%"}, noEscape},
		{egressrule.Call{"GET", "api.github.com", issues + "/%2"}, noEscape},
		{egressrule.Call{"GET", "api.github.com", issues + "/%u002e"}, noEscape},
		{egressrule.Call{"GET", "api.github.com", issues + "/%ff"}, foreign},
		{egressrule.Call{"GET", "api.github.com", issues + "/%c0%af"}, foreign},
		{egressrule.Call{"GET", "api.github.com", issues + "/%EF%BC%8F"}, foreign}, // a full-width slash
		{egressrule.Call{"GET", "api.github.com", issues + "/%E2%80%AE"}, foreign}, // right-to-left override
		{egressrule.Call{"GET", "api.github.com", "http://api.github.com" + issues}, "the path does not begin with a slash"},
		{egressrule.Call{"OPTIONS", "api.github.com", "*"}, "the path does not begin with a slash"},
		{egressrule.Call{"GET", "api.github.com", ""}, "the path does not begin with a slash"},
		{egressrule.Call{"GET", "api.github.com", "/" + strings.Repeat("a", 4096)}, "the path is too long"},
	} {
		if ok, why := egressrule.Allowed(issueRules, issueParams, tt.call); ok || why != tt.want {
			t.Errorf("%v: got %v %q, want %q", tt.call, ok, why, tt.want)
		}
	}
	call := egressrule.Call{"GET", "api.github.com", issues}
	if ok, why := egressrule.Allowed(nil, issueParams, call); ok || why != "the scope has no egress rules, so no gateway accepts its tokens" {
		t.Errorf("got %v %q without rules", ok, why)
	}
}

// Some hosts read the part after a colon as the action: POST /v1/projects/one:setIamPolicy. A * does not cover it, however the
// colon is written, unless the rule has the colon.
func TestWildcardsMatchNoCustomVerb(t *testing.T) {
	params := map[string]scopes.Param{"p": {Type: scopes.ParamString, Pattern: "[a-z]+", MaxLength: 10}}
	for _, tc := range []struct {
		rule, path string
		want       bool
	}{
		{"/v1/projects/*", "/v1/projects/x", true},
		{"/v1/projects/*", "/v1/projects/x:setIamPolicy", false},
		{"/v1/projects/*", "/v1/projects/x%3AsetIamPolicy", false},
		{"/v1/projects/*", "/v1/projects/x%3asetIamPolicy", false},
		{"/v1/projects/*", "/v1/projects/x%253AsetIamPolicy", false},
		{"/v1/projects/*", "/v1/projects/x%EF%BC%9AsetIamPolicy", false}, // a full-width colon
		{"/v1/projects/*", "/v1/projects/x:", false},
		{"/v1/projects/*", "/v1/projects/:setIamPolicy", false},
		{"/v1/projects/*", "/v1/projects/:", false},
		{"/v1/*/topics", "/v1/x:y/topics", false},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/x:getIamPolicy", true},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/x%3AgetIamPolicy", true},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/x:setIamPolicy", false},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/x", false},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/x:y:getIamPolicy", false},
		{"/v1/projects/*:getIamPolicy", "/v1/projects/:getIamPolicy", false},
		{"/v1/projects/*:*", "/v1/projects/x:setIamPolicy", true},
		{"/v1/projects/*:*", "/v1/projects/x", false},
		{"/v2/app/manifests/sha256:*", "/v2/app/manifests/sha256:0a1b", true},
		{"/v2/app/manifests/sha256:*", "/v2/app/manifests/sha256:0a1b:x", false},
		{"/v1/projects/{p}", "/v1/projects/x:setIamPolicy", false},
		{"/v1/projects/{p}:getIamPolicy", "/v1/projects/x:getIamPolicy", true},
		{"/v1/projects/{p}:*", "/v1/projects/x:getIamPolicy", true},
		{"/v1/projects/**", "/v1/projects/x:setIamPolicy", true}, // ** is all that follows
	} {
		t.Run(strings.ReplaceAll(tc.rule+" "+tc.path, "/", "_"), func(t *testing.T) {
			rules := []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"POST"}, Paths: []string{tc.rule}}}
			call := egressrule.Call{"POST", "a.example", tc.path}
			if ok, why := egressrule.Allowed(rules, map[string]any{"p": "x"}, call); ok != tc.want {
				t.Errorf("got %v %q, want %v", ok, why, tc.want)
			}
			needs := map[string]scopes.Param{}
			if strings.Contains(tc.rule, "{p}") {
				needs = params
			}
			if route, why := router(t, rules, needs).Find(call, nil, nil); (why == "") != tc.want {
				t.Errorf("got %+v %q, want a route: %v", route, why, tc.want)
			}
		})
	}
}

// A parameter that no decision could have accepted opens no path, not even a path that contains it literally.
func TestInvalidParametersAllowNoPath(t *testing.T) {
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
		if ok, _ := egressrule.Allowed(rules, tt.params, egressrule.Call{"GET", "a.example", tt.path}); ok {
			t.Errorf("%s: %s passed", name, tt.path)
		}
	}
	for _, n := range []any{json.Number("1000000"), 1e6, int64(1000000), 1000000} {
		if ok, why := egressrule.Allowed(rules, map[string]any{"p": n, "q": true}, egressrule.Call{"GET", "a.example", "/x/1000000/true"}); !ok {
			t.Errorf("%T: got %q, want it to pass", n, why)
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

// npm escapes the slash in the name of a package that has a scope. A rule has to name it, and neither reading of it is another path.
func TestEscapedSlashesAreNamed(t *testing.T) {
	rules := func(path string) []scopes.Egress {
		return []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{path}}}
	}
	for _, tt := range []struct {
		rule, sent string
		want       bool
	}{
		{"/*%2f*", "/@acme%2fwords", true},
		{"/*%2f*", "/@acme%2Fwords", true},
		{"/*%2f*", "/%40acme%2fwords", true},
		{"/*%2f*", "/@acme/words", false},
		{"/*%2f*", "/words", false},
		{"/*%2f*", "/@acme%2f", false},
		{"/*%2f*", "/%2fwords", false},
		{"/*%2f*", "/@acme%2f..", false},
		{"/*%2f*", "/.%2fwords", false},
		{"/*%2f*", "/..%2f..", false},
		{"/*%2f*", "/@acme%2fwords%2f1", false},
		{"/*%2f*", "/@acme%2fwords/1", false},
		{"/*%2f*", "/@acme%252fwords", false},
		{"/*%2f*", "/@acme%2fwords:publish", false},
		{"/*%2f*", "/@acme%5cwords", false},
		{"/@acme%2f*", "/@acme%2fwords", true},
		{"/@acme%2f*", "/@other%2fwords", false},
		{"/@acme%2f*:read", "/@acme%2fwords:read", true},
		{"/@{p}%2f*", "/@acme%2fwords", true},
		{"/@{p}%2f*", "/@other%2fwords", false},
		{"/*", "/@acme%2fwords", false},
		{"/*/*", "/@acme%2fwords", false},
		{"/**", "/@acme%2fwords", false},
		{"/**", "/a/@acme%2fwords", false},
		{"/{p}", "/acme%2fwords", false},
		{"/*%2f*/**", "/@acme%2fwords/a/b", true},
		{"/*%2f*/**", "/@acme%2fwords/a%2fb", false},
	} {
		call := egressrule.Call{"GET", "a.example", tt.sent}
		if ok, why := egressrule.Allowed(rules(tt.rule), map[string]any{"p": "acme"}, call); ok != tt.want {
			t.Errorf("%s for %s: got %v %q, want %v", tt.rule, tt.sent, ok, why, tt.want)
		}
	}
	for path, want := range map[string]string{"/@{p}%2f*": "/@{p}%2f*", "/{p}%2f*": "", "/{p}": "", "/**": ""} {
		router, err := egressrule.NewRouter(rules(path), map[string]scopes.Param{"p": {Type: scopes.ParamString, Pattern: "[^/]+", MaxLength: 50}})
		if err != nil {
			t.Fatal(err)
		}
		if route, _ := router.Find(egressrule.Call{"GET", "a.example", "/@acme%2fwords"}, nil, map[string]any{"p": "acme"}); route.Path != want {
			t.Errorf("%s: got the route %q, want %q", path, route.Path, want)
		}
	}
}

// pieces are parts of normal paths and of attacks.
var pieces = []string{
	"/", "/", "/", "a", "b", ".", "..", "%2e", "%2f", "%2F", "%5c", `\`, "%00", "%25", "%252e", ";", "%3b", "%3f", "#", "%23", "%20", "%C3%BC", "%c3", "ü",
	"%EF%BC%8F", "%EF%BC%8E", "%E2%80%A5", "%EF%BC%BC", "@", ":", "+", "%40", "~", "%7e", "=", "&", "\t", " ", "%0a", "%7f", "%", "%zz", "*", "%C2%85", "%F0%9F%98%80", "%EF%AC%81",
}

// H47: an allowed path has the same structure after any normalisation.
func TestAllowedPathsAreUnambiguous(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		sent := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 8).Draw(t, "path"), "")
		if ok, _ := egressrule.Allowed(everything, nil, egressrule.Call{"GET", "a.example", sent}); ok {
			passed++
			oneReading(t, sent)
		}
	})
	if passed == 0 {
		t.Error("no path passed: nothing was checked")
	}
}

// A host that reads an escaped slash as the end of a segment reads a path that the same rule with a plain slash allows.
func TestEscapedSlashesOpenNoMoreThanPlainOnes(t *testing.T) {
	allowed := func(rule, sent string) bool {
		ok, _ := egressrule.Allowed([]scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{rule}}}, nil, egressrule.Call{"GET", "a.example", sent})
		return ok
	}
	passed := 0
	for _, rule := range []string{"/*%2f*", "/a%2f*/**", "/*%2f*:*"} {
		for _, one := range pieces {
			for _, two := range pieces {
				for _, sent := range []string{"/" + one + "%2f" + two, "/" + one + "%2F" + two + "/b", "/a%2f" + one + two, "/a" + one + "%2f" + two + ":b", "/a%2f" + one + "/" + two} {
					if !allowed(rule, sent) {
						continue
					}
					passed++
					plain := strings.NewReplacer("%2f", "/", "%2F", "/")
					if read := plain.Replace(sent); !allowed(plain.Replace(rule), read) {
						t.Errorf("%s allows %s, and %s is not allowed without escapes", rule, sent, read)
					}
				}
			}
		}
	}
	if passed == 0 {
		t.Error("no path passed: nothing was checked")
	}
}

// A call that a rule with a parameter allows has exactly that value in exactly that place.
func TestParameterMatchesExactlyItsSegment(t *testing.T) {
	values := []string{"acme/api", "acme", "api", "acme/api/issues", "a/b/c", "a.git", "x"}
	rules := []scopes.Egress{{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{"/r/{p}/issues/*"}}}
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		granted, sent := rapid.SampledFrom(values).Draw(t, "granted"), rapid.SampledFrom(values).Draw(t, "sent")
		number := rapid.SampledFrom([]string{"1", "%20x", "1/2", ""}).Draw(t, "number")
		ok, _ := egressrule.Allowed(rules, map[string]any{"p": granted}, egressrule.Call{"GET", "a.example", "/r/" + sent + "/issues/" + number})
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
		ok, why := egressrule.Allowed(everything, nil, egressrule.Call{"GET", host, sent})
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
