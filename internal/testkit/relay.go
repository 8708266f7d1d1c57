package testkit

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Relay relays connections on loopback. Either side may restart elsewhere, and the other side keeps using the same address.
type Relay struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	shut   bool
	delay  time.Duration // of each chunk of a response
	hushed chan struct{} // closed when responses resume; nil unless they are held back
	conns  map[net.Conn]bool
}

// RelayTo makes a relay to the host of a URL, and also returns that URL with the relay's address.
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

// NewRelay relays connections to target, a host:port, until the test ends.
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

// Addr returns the address that the relay listens on, as host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Lead makes later connections go to another target.
func (r *Relay) Lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Cut closes all connections and refuses new ones until Restore.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	r.speak() // wakes the connections that wait; they are closed
	for c := range r.conns {
		_ = c.Close()
	}
}

// Slow delays each chunk of a response by the given time.
func (r *Relay) Slow(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = by
}

// Hush holds all responses back until Restore. Connections stay open.
func (r *Relay) Hush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hushed = make(chan struct{})
}

// Restore ends the effects of Cut, Slow and Hush.
func (r *Relay) Restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut, r.delay = false, 0
	r.speak()
}

// speak resumes responses. The caller holds the lock.
func (r *Relay) speak() {
	if r.hushed != nil {
		close(r.hushed)
		r.hushed = nil
	}
}

// enter registers connections. It returns false if the relay is shut.
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

// back copies responses.
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
