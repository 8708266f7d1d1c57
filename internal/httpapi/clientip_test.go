package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// The record of a refusal and the log have the address that a trusted proxy names, and otherwise that of the peer. H29: an address
// never changes who the caller is.
func TestTrustedProxyNamesTheClient(t *testing.T) {
	t.Parallel()
	const client, peer = "203.0.113.7", "127.0.0.1"
	trusted, err := clientip.ParseProxies([]string{peer, "10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	others, err := clientip.ParseProxies([]string{"127.0.0.2", "10.0.0.0/8", client})
	if err != nil {
		t.Fatal(err)
	}
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue, TrustedProxies: trusted, ResourceServers: map[string][]string{gateway: {"https://git.test"}}})
	elsewhere := s.ReplicaWith(t, testkit.Options{Catalogue: catalogue, TrustedProxies: others})
	for _, tc := range []struct {
		name    string
		want    string
		headers []string
	}{
		{"no header", peer, nil},
		{"X-Forwarded-For", client, []string{"X-Forwarded-For: 198.51.100.1, " + client}},
		{"two proxies", client, []string{"X-Forwarded-For: 198.51.100.1, " + client, "X-Forwarded-For: 10.0.0.1"}},
		{"IPv6", "2001:db8::7", []string{"X-Forwarded-For: [2001:db8::7]:4711"}},
		{"Forwarded", client, []string{`Forwarded: for=198.51.100.1, for="` + client + `:80";proto=https`}},
		{"both", peer, []string{"Forwarded: for=" + client, "X-Forwarded-For: " + client}},
		{"unknown", peer, []string{"Forwarded: for=unknown"}},
		{"an identity", peer, []string{"X-Forwarded-For: " + agent}},
		{"another header", peer, []string{"X-Real-IP: " + client}},
	} {
		call := wire{auth: "none", headers: append([]string{"X-SPIFFE-ID: " + agent}, tc.headers...)}
		for replica, want := range map[*testkit.Stack]string{s: tc.want, elsewhere: peer} {
			before, logged := entriesOf(t, s), len(replica.Log.String())
			if got := call.send(t, replica); got.status != 401 || got.code != "unauthenticated" {
				t.Errorf("%s: got %d %s, want 401", tc.name, got.status, got.code)
			}
			added := entriesOf(t, s)
			if added.skip(before); len(added.refusals) != 1 || len(added.requests) != 0 {
				t.Fatalf("%s: got %+v, want one refusal", tc.name, added)
			}
			if got := fmt.Sprint(added.refusals[0].Body["remote"]); got != want {
				t.Errorf("%s: got %s in the record, want %s", tc.name, got, want)
			}
			if log := replica.Log.String()[logged:]; !strings.Contains(log, "remote="+want+"\n") {
				t.Errorf("%s: the log does not say %s:\n%s", tc.name, want, log)
			}
		}
	}
	// A check is a call of the gateway, and Traefik names the address of the caller behind it.
	before := entriesOf(t, s)
	held{token: "none"}.asTraefik(t, s).send(t, s)
	added := entriesOf(t, s)
	if added.skip(before); len(added.refusals) != 1 || added.refusals[0].Body["remote"] != client {
		t.Errorf("a check without a token: got %+v, want a refusal of %s", added.refusals, client)
	}
}
