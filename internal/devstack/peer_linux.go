package devstack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ownUser reports whether root or the user of this process holds the other end of a connection on loopback. The kernel lists the
// owner of each socket. A socket that its owner has closed already counts as another user's, because the list has root for it.
func ownUser(remote, local string) bool {
	from, err := netip.ParseAddrPort(remote)
	to, wrong := netip.ParseAddrPort(local)
	if err != nil || wrong != nil {
		return false
	}
	for table, form := range map[string]func(netip.AddrPort) string{
		"/proc/net/tcp":  func(a netip.AddrPort) string { return inTable(a, a.Addr().Unmap().AsSlice()) },
		"/proc/net/tcp6": func(a netip.AddrPort) string { all := a.Addr().As16(); return inTable(a, all[:]) },
	} {
		text, _ := os.ReadFile(table) // without IPv6 there is no second table
		for line := range strings.Lines(string(text)) {
			// Number, local and remote address, state, queues, timer, retransmits, uid, timeout, inode ...
			field := strings.Fields(line)
			const established = "01"
			if len(field) < 10 || field[1] != form(from) || field[2] != form(to) || field[3] != established || field[9] == "0" {
				continue
			}
			return field[7] == "0" || field[7] == strconv.Itoa(os.Geteuid())
		}
	}
	return false
}

// inTable writes an address as the kernel's tables do: in words of this machine's byte order.
func inTable(a netip.AddrPort, ip []byte) string {
	var text strings.Builder
	for word := range slices.Chunk(ip, 4) {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(word))
	}
	fmt.Fprintf(&text, ":%04X", a.Port())
	return text.String()
}
