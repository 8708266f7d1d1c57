package clientip_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/clientip"
)

func proxies(t testing.TB, networks ...string) clientip.Proxies {
	t.Helper()
	p, err := clientip.ParseProxies(networks)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParseProxiesRefusesAmbiguousNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "", "10.1.0.0/16": "", "::1": "", "fd00:1::/64": "", "127.0.0.0/8": "",
		"":                     "is not an address or a network",
		"localhost":            "is not an address or a network",
		"10.1.2.3:8443":        "is not an address or a network",
		"[::1]":                "is not an address or a network",
		"10.1.2":               "is not an address or a network",
		"10.1.2.003":           "is not an address or a network",
		"10.1.0.0/33":          "is not an address or a network",
		"fe80::1%eth0":         "is not an address or a network",
		"10.1.2.3/16":          "within the network 10.1.0.0/16",
		"0.0.0.0/0":            "every caller",
		"::/0":                 "every caller",
		"::ffff:10.1.2.3":      "write it as IPv4",
		"::ffff:10.1.0.0/112":  "write it as IPv4",
		" 10.1.2.3":            "is not an address or a network",
		"10.1.2.3,10.1.2.4":    "is not an address or a network",
		"unix:/run/proxy.sock": "is not an address or a network",
	} {
		_, err := clientip.ParseProxies([]string{text})
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: got %v, want none", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want an error that says %q", text, err, want)
		}
	}
	if _, err := clientip.ParseProxies([]string{"one", "10.0.0.1", "two"}); err == nil || !strings.Contains(err.Error(), "one") || !strings.Contains(err.Error(), "two") {
		t.Errorf("got %v, want an error that names both", err)
	}
}

const client = "203.0.113.7"

