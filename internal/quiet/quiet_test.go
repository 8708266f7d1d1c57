package quiet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/quiet"
)

const hidden = "hvs.CAESIJ-the-credential"

// respond starts a server that sends a text in answer to each call, and closes the connection.
func respond(t *testing.T, text string) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.WriteString(conn, strings.ReplaceAll(text, "SECRET", hidden))
			}
			_ = conn.Close()
		}
	}()
	return "http://" + listener.Addr().String()
}

// I9 and T10: whatever a server sends instead of a response, no error quotes the text.
func TestErrorsQuoteNoResponse(t *testing.T) {
	for name, text := range map[string]string{
		"no HTTP":              "SECRET\r\n\r\n",
		"status":               "HTTP/1.1 SECRET\r\n\r\n",
		"version":              "HTTP/SECRET 200 OK\r\n\r\n",
		"header without colon": "HTTP/1.1 200 OK\r\nSECRET\r\n\r\n",
		"length":               "HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n",
		"two lengths":          "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: SECRET\r\n\r\na",
		"transfer coding":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: SECRET\r\n\r\n",
		"announced trailer":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length, SECRET\r\n\r\n0\r\n\r\n",
		"trailer":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nSECRET\r\n\r\n",
		"chunk":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n",
		"redirect":             "HTTP/1.1 302 Found\r\nLocation: http://%zz/SECRET\r\nContent-Length: 0\r\n\r\n",
		"redirect to a port":   "HTTP/1.1 302 Found\r\nLocation: http://a:SECRET/\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{
				Transport:     quiet.New(&http.Transport{DisableKeepAlives: true}),
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, respond(t, text), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
			if err == nil && !strings.HasPrefix(name, "redirect") {
				t.Fatal("got no error: nothing is shown")
			}
			var logged bytes.Buffer
			slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "error", err)
			if told := fmt.Sprintf("%v %+v %q %s", err, err, err, logged.String()); strings.Contains(told, hidden) {
				t.Errorf("got %s", told)
			}
		})
	}
}

// I9 and T10: whatever a proxy answers to CONNECT, and whatever URL the environment has for the proxy, no error quotes the text.
func TestErrorsQuoteNoProxy(t *testing.T) {
	for name, tc := range map[string]struct{ answer, want string }{
		"refusal":              {"HTTP/1.1 407 SECRET\r\n\r\n", "status 407 Proxy Authentication Required"},
		"unknown status":       {"HTTP/1.1 299 SECRET\r\n\r\n", "status 299"},
		"no HTTP":              {"SECRET\r\n\r\n", "no connection was made"},
		"status":               {"HTTP/1.1 SECRET\r\n\r\n", "no connection was made"},
		"version":              {"HTTP/SECRET 200 OK\r\n\r\n", "no connection was made"},
		"header without colon": {"HTTP/1.1 200 OK\r\nSECRET\r\n\r\n", "no connection was made"},
		"length":               {"HTTP/1.1 407 No\r\nContent-Length: SECRET\r\n\r\n", "no connection was made"},
		"transfer coding":      {"HTTP/1.1 407 No\r\nTransfer-Encoding: SECRET\r\n\r\n", "no connection was made"},
		"no handshake":         {"HTTP/1.1 200 OK\r\n\r\nSECRET", "EOF"},
		"nothing":              {"", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			at, err := url.Parse(respond(t, tc.answer))
			if err != nil {
				t.Fatal(err)
			}
			unquoting(t, &http.Transport{Proxy: http.ProxyURL(at)}, tc.want)
		})
	}
	t.Run("address", func(t *testing.T) {
		unquoting(t, &http.Transport{Proxy: func(*http.Request) (*url.URL, error) {
			return nil, errors.New("invalid proxy address " + hidden)
		}}, "no connection was made")
	})
}

// unquoting makes a call that fails, and checks the text of the error.
func unquoting(t *testing.T, transport *http.Transport, want string) {
	t.Helper()
	transport.DisableKeepAlives = true
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: quiet.New(transport)}).Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("got no error: nothing is shown")
	}
	if told := fmt.Sprintf("%v %+v %q", err, err, err); strings.Contains(told, hidden) || !strings.Contains(told, want) {
		t.Errorf("got %s, want %q", told, want)
	}
}

// The errors that say what to do keep their texts, and stay what they are.
func TestErrorsOfTheNetworkAreKept(t *testing.T) {
	transport := quiet.New(&http.Transport{DisableKeepAlives: true})
	call := func(ctx context.Context, at string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		return err
	}
	if err := call(t.Context(), "http://127.0.0.1:1/"); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	if err := call(t.Context(), respond(t, "")); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("got %v", err)
	}
	if err := call(t.Context(), respond(t, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	own := errors.New("the task has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(own)
	if err := call(ctx, respond(t, "HTTP/1.1 200 OK\r\n\r\n")); !errors.Is(err, own) || err.Error() != own.Error() {
		t.Errorf("got %v", err)
	}
}

// I9 and T10: the log of a server has neither the values of panics nor the bytes of calls.
func TestServersLogNoCalls(t *testing.T) {
	var logged bytes.Buffer
	log := quiet.ServerLog(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Printf("http: TLS handshake error from %s: %v", "192.0.2.1:7", io.EOF)
	log.Printf("http: panic serving %v: %v\n%s", "192.0.2.1:7", hidden, "goroutine 7 [running]:\nmain.main()")
	log.Printf("http2: server read frame DATA data=%q", hidden)
	log.Printf("http2: server: error reading preface from client: bogus greeting %q", hidden)
	if text := logged.String(); strings.Contains(text, hidden) || !strings.Contains(text, "TLS handshake error from 192.0.2.1:7: EOF") || !strings.Contains(text, "goroutine 7 [running]") {
		t.Errorf("got %s", text)
	}
}
