package faults_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// slowRelay passes connections on to the host of a URL, and each piece of an answer only after a delay. It returns
// the URL of the way through it.
func slowRelay(t *testing.T, databaseURL string, delay time.Duration) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { relay(near, target, delay) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	u.Host = listener.Addr().String()
	return u.String()
}

// relay ends when either side does.
func relay(near net.Conn, target string, delay time.Duration) {
	defer func() { _ = near.Close() }()
	far, err := (&net.Dialer{}).Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := far.Read(buffer)
		time.Sleep(delay)
		if _, writeErr := near.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}