// Client takes the last address that is not a trusted proxy, and the peer if anything on the way there is in doubt.
func TestClientAddress(t *testing.T) {
	for _, tc := range []struct {
		name, peer, want string
		headers          []string // in pairs
	}{
		{"no header", "10.0.0.1", "10.0.0.1", nil},
		{"an address", "10.0.0.1", client, []string{"X-Forwarded-For", client}},
		{"headers of an untrusted peer", "192.0.2.1", "192.0.2.1", []string{"X-Forwarded-For", client}},
		{"Forwarded of an untrusted peer", "192.0.2.1", "192.0.2.1", []string{"Forwarded", "for=" + client}},
		{"an untrusted peer in the form of IPv6", "::ffff:192.0.2.1", "::ffff:192.0.2.1", []string{"X-Forwarded-For", client}},
		{"a trusted peer in the form of IPv6", "::ffff:10.0.0.1", client, []string{"X-Forwarded-For", client}},
		{"a trusted peer with a zone", "fd00::1%eth0", client, []string{"X-Forwarded-For", client}},
		{"a header of nobody's standard", "10.0.0.1", "10.0.0.1", []string{"X-Real-Ip", client, "True-Client-Ip", client, "X-Client-Ip", client}},

		{"what the client claims", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1, " + client}},
		{"what the client claims of a trusted proxy", "10.0.0.1", client, []string{"X-Forwarded-For", "10.0.0.2, " + client}},
		{"what the client sends is garbage", "10.0.0.1", client, []string{"X-Forwarded-For", `unknown, "a, _x, ,[, ` + client}},
		{"two trusted proxies", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1, " + client + ", 10.0.0.2"}},
		{"only trusted proxies", "10.0.0.1", "10.0.0.3", []string{"X-Forwarded-For", "10.0.0.3, 10.0.0.2"}},
		{"the peer itself", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "10.0.0.1"}},
		{"two headers", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1", "X-Forwarded-For", client}},
		{"two headers, the last a proxy", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1, " + client, "X-Forwarded-For", "10.0.0.2"}},
		{"no spaces", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1," + client}},
		{"other spaces", "10.0.0.1", client, []string{"X-Forwarded-For", "198.51.100.1,\t " + client + "\t"}},
		{"a port", "10.0.0.1", client, []string{"X-Forwarded-For", client + ":4711"}},
		{"IPv6", "10.0.0.1", "2001:db8::7", []string{"X-Forwarded-For", "2001:db8::7"}},
		{"IPv6 of a trusted proxy", "10.0.0.1", client, []string{"X-Forwarded-For", client + ", fd00::2"}},
		{"IPv6 spelled at length", "10.0.0.1", "2001:db8::7", []string{"X-Forwarded-For", "2001:0DB8:0:0:0:0:0:7"}},
		{"IPv6 in brackets", "10.0.0.1", "2001:db8::7", []string{"X-Forwarded-For", "[2001:db8::7]"}},
		{"IPv6 with a port", "10.0.0.1", "2001:db8::7", []string{"X-Forwarded-For", "[2001:db8::7]:4711"}},
		{"IPv4 in the form of IPv6", "10.0.0.1", client, []string{"X-Forwarded-For", "::ffff:" + client}},
		{"a trusted proxy in the form of IPv6", "10.0.0.1", client, []string{"X-Forwarded-For", client + ", [::ffff:10.0.0.2]"}},

		{"unknown", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ", unknown"}},
		{"a name", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "localhost"}},
		{"nothing", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", ""}},
		{"nothing at the end", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ", "}},
		{"nothing behind a trusted proxy", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "10.0.0.2", "X-Forwarded-For", ""}},
		{"unknown behind a trusted proxy", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ", unknown, 10.0.0.2"}},
		{"an invalid port", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ":65536"}},
		{"a port with a sign", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ":+80"}},
		{"a port of zeros", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ":000080"}},
		{"an empty port", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + ":"}},
		{"leading zeros", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "203.0.113.007"}},
		{"one number", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "3405803783"}},
		{"a zone", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "fe80::1%eth0"}},
		{"a zone in brackets", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "[fe80::1%25eth0]"}},
		{"IPv4 in brackets", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "[" + client + "]"}},
		{"half a bracket", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "[2001:db8::7"}},
		{"text after a bracket", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "[2001:db8::7]x"}},
		{"nothing in brackets", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "[]"}},
		{"a network", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", client + "/32"}},
		{"quotes", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", `"` + client + `"`}},
		{"a semicolon for a comma", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "198.51.100.1; " + client}},
		{"a space for a comma", "10.0.0.1", "10.0.0.1", []string{"X-Forwarded-For", "198.51.100.1 " + client}},

		{"Forwarded", "10.0.0.1", client, []string{"Forwarded", "for=" + client}},
		{"Forwarded in all detail", "10.0.0.1", client, []string{"Forwarded", "proto=https;by=10.0.0.1;FOR=" + client + `;host="a, for=\"198.51.100.1\""`}},
		{"Forwarded in quotes", "10.0.0.1", client, []string{"Forwarded", `for="` + client + `:4711"`}},
		{"Forwarded with escapes", "10.0.0.1", client, []string{"Forwarded", `for="20\3.0.113.7"`}},
		{"Forwarded with an obfuscated port", "10.0.0.1", client, []string{"Forwarded", `for="` + client + `:_gazonk.1-2"`}},
		{"Forwarded with empty pairs", "10.0.0.1", client, []string{"Forwarded", ";for=" + client + ";;"}},
		{"Forwarded of IPv6", "10.0.0.1", "2001:db8::7", []string{"Forwarded", `for="[2001:db8::7]"`}},
		{"Forwarded of IPv6 with a port", "10.0.0.1", "2001:db8::7", []string{"Forwarded", `For="[2001:db8::7]:4711"`}},
		{"Forwarded by two trusted proxies", "10.0.0.1", client, []string{"Forwarded", "for=198.51.100.1, for=" + client + " , for=10.0.0.2"}},
		{"two Forwarded", "10.0.0.1", client, []string{"Forwarded", `for="`, "Forwarded", "for=" + client}},

		{"Forwarded of unknown", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + ", for=unknown"}},
		{"Forwarded of a hidden client", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + ", for=_hidden"}},
		{"Forwarded without for", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + ", proto=https"}},
		{"Forwarded, empty", "10.0.0.1", "10.0.0.1", []string{"Forwarded", ""}},
		{"Forwarded with nothing at the end", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + ","}},
		{"Forwarded of IPv6 without quotes", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=[2001:db8::7]"}},
		{"Forwarded of IPv6 without brackets", "10.0.0.1", "10.0.0.1", []string{"Forwarded", `for="2001:db8::7"`}},
		{"Forwarded of a port without quotes", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + ":80"}},
		{"Forwarded of two", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=198.51.100.1;for=" + client}},
		{"Forwarded with spaces around the equals sign", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for = " + client}},
		{"Forwarded with a space after the semicolon", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client + "; proto=https"}},
		{"Forwarded without a name", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "=" + client}},
		{"Forwarded without a value", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=;proto=https"}},
		{"Forwarded as the other header", "10.0.0.1", "10.0.0.1", []string{"Forwarded", client}},
		{"an open quote", "10.0.0.1", "10.0.0.1", []string{"Forwarded", `for=198.51.100.1;x=", for=` + client}},
		{"an open quote that the proxy's quote closes", "10.0.0.1", "10.0.0.1", []string{"Forwarded", `for=198.51.100.1;x=", for="[2001:db8::7]"`}},
		{"an open escape", "10.0.0.1", "10.0.0.1", []string{"Forwarded", `for=198.51.100.1;x="\, for="[2001:db8::7]"`}},
		{"text after a quote", "10.0.0.1", "10.0.0.1", []string{"Forwarded", `for="` + client + `"0`}},

		{"both headers", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "for=" + client, "X-Forwarded-For", client}},
		{"both headers, one of them empty", "10.0.0.1", "10.0.0.1", []string{"Forwarded", "", "X-Forwarded-For", client}},
	} {
		header := http.Header{}
		for i := 0; i < len(tc.headers); i += 2 {
			header.Add(tc.headers[i], tc.headers[i+1])
		}
		got := proxies(t, "10.0.0.0/24", "fd00::/64").Client(netip.MustParseAddr(tc.peer), header)
		if got.String() != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
		if got = (clientip.Proxies{}).Client(netip.MustParseAddr(tc.peer), header); got.String() != tc.peer {
			t.Errorf("%s, with no trusted proxy: got %s, want %s", tc.name, got, tc.peer)
		}
	}
}

