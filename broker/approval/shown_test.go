package approval_test

import (
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
)

// T7: sandboxes cannot choose parameters that give different requests the same key, if people are shown different content.
func TestRequestsWithOneKeyShowTheSameContent(t *testing.T) {
	const one = `{"v":1,"request":"1","trust_domain":"acme.example","spiffe_id":"spiffe://acme.example/team/a","on_behalf_of":"p#1",` +
		`"thumbprint":"t1","jkt":"j1","scope":"a.b","authority":"write","resource":"repo/x","params":{"n":9007199254740992},"ttl":60,` +
		`"task":"t-1","key":"k1","audience":"https://x.test","catalogue":"c1","digest":"AAAA","group":"oncall","quorum":1,` +
		`"break_glass":"leads","remember":"task","passkey":"required","expires":1000}`
	like := func(text string) string {
		return (&broker.ApprovalRequest{View: broker.View{ID: "id", Canonical: text}}).GroupKey()
	}
	if got := like(one); len(got) != 64 {
		t.Errorf("got %q, want a whole SHA-256: of half of it a sandbox finds two that are the same", got)
	}
	for _, tc := range []struct {
		was, is string
		alike   bool
	}{
		{`"request":"1"`, `"request":"2"`, true},
		{`/team/a"`, `/team/b"`, true},
		{`"task":"t-1"`, `"task":"t-2"`, true},
		{`"digest":"AAAA"`, `"digest":"BBBB"`, true},
		{`"expires":1000`, `"expires":1001`, true},
		{`"thumbprint":"t1"`, `"thumbprint":"t2"`, true},
		{`"jkt":"j1"`, `"jkt":"j2"`, true},
		{`"key":"k1"`, `"key":"k2"`, true},
		{`"thumbprint":"t1",`, ``, false},
		{`"jkt":"j1",`, ``, false},
		{`"key":"k1",`, ``, false},
		{`/team/a"`, `/other/a"`, false},
		{`"trust_domain":"acme.example"`, `"trust_domain":"acme.test"`, false},
		{`"on_behalf_of":"p#1"`, `"on_behalf_of":"p#2"`, false},
		{`"scope":"a.b"`, `"scope":"a.c"`, false},
		{`"authority":"write"`, `"authority":"read"`, false},
		{`"resource":"repo/x"`, `"resource":"repo/y"`, false},
		{`9007199254740992`, `9007199254740993`, false},
		{`"ttl":60`, `"ttl":61`, false},
		{`https://x.test`, `https://y.test`, false},
		{`"catalogue":"c1"`, `"catalogue":"c2"`, false},
		{`"group":"oncall"`, `"group":"leads"`, false},
		{`"quorum":1`, `"quorum":2`, false},
		{`"break_glass":"leads"`, `"break_glass":"oncall"`, false},
		{`"remember":"task",`, ``, false},
		{`"passkey":"required",`, ``, false},
	} {
		other := strings.Replace(one, tc.was, tc.is, 1)
		if other == one {
			t.Fatalf("%s is not in it", tc.was)
		}
		if got := like(other) == like(one); got != tc.alike {
			t.Errorf("%s for %s: alike %v, want %v", tc.is, tc.was, got, tc.alike)
		}
	}
	if got := like("{"); got != "id" {
		t.Errorf("what cannot be read is like %q, want like nothing else", got)
	}
}
