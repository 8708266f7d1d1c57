package history_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// relay stands between two parties, who both keep their addresses whatever happens to the other.
type relay struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	shut   bool
	delay  time.Duration // of each piece of an answer
	hushed chan struct{} // closed when answers go on; nil while they do
	conns  map[net.Conn]bool
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, target: target, conns: map[net.Conn]bool{}}
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
		r.cut()
		serving.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// lead has connections from now on go elsewhere.
func (r *relay) lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// cut ends all connections and lets none through until restore.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	r.speak() // to nobody
	for c := range r.conns {
		_ = c.Close()
	}
}

// slow has each piece of an answer come so much later.
func (r *relay) slow(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = by
}

// hush holds all answers back until restore. Connections stay.
func (r *relay) hush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hushed = make(chan struct{})
}

func (r *relay) restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut, r.delay = false, 0
	r.speak()
}

// speak lets answers go on. The lock is held.
func (r *relay) speak() {
	if r.hushed != nil {
		close(r.hushed)
		r.hushed = nil
	}
}

// enter takes connections in, unless it is shut.
func (r *relay) enter(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.conns[c] = true
	}
	return !r.shut
}

func (r *relay) leave(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(r.conns, c)
	}
}

func (r *relay) carry(near net.Conn) {
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
func (r *relay) back(near, far net.Conn) {
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