// No header that a client sends makes its address anything but what the proxy saw, or the proxy's.
func FuzzClient(f *testing.F) {
	for _, seed := range []string{
		"", "198.51.100.1", "unknown, _hidden, ,", `for=198.51.100.1;x="`, `for=198.51.100.1;x="\`, "for=198.51.100.1", `for="[2001:db8::1]:_p"`, ";", `a="b";for=1.2.3.4,`,
	} {
		f.Add(seed)
	}
	trusted, proxy := proxies(f, "10.0.0.0/24", "fd00::/64"), netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, sent string) {
		resolve := func(p clientip.Proxies, name string, values ...string) string {
			return p.Client(proxy, http.Header{name: values}).String()
		}
		for _, name := range []string{"Forwarded", "X-Forwarded-For"} {
			if got := resolve(clientip.Proxies{}, name, sent); got != proxy.String() {
				t.Errorf("%s: got %s from an untrusted peer", name, got)
			}
			if got := trusted.Client(proxy, http.Header{"Forwarded": {sent}, "X-Forwarded-For": {sent}}); got != proxy {
				t.Errorf("both headers: got %s", got)
			}
		}
		for _, seen := range []string{client, `"` + client + `"`, `"[::ffff:` + client + `]:1"`} {
			if got := resolve(trusted, "Forwarded", sent, "for="+seen); got != client {
				t.Errorf("got %s, want %s, which the proxy added as a header", got, client)
			}
			if got := resolve(trusted, "Forwarded", sent+", for="+seen); got != client && got != proxy.String() {
				t.Errorf("got %s, want %s, which the proxy appended, or the proxy", got, client)
			}
		}
		if got := resolve(trusted, "X-Forwarded-For", sent, client); got != client {
			t.Errorf("got %s, want %s, which the proxy added as a header", got, client)
		}
		if got := resolve(trusted, "X-Forwarded-For", sent+", "+client); got != client {
			t.Errorf("got %s, want %s, which the proxy appended", got, client)
		}
	})
}

func TestResolvedRequestHasTheAddressOfItsClient(t *testing.T) {
	for _, tc := range []struct{ peer, forwarded, want, ip string }{
		{"10.0.0.1:999", client, client + ":0", client},
		{"10.0.0.1:999", "2001:db8::7", "[2001:db8::7]:0", "2001:db8::7"},
		{"10.0.0.1:999", "unknown", "10.0.0.1:999", "10.0.0.1"},
		{"192.0.2.1:999", client, "192.0.2.1:999", "192.0.2.1"},
		{"[fe80::1%eth0]:999", client, "[fe80::1%eth0]:999", "fe80::1%eth0"},
		{"@", client, "@", ""},
		{"", client, "", ""},
	} {
		r := &http.Request{RemoteAddr: tc.peer, Header: http.Header{"X-Forwarded-For": {tc.forwarded}}}
		got := proxies(t, "10.0.0.0/24").Resolve(r)
		if got.RemoteAddr != tc.want || clientip.RemoteIP(got) != tc.ip || r.RemoteAddr != tc.peer {
			t.Errorf("%s for %s: got %q, and %q of the request that came, want %q", tc.peer, tc.forwarded, got.RemoteAddr, r.RemoteAddr, tc.want)
		}
	}
}

func TestAddressesOfOneIPv6NetworkAreLimitedTogether(t *testing.T) {
	for ip, want := range map[string]string{
		"203.0.113.7": "203.0.113.7", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2::9": "2001:db8:1:2::/64", "2001:db8:1:3::9": "2001:db8:1:3::/64",
		"fe80::1%eth0": "fe80::/64", "::ffff:203.0.113.7": "::ffff:203.0.113.7", "": "", "x": "x",
	} {
		if got := clientip.Network(ip); got != want {
			t.Errorf("%q: got %q, want %q", ip, got, want)
		}
	}
}
