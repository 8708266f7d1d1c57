package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// Forwarder passes the connections of a sandbox without a network to the Unix sockets of its gateway. It needs no identity.
type Forwarder struct {
	Endpoint
	socket           string
	proxy, databases net.Listener
}

// NewForwarder listens at two loopback addresses of the sandbox, for the gateway whose Unix socket is at path.
func NewForwarder(ctx context.Context, path, proxy, databases string) (*Forwarder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{Endpoint: SocketEndpoint(path), socket: path}
	var listen net.ListenConfig
	if f.proxy, err = listen.Listen(ctx, "tcp", proxy); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", proxy, err)
	}
	if f.databases, err = listen.Listen(ctx, "tcp", databases); err != nil {
		return nil, errors.Join(fmt.Errorf("listening on %s: %w", databases, err), f.proxy.Close())
	}
	f.Address, f.Databases = f.proxy.Addr().String(), f.databases.Addr().String()
	return f, nil
}

// Serve forwards connections until ctx ends.
func (f *Forwarder) Serve(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return forward(ctx, f.proxy, f.socket) })
	tasks.Go(func() error { return forward(ctx, f.databases, filepath.Join(filepath.Dir(f.socket), databaseSocket)) })
	return tasks.Wait()
}

func forward(ctx context.Context, listener net.Listener, socket string) error {
	return acceptAll(ctx, listener, func(conn net.Conn) {
		gateway, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return // the program sees that its connection ends
		}
		defer func() { _ = gateway.Close() }()
		relay(conn, gateway)
	})
}

// relay copies both directions. If one side sends no more, it tells the other side, which may still send.
func relay(a, b net.Conn) {
	done := make(chan struct{})
	one := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			_, _ = to.Close(), from.Close()
		}
	}
	go func() {
		defer close(done)
		one(a, b)
	}()
	one(b, a)
	<-done
}
