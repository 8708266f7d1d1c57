package testkit

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Relay stands between two parties on loopback, who both keep their addresses whatever happens to the other.
type Relay struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	shut   bool
	delay  time.Duration // of each piece of an answer
	hushed chan struct{} // closed when answers go on; nil while they do
	conns  map[net.Conn]bool
}

// RelayTo makes a relay to the host of a URL, and returns the URL of the way through it too.
func RelayTo(t testing.TB, of string) (relay *Relay, through string) {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	relay = NewRelay(t, u.Host)
	u.Host = relay.Addr()
	return relay, u.String()
}

// NewRelay carries connections to target, a host:port, until the test ends.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: listener, target: target, conns: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.carry(near) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.Cut()
		serving.Wait()
	})
	return r
}

// Addr is where it listens, as host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Lead has connections from now on go elsewhere.
func (r *Relay) Lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Cut ends all connections and lets none through until Restore.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	r.speak() // to nobody
	for c := range r.conns {
		_ = c.Close()
	}
}

// Slow has each piece of an answer come so much later.
func (r *Relay) Slow(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = by
}

// Hush holds all answers back until Restore. Connections stay.
func (r *Relay) Hush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hushed = make(chan struct{})
}

// Restore has it carry everything at once again.
func (r *Relay) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut, r.delay = false, 0
	r.speak()
}

// speak lets answers go on. The lock is held.
func (r *Relay) speak() {
	if r.hushed != nil {
		close(r.hushed)
		r.hushed = nil
	}
}

// enter takes connections in, unless it is shut.
func (r *Relay) enter(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.conns[c] = true
	}
	return !r.shut
}

func (r *Relay) leave(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(r.conns, c)
	}
}

func (r *Relay) carry(near net.Conn) {
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	far, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", target)
	if err != nil {
		_ = near.Close()
		return
	}
	defer r.leave(near, far)
	if !r.enter(near, far) {
		return
	}
	var forth sync.WaitGroup
	forth.Go(func() {
		_, _ = io.Copy(far, near)
		_, _ = far.Close(), near.Close()
	})
	r.back(near, far)
	_, _ = far.Close(), near.Close()
	forth.Wait()
}

// back carries answers.
func (r *Relay) back(near, far net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := far.Read(buffer)
		r.mu.Lock()
		wait, hushed := r.delay, r.hushed
		r.mu.Unlock()
		if wait > 0 {
			<-time.After(wait)
		}
		if hushed != nil {
			<-hushed
		}
		if _, writeErr := near.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}
