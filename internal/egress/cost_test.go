package egress_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// forwarder configures nginx as a plain reverse proxy to the host, without sandboxes, rules or credentials.
const forwarder = `daemon off;
pid nginx.pid;
error_log stderr error;
worker_processes auto;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
    upstream host { server %s; keepalive 64; }
    server {
        listen %s;
        keepalive_requests 1000000;
        location / {
            proxy_pass https://host;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ssl_session_reuse on;
        }
    }
}
`

func startForwarder(b *testing.B, host string) (addr string) {
	b.Helper()
	free := listen(b, "tcp", "127.0.0.1:0")
	addr = free.Addr().String()
	_ = free.Close()
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, forwarder, host, addr), 0o600); err != nil {
		b.Fatal(err)
	}
	// Outlive the benchmark's context: a kill would leave nginx's workers running. Cleanup interrupts it.
	nginx := exec.CommandContext(context.WithoutCancel(b.Context()), "nginx", "-p", dir, "-c", "nginx.conf")
	nginx.Stderr = os.Stderr
	if err := nginx.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = nginx.Process.Signal(os.Interrupt); _ = nginx.Wait() })
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		if conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			return addr
		}
	}
}

// BenchmarkCall makes the same calls directly, through the gateway, and through nginx. Sequential calls measure the added
// latency, and 32 parallel calls measure the throughput.
func BenchmarkCall(b *testing.B) {
	spare := make([]byte, 64<<20) // as in the program
	defer runtime.KeepAlive(spare)
	w := newWorld(b)
	w.perSecond = 1_000_000
	w.log, w.host.quiet = nil, true
	w.open(b)
	nginx := startForwarder(b, w.host.Listener.Addr().String())
	direct := w.host.Client()
	direct.Transport.(*http.Transport).MaxIdleConnsPerHost = 64 //nolint:forcetypeassert // what httptest makes
	plain := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for _, way := range []struct {
		name   string
		client *http.Client
		target string
	}{
		{"direct", direct, "https://" + w.host.Listener.Addr().String() + "/key/x"},
		{"gateway", plain, "http://" + w.addr + "/" + w.host.name() + "/key/x"},
		{"gateway-tunnel", w.proxied(b), w.url("/key/x")},
		{"nginx", plain, "http://" + nginx + "/key/x"},
	} {
		for _, workers := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", way.name, workers), func(b *testing.B) { measure(b, way.client, way.target, workers) })
		}
	}
}

func measure(b *testing.B, c *http.Client, target string, workers int) {
	b.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var all sync.WaitGroup
	began := time.Now()
	for i := range workers {
		all.Go(func() {
			var own []time.Duration
			for n := i; n < b.N; n += workers {
				start := time.Now()
				if err := once(c, target); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	all.Wait()
	slices.Sort(took)
	if len(took) > 0 {
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
		b.ReportMetric(float64(len(took))/time.Since(began).Seconds(), "calls/s")
	}
}

func once(c *http.Client, target string) error {
	req, err := http.NewRequest(http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "http://") {
		req.SetBasicAuth("brevet", password)
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("got %d %s, %w", resp.StatusCode, text, err)
	}
	return nil
}
