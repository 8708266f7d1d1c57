package egressrule_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/brevet-dev/brevet/scopes/egressrule"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	issueTypes = map[string]scopes.Param{
		"repo": {Type: scopes.ParamString, Pattern: `[a-z0-9-]+/(?P<brevet_repo2>[a-z0-9._-]+)`, MaxLength: 40},
		"n":    {Type: scopes.ParamInt, Min: 0, Max: 9},
	}
	routed = []scopes.Egress{
		{Hosts: []string{"api.github.com"}, Methods: []string{"GET"}, Paths: []string{"/repos/{repo}/issues/{n}", "/repos/{repo}/**"}},
		{Hosts: []string{"api.github.com"}, Methods: []string{"POST"}, Paths: []string{"/repos/{repo}/*/{n}"}, Send: scopes.Send{As: scopes.SendHeader, Name: "x-key"}},
	}
)

func router(t *testing.T, rules []scopes.Egress, params map[string]scopes.Param) *egressrule.Router {
	t.Helper()
	r, err := egressrule.NewRouter(rules, params)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The path of a call determines the parameters of the credential that it needs.
func TestRoutes(t *testing.T) {
	r := router(t, routed, map[string]scopes.Param{
		"repo": {Type: scopes.ParamString, Pattern: `[a-z0-9-]+/[a-z0-9._-]+`}, "n": issueTypes["n"], "env": {Type: scopes.ParamEnum, Values: []string{"prod"}},
	})
	for _, tc := range []struct {
		name  string
		call  egressrule.Call
		given map[string]any
		want  egressrule.Route
		why   string
	}{
		{
			name: "all in the path", call: egressrule.Call{Method: "GET", Host: "api.github.com", Path: "/repos/acme/api/issues/7?x=1"},
			want: egressrule.Route{Path: "/repos/{repo}/issues/{n}", Params: map[string]any{"repo": "acme/api", "n": json.Number("7"), "env": "prod"}},
		},
		{
			name: "given besides", call: egressrule.Call{Method: "GET", Host: "API.github.com:443", Path: "/repos/acme/api/pulls"}, given: map[string]any{"n": 3},
			want: egressrule.Route{Path: "/repos/{repo}/**", Params: map[string]any{"repo": "acme/api", "n": 3, "env": "prod"}},
		},
		{
			name: "sent in another way", call: egressrule.Call{Method: "POST", Host: "api.github.com", Path: "/repos/acme/api/x/1"},
			want: egressrule.Route{Path: "/repos/{repo}/*/{n}", Send: routed[1].Send, Params: map[string]any{"repo": "acme/api", "n": json.Number("1"), "env": "prod"}},
		},
		{
			name: "said nowhere", call: egressrule.Call{Method: "GET", Host: "api.github.com", Path: "/repos/acme/api/pulls"},
			why: "the path does not contain the parameter n, so the operator of the gateway must set it",
		},
		{
			name: "another than was given", call: egressrule.Call{Method: "POST", Host: "api.github.com", Path: "/repos/acme/web/x/1"}, given: map[string]any{"repo": "acme/api"},
			why: "no egress rule for this host and method matches this path with the parameters of the token; the rules allow /repos/{repo}/*/{n}",
		},
		{
			name: "out of the folder", call: egressrule.Call{Method: "GET", Host: "api.github.com", Path: "/repos/acme/api/issues/7/.."},
			why: "the path has a . or .. segment",
		},
		{
			name: "another method", call: egressrule.Call{Method: "DELETE", Host: "api.github.com", Path: "/repos/acme/api/issues/7"},
			why: "no egress rule for this host allows this method; the rules allow GET, POST",
		},
		{
			name: "another host", call: egressrule.Call{Method: "GET", Host: "api.github.com:8443", Path: "/repos/acme/api/issues/7"},
			why: "no egress rule covers this host; the rules cover api.github.com",
		},
	} {
		got, why := r.Find(tc.call, nil, tc.given)
		if diff := cmp.Diff(tc.want, got); diff != "" || why != tc.why {
			t.Errorf("%s: why %q, want %q (-want +got):\n%s", tc.name, why, tc.why, diff)
		}
	}
	if _, err := egressrule.NewRouter([]scopes.Egress{{Paths: []string{"/{"}}}, nil); err == nil {
		t.Error("a path that is no template was taken")
	}
}

// Allowed accepts everything that Find returns, and Find finds parameters for every call that some parameters allow.
func TestRoutesAgreeWithAllowed(t *testing.T) {
	words := rapid.SampledFrom([]string{"repos", "acme", "api", "issues", "7", "a.git", "..", "%2e", "", "x/y"})
	r := router(t, routed, issueTypes)
	rapid.Check(t, func(rt *rapid.T) {
		call := egressrule.Call{
			Method: rapid.SampledFrom([]string{"GET", "POST", "PUT"}).Draw(rt, "method"), Host: "api.github.com",
			Path: "/" + strings.Join(rapid.SliceOfN(words, 0, 7).Draw(rt, "path"), "/"),
		}
		if rapid.Bool().Draw(rt, "near") {
			call.Path = "/repos/" + words.Draw(rt, "owner") + "/" + words.Draw(rt, "name") + "/" + words.Draw(rt, "rest") + "/7"
		}
		route, why := r.Find(call, nil, nil)
		ok, _ := egressrule.Allowed(routed, route.Params, call)
		if (why == "") != ok {
			rt.Errorf("%v: found %v (%s), allowed %t", call, route, why, ok)
		}
		if owner, name := "acme", "api"; why != "" && call.Method == "GET" {
			if ok, _ := egressrule.Allowed(routed[:1], map[string]any{"repo": owner + "/" + name, "n": 7}, call); ok && !strings.Contains(why, "parameter n") {
				rt.Errorf("%v: nothing found (%s), and allowed for %s/%s", call, why, owner, name)
			}
		}
	})
}

// A call has the headers that one rule allows, and the rule that allows it need not be the first for its path.
func TestRoutesNeedARuleForEachUnusualHeader(t *testing.T) {
	rule := func(headers ...string) scopes.Egress {
		return scopes.Egress{Hosts: []string{"a.example"}, Methods: []string{"PUT"}, Paths: []string{"/o/*"}, Headers: headers}
	}
	r := router(t, []scopes.Egress{rule(), rule("x-goog-copy-source"), rule("x-goog-*", "sudo")}, nil)
	const lacks = "the egress rule for /o/* does not name a request header that can change what a call does or for whom: "
	const say = "; send the call without it, or ask an admin to add it to 'headers' of the rule"
	for _, tc := range []struct {
		name    string
		headers map[string][]string
		want    []string // the headers of the rule that is found
		unnamed []string
		why     string
	}{
		{name: "harmless", headers: map[string][]string{"Accept": {"*/*"}, "Content-Type": {"text/plain"}, "Cookie": {"a=b"}, "X_Odd": {"1"}}},
		{name: "named", headers: map[string][]string{"X-Goog-Copy-Source": {"/b/c"}}, want: []string{"x-goog-copy-source"}},
		{name: "named by its beginning", headers: map[string][]string{"X-Goog-Acl": {"private"}, "Sudo": {"root"}}, want: []string{"x-goog-*", "sudo"}},
		{name: "named by no rule", headers: map[string][]string{"Impersonate-User": {"root"}, "Accept": {"*/*"}}, unnamed: []string{"impersonate-user"}, why: lacks + "impersonate-user" + say},
		{name: "of which a rule names one", headers: map[string][]string{"Sudo": {"root"}, "X-Object-Manifest": {"a"}}, unnamed: []string{"sudo", "x-object-manifest"}, why: lacks + "sudo, x-object-manifest" + say},
		{name: "long", headers: map[string][]string{strings.Repeat("A", 65): {"1"}}, unnamed: []string{strings.Repeat("a", 65)}, why: lacks + strings.Repeat("a", 64) + "..." + say},
		{
			name: "another method", headers: map[string][]string{"X-Http-Method-Override": {"DELETE"}, "Sudo": {"root"}}, unnamed: []string{"sudo", "x-http-method-override"},
			why: "a request header changes the method or the target of the call, and no rule can allow that: x-http-method-override; send the call itself with that method and target",
		},
	} {
		got, why := r.Find(egressrule.Call{Method: "PUT", Host: "a.example", Path: "/o/a"}, egressrule.Unusual(tc.headers), nil)
		if !cmp.Equal(got.Headers, tc.want) || !cmp.Equal(got.Unnamed, tc.unnamed) || got.Path != "/o/*" || why != tc.why {
			t.Errorf("%s: got %+v, %q, want headers %v without %v, %q", tc.name, got, why, tc.want, tc.unnamed, tc.why)
		}
	}
}
