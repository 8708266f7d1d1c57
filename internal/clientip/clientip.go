// Package clientip says from which address a request comes: the TCP peer, or the client that a trusted proxy names.
//
// It must never let a header change the address unless the peer is a trusted proxy.
package clientip

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Proxies are the trusted proxies: whoever connects from their addresses can claim any client address. The zero value trusts
// none.
type Proxies struct{ networks []netip.Prefix }

// ParseProxies parses addresses and networks, such as 10.1.2.3 and fd00:1::/64. It reports every text that it refuses.
func ParseProxies(texts []string) (Proxies, error) {
	var p Proxies
	var errs []error
	for _, text := range texts {
		network, err := parseNetwork(text)
		errs = append(errs, err)
		p.networks = append(p.networks, network)
	}
	if err := errors.Join(errs...); err != nil {
		return Proxies{}, err
	}
	return p, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			network = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	switch {
	case !network.IsValid():
		return network, fmt.Errorf("%q is not an address or a network, such as 10.1.2.3 or 10.1.0.0/16", text)
	case network.Addr().Is4In6():
		return network, fmt.Errorf("%q is an IPv4 address in the form of IPv6: write it as IPv4", text)
	case network.Bits() == 0:
		return network, fmt.Errorf("%q would let every caller claim any address", text)
	case network != network.Masked():
		return network, fmt.Errorf("%q is an address within the network %s: write one or the other", text, network.Masked())
	}
	return network, nil
}

func (p Proxies) trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(p.networks, func(network netip.Prefix) bool { return network.Contains(addr) })
}

// Client returns the address of the client behind peer. If peer is a trusted proxy, that is the last address in Forwarded
// (RFC 7239) or X-Forwarded-For that is not a trusted proxy, or the first of all if every address is one. Otherwise it is peer.
//
// It is peer too if the headers leave a doubt: if both are present, because a proxy sets one and passes on what its client sent
// as the other, or if a value on the way is malformed, "unknown" or obfuscated.
func (p Proxies) Client(peer netip.Addr, header http.Header) netip.Addr {
	if !p.trusts(peer) {
		return peer
	}
	lines, nodesOf := header.Values("X-Forwarded-For"), listedNodes
	if forwarded := header.Values("Forwarded"); len(forwarded) > 0 {
		if len(lines) > 0 {
			return peer
		}
		lines, nodesOf = forwarded, forwardedNodes
	}
	client := peer
	for _, line := range slices.Backward(lines) {
		nodes, ok := nodesOf(line)
		if !ok {
			return peer
		}
		for _, node := range slices.Backward(nodes) {
			addr, ok := parseNode(node)
			if !ok {
				return peer
			}
			if client = addr; !p.trusts(client) {
				return client
			}
		}
	}
	return client
}

// Resolve returns the request with the address of its client in RemoteAddr, so that RemoteIP returns that. The port is 0 if the
// address comes from a header.
func (p Proxies) Resolve(r *http.Request) *http.Request {
	peer, err := netip.ParseAddr(RemoteIP(r))
	if err != nil {
		return r
	}
	client := p.Client(peer, r.Header)
	if client == peer {
		return r
	}
	resolved := *r
	resolved.RemoteAddr = netip.AddrPortFrom(client, 0).String()
	return &resolved
}

// RemoteIP returns the IP address in r.RemoteAddr, or "" if it is unknown. It ignores all headers.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// Network returns the network by which to limit an address: an IPv4 address by itself, and the /64 of an IPv6 address, of which
// one client can have every address.
func Network(ip string) string {
	addr, err := netip.ParseAddr(ip)
	if err != nil || !addr.Unmap().Is6() {
		return ip
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return network.String()
}

// whitespace is the optional whitespace of RFC 9110, section 5.6.3.
const whitespace = " \t"

// listedNodes returns the elements of an X-Forwarded-For. An IPv6 address may lack the brackets that parseNode requires.
func listedNodes(line string) (nodes []string, ok bool) {
	for node := range strings.SplitSeq(line, ",") {
		node = strings.Trim(node, whitespace)
		if addr, err := netip.ParseAddr(node); err == nil && addr.Is6() {
			node = "[" + node + "]"
		}
		nodes = append(nodes, node)
	}
	return nodes, true
}

// forwardedNodes returns the value of "for" in each element of a Forwarded (RFC 7239, section 4), or "" where an element has
// none. It reads the whole line: what a client sent could otherwise end in an open quote, and swallow what the proxy appended.
func forwardedNodes(line string) (nodes []string, ok bool) {
	for rest := line; ; rest = rest[1:] {
		node, found := "", false
		rest = strings.TrimLeft(rest, whitespace)
		for more := true; more; rest, more = strings.CutPrefix(rest, ";") {
			name, after := cutToken(rest)
			if name == "" {
				continue // the grammar allows empty pairs
			}
			value, after, ok := cutValue(after)
			isFor := strings.EqualFold(name, "for")
			if !ok || isFor && found {
				return nil, false
			}
			if isFor {
				node, found = value, true
			}
			rest = after
		}
		nodes = append(nodes, node)
		rest = strings.TrimLeft(rest, whitespace)
		if rest == "" {
			return nodes, true
		}
		if rest[0] != ',' {
			return nil, false
		}
	}
}

// cutToken cuts a token (RFC 9110, section 5.6.2) from the beginning of text.
func cutToken(text string) (token, rest string) {
	end := strings.IndexFunc(text, func(c rune) bool {
		return !isAlphanumeric(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:]
}

func isAlphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// cutValue cuts "=" and a token or a quoted string (RFC 9110, section 5.6.4) from the beginning of text.
func cutValue(text string) (value, rest string, ok bool) {
	text, ok = strings.CutPrefix(text, "=")
	if !ok {
		return "", "", false
	}
	text, quoted := strings.CutPrefix(text, `"`)
	if !quoted {
		value, rest = cutToken(text)
		return value, rest, value != ""
	}
	var unquoted strings.Builder
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return unquoted.String(), text[i+1:], true
		case '\\':
			if i++; i == len(text) {
				return "", "", false
			}
		}
		unquoted.WriteByte(text[i])
	}
	return "", "", false
}

// parseNode parses a node of RFC 7239, section 6: an IPv4 address, or an IPv6 address in brackets, perhaps with a port. It
// accepts no name, no obfuscated address and no zone.
func parseNode(text string) (netip.Addr, bool) {
	host, port, hasPort := strings.Cut(text, ":")
	inner, bracketed := strings.CutPrefix(text, "[")
	if bracketed {
		var after string
		var closed bool
		host, after, closed = strings.Cut(inner, "]")
		port, hasPort = strings.CutPrefix(after, ":")
		if !closed || !hasPort && after != "" {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || addr.Is6() != bracketed || hasPort && !isPort(port) {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// isPort reports whether text is a port of RFC 7239, section 6.2, which may be obfuscated.
func isPort(text string) bool {
	if name, obfuscated := strings.CutPrefix(text, "_"); obfuscated {
		return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return !isAlphanumeric(c) && !strings.ContainsRune("._-", c) })
	}
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil && len(text) <= len("65535")
}
