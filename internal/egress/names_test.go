package egress_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
)

// names returns a resolver that resolves every name to this machine, with four exceptions: "inner" is in a network that is not
// allowed, "rebound" moves there after its first lookup, "missing" does not exist, and "broken" fails.
func names(t testing.TB) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		question := make([]byte, 512)
		var rebound atomic.Int32
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(resolved(question[:n], &rebound), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// resolved returns the response to a DNS query (RFC 1035), with A records only.
func resolved(question []byte, rebound *atomic.Int32) []byte {
	end := bytes.IndexByte(question[12:], 0) + 12 + 5
	isA := question[end-3] == 1
	address := net.IPv4(127, 0, 0, 1).To4()
	if bytes.Contains(question, []byte("inner")) || isA && bytes.Contains(question, []byte("rebound")) && rebound.Add(1) > 1 {
		address = net.IPv4(169, 254, 169, 254).To4()
	}
	answer := bytes.Clone(question[:end])
	answer[2], answer[3] = 0x81, 0x80
	clear(answer[6:12])
	switch {
	case bytes.Contains(question, []byte("missing")):
		answer[3] |= 3 // NXDOMAIN
	case bytes.Contains(question, []byte("broken")):
		answer[3] |= 2 // SERVFAIL
	case isA:
		answer[7] = 1
		answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		answer = append(answer, address...)
	}
	return answer
}
