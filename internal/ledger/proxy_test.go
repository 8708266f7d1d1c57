package ledger_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// cut is what happens to the one statement that a proxy waits for.
type cut int

const (
	cutStatement cut = iota // the statement does not arrive
	cutAnswer               // it is committed, and the answer does not arrive
	cutEnd                  // as cutAnswer, but only the end of the answer is lost, which says that the commit is done
	stall                   // it is committed, the answer does not arrive, and the connection stays
)

// proxy is between a ledger and Postgres. It does one thing to the connection that carries the marker.
type proxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	marker []byte // nil when disarmed
	how    cut
	alone  bool // after the cut, no other connection gets through
	shut   bool
	conns  []net.Conn
}

// through starts a proxy, and returns databaseURL with the proxy's address.
func through(t *testing.T, databaseURL string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: u.Host}
	var serving sync.WaitGroup
	serving.Go(func() { p.serve(&serving) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.shut = true
		p.mu.Unlock()
		serving.Wait()
	})
	u.Host = listener.Addr().String()
	return p, u.String()
}

// arm sets what happens to the next statement that contains the marker. If alone is set, all connections are cut afterwards.
func (p *proxy) arm(marker string, how cut, alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.how, p.alone = []byte(marker), how, alone
}

// fired reports whether the statement came.
func (p *proxy) fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marker == nil
}

// cutOff closes all connections and refuses new ones.
func (p *proxy) cutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// restore lets connections through again.
func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = false
}

func (p *proxy) serve(serving *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		p.mu.Lock()
		if err != nil || p.shut {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		serving.Go(func() { p.carry(client, server) })
	}
}

// carry forwards data both ways until one side ends or the marked statement comes.
func (p *proxy) carry(client, server net.Conn) {
	defer func() { _ = client.Close() }()
	answers := make(chan cut, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.back(client, server, answers)
	}()
	defer func() { <-done }()
	defer func() { _ = server.Close() }()
	buffer := make([]byte, 1<<20)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		how, hit := p.take(buffer[:n])
		if hit && how == cutStatement {
			return
		}
		if hit {
			answers <- how
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
		if hit && how != stall {
			<-done
			return
		}
	}
}

func (p *proxy) take(data []byte) (cut, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marker == nil || !bytes.Contains(data, p.marker) {
		return 0, false
	}
	p.marker, p.shut = nil, p.alone
	return p.how, true
}

// readyForQuery is the last message of an answer: the server is outside any transaction again.
var readyForQuery = []byte{'Z', 0, 0, 0, 5, 'I'}

// back forwards answers. It reads the answer to the marked statement to its end, and keeps it.
func (p *proxy) back(client, server net.Conn, answers <-chan cut) {
	buffer := make([]byte, 1<<20)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			_ = client.Close()
			return
		}
		select {
		case how := <-answers:
			answer := buffer[:n]
			for !bytes.HasSuffix(answer, readyForQuery) {
				more := make([]byte, 1<<16)
				n, err := server.Read(more)
				if err != nil {
					return
				}
				answer = append(answer, more[:n]...)
			}
			if how == cutEnd {
				_, _ = client.Write(bytes.TrimSuffix(answer, readyForQuery))
			}
			if how == stall {
				_, _ = io.Copy(io.Discard, server) // until the client hangs up
				_ = client.Close()
			}
			return
		default:
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
}
