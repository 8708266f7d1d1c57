package safehttp_test

import (
	"net/netip"
	"testing"

	"github.com/brevet-dev/brevet/internal/safehttp"
)

// H96: addresses that a server must not call.
func TestForbiddenAddressesAreRefused(t *testing.T) {
	for _, addr := range []string{
		"169.254.169.254", "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "0.0.0.0", "0.1.2.3", "100.64.0.1",
		"192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1",
		"fd00:ec2::254", "fec0::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1",
		"::ffff:0:7f00:1", "::ffff:0:a9fe:a9fe", "5f00::1", "5f00:ffff::1",
	} {
		if err := safehttp.Callable(netip.MustParseAddr(addr)); err == nil {
			t.Errorf("%s may be called", addr)
		}
	}
	for _, addr := range []string{"1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"} {
		if err := safehttp.Callable(netip.MustParseAddr(addr)); err != nil {
			t.Errorf("%s may not be called", addr)
		}
	}
}
