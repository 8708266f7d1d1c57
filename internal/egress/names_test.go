package egress_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
)

// names is a resolver for which all names are here, but one that is in a network that is not open, one that goes there after it
// was looked up once, one that is missing, and one that cannot be looked up.
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

// resolved answers a question of the DNS (RFC 1035): A records only.
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
