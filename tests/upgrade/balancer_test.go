package upgrade_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// lookEvery is how often the balancer polls /readyz. Other balancers poll every few seconds, and replicas have to announce their
// end earlier by as much.
const lookEvery = 100 * time.Millisecond

// balancer works like balancers at layer 4: it passes TLS through, and sends each new connection to the ready replica with the
// fewest connections.
type balancer struct {
	listener net.Listener
	looks    *http.Client

	mu       sync.Mutex
	backends [2]backend
	refused  int // connections that a replica refused although it had said that it was ready
	changed  chan struct{}
}

type backend struct {
	addr  string
	ready bool
	open  int
	led   int // connections since the replica was put here
}

func newBalancer(t *testing.T, trust *tls.Config) *balancer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{
		listener: listener, changed: make(chan struct{}),
		looks: &http.Client{Timeout: time.Second, Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for i := range b.backends {
		running.Go(func() { b.watch(ctx, i) })
	}
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { b.carry(ctx, near) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
	return b
}

func (b *balancer) url() string { return "https://" + b.listener.Addr().String() }

// put replaces a replica that has gone.
func (b *balancer) put(i int, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends[i] = backend{addr: addr}
}

// turnedAway returns how many connections failed to reach a replica since its last call.
func (b *balancer) turnedAway() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.refused
	b.refused = 0
	return n
}

// await blocks until a replica has said that it is ready.
func (b *balancer) await(ctx context.Context, i int) error {
	return b.until(ctx, func() bool { return b.backends[i].ready })
}

// leads blocks until both replicas have received connections.
func (b *balancer) leads(ctx context.Context) error {
	return b.until(ctx, func() bool { return b.backends[0].led > 0 && b.backends[1].led > 0 })
}

func (b *balancer) until(ctx context.Context, so func() bool) error {
	for {
		b.mu.Lock()
		done, changed := so(), b.changed
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell wakes the waiting callers. The caller holds the lock.
func (b *balancer) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *balancer) watch(ctx context.Context, i int) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.mu.Lock()
		addr := b.backends[i].addr
		b.mu.Unlock()
		if addr == "" {
			continue
		}
		ready := b.look(ctx, addr)
		b.mu.Lock()
		if b.backends[i].addr == addr {
			b.backends[i].ready = ready
			b.tell()
		}
		b.mu.Unlock()
	}
}

func (b *balancer) look(ctx context.Context, addr string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := b.looks.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// reach connects to a replica. If that replica has gone, it is taken out, and reach tries the other.
func (b *balancer) reach(ctx context.Context) (net.Conn, int) {
	for range len(b.backends) {
		i, addr := b.choose()
		if addr == "" {
			return nil, 0
		}
		far, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
		b.mu.Lock()
		if err == nil {
			b.backends[i].open++
			b.backends[i].led++
			b.tell()
			b.mu.Unlock()
			return far, i
		}
		b.refused++
		if b.backends[i].addr == addr {
			b.backends[i].ready = false
		}
		b.mu.Unlock()
	}
	return nil, 0
}

func (b *balancer) choose() (chosen int, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, one := range b.backends {
		if one.ready && (addr == "" || one.open < b.backends[chosen].open) {
			chosen, addr = i, one.addr
		}
	}
	return chosen, addr
}

func (b *balancer) left(i int, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.backends[i].addr == addr {
		b.backends[i].open--
	}
}

func (b *balancer) carry(ctx context.Context, near net.Conn) {
	defer near.Close()
	far, i := b.reach(ctx)
	if far == nil {
		return
	}
	defer b.left(i, far.RemoteAddr().String())
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })()
	var forth sync.WaitGroup
	forth.Go(func() {
		_, _ = io.Copy(far, near)
		_ = far.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(near, far)
	// The replica's last bytes must not be lost because the caller is still sending.
	_ = near.(*net.TCPConn).CloseWrite()
	_ = near.SetReadDeadline(time.Now().Add(time.Second))
	forth.Wait()
}
