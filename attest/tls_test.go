package attest_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/refusal"
)

const patience = 5 * time.Second

// server answers one byte on each connection whose handshake succeeds, and reports how each handshake ended.
type server struct {
	addr   string
	ends   chan error
	roots  *x509.CertPool
	config *tls.Config
}

func serve(t *testing.T, w *world) *server {
	t.Helper()
	pair, roots := serverPair(t, w)
	s := &server{ends: make(chan error, 8), roots: roots}
	s.config = w.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil })
	ln, err := tls.Listen("tcp", "127.0.0.1:0", s.config)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.ends <- answer(conn.(*tls.Conn))
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return s
}

func answer(conn *tls.Conn) error {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := conn.Handshake(); err != nil {
		return err
	}
	_, err := conn.Write([]byte("k"))
	return err
}

// serverPair returns a certificate for localhost and a pool that trusts it. Clients do not authenticate the server by an SVID.
func serverPair(t *testing.T, w *world) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	template := w.acme.leaf("/brevet")
	template.DNSNames = []string{"localhost"}
	roots := x509.NewCertPool()
	roots.AddCert(w.acme.ca)
	return w.acme.svid(t, template), roots
}

func (s *server) client(pair *tls.Certificate) *tls.Config {
	cfg := &tls.Config{RootCAs: s.roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}}
	if pair != nil {
		// Unlike Certificates, this sends the certificate even if the server would not accept it.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	}
	return cfg
}

// greet connects and waits for the server's byte: in TLS 1.3 only a read shows the client that it was refused.
func (s *server) greet(cfg *tls.Config) (tls.ConnectionState, error) {
	dialer := &net.Dialer{Timeout: patience}
	conn, err := tls.DialWithDialer(dialer, "tcp", s.addr, cfg)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err = io.ReadFull(conn, make([]byte, 1))
	return conn.ConnectionState(), err
}

func TestHandshakeRefuses(t *testing.T) {
	for name, bad := range badCerts {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			wantRefused(t, w, bad.make(t, w), []string{bad.reason})
		})
	}
	for name, text := range badIDs {
		t.Run("named "+name, func(t *testing.T) {
			w := newWorld(t)
			var want []string
			if !unparsable[name] {
				want = []string{"spiffe_id_invalid"}
			}
			wantRefused(t, w, badlyNamed(t, w, text), want)
		})
	}
}

func wantRefused(t *testing.T, w *world, pair tls.Certificate, want []string) {
	t.Helper()
	s := serve(t, w)
	if _, err := s.greet(s.client(&pair)); err == nil {
		t.Error("got a greeting, want the handshake to fail")
	}
	if err := <-s.ends; err == nil {
		t.Error("got a handshake that the server finished, want it to fail")
	}
	if got := w.refused(); !slices.Equal(got, want) {
		t.Errorf("got refusals %q, want %q", got, want)
	}
}

func TestHandshakeAccepts(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w)
	pair := w.acme.svid(t, w.acme.leaf("/agents/a"))
	for name, cert := range map[string]*tls.Certificate{"an SVID": &pair, "no certificate": nil} {
		t.Run(name, func(t *testing.T) {
			state, err := s.greet(s.client(cert))
			if err := errors.Join(err, <-s.ends); err != nil {
				t.Fatal(err)
			}
			if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "http/1.1" {
				t.Errorf("got version %x and protocol %q, want TLS 1.3 and http/1.1", state.Version, state.NegotiatedProtocol)
			}
		})
	}
	if got := w.refused(); len(got) > 0 {
		t.Errorf("got refusals %q, want none", got)
	}
}

func TestHandshakeOldVersions(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w)
	pair := w.acme.svid(t, w.acme.leaf("/agents/a"))
	for name, version := range map[string]uint16{"H27 TLS 1.1": tls.VersionTLS11, "H27 TLS 1.2": tls.VersionTLS12} {
		t.Run(name, func(t *testing.T) {
			cfg := s.client(&pair)
			cfg.MinVersion, cfg.MaxVersion = version, version
			if _, err := s.greet(cfg); err == nil {
				t.Error("got a greeting, want the handshake to fail")
			}
			if err := <-s.ends; err == nil {
				t.Error("got a handshake that the server finished, want it to fail")
			}
		})
	}
}

// H25: there is nothing to resume, so each connection is verified in full.
func TestNoResumption(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w)
	pair := w.acme.svid(t, w.acme.leaf("/agents/a"))
	cfg := s.client(&pair)
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for i := range 3 {
		state, err := s.greet(cfg)
		if err := errors.Join(err, <-s.ends); err != nil {
			t.Fatal(err)
		}
		if state.DidResume {
			t.Errorf("got connection %d resumed, want a full handshake", i)
		}
	}
	if session, ok := cfg.ClientSessionCache.Get("localhost"); ok || session != nil {
		t.Error("got a session ticket, want none")
	}
	// The authority leaves the bundle, and the client uses everything that it has kept.
	w.acme.rotate(t)
	w.bundles.Add(w.acme.bundle())
	if _, err := s.greet(cfg); err == nil {
		t.Error("got a greeting after the authority was removed, want the handshake to fail")
	}
	if err := <-s.ends; refusal.Reason(err) != "svid_signature" {
		t.Errorf("got %v, want svid_signature", err)
	}
}

// H25, H26: an open connection outlives neither its SVID nor its authority, in HTTP/1.1 or HTTP/2.
func TestLiveConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		h2     bool
		change func(t *testing.T, w *world)
	}{
		"H26 SVID expires, HTTP/2":     {true, func(_ *testing.T, w *world) { w.clock.advance(time.Hour + time.Second) }},
		"H26 SVID expires, HTTP/1.1":   {false, func(_ *testing.T, w *world) { w.clock.advance(time.Hour + time.Second) }},
		"H25 authority leaves, HTTP/2": {true, func(t *testing.T, w *world) { t.Helper(); w.acme.rotate(t); w.bundles.Add(w.acme.bundle()) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			srv := httptest.NewUnstartedServer(identified(w))
			pair, roots := serverPair(t, w)
			srv.TLS = w.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil })
			srv.EnableHTTP2 = tc.h2
			srv.StartTLS()
			t.Cleanup(srv.Close)
			svid := w.acme.svid(t, w.acme.leaf("/agents/a"))
			client := &http.Client{Transport: &http.Transport{
				ForceAttemptHTTP2: tc.h2,
				MaxConnsPerHost:   1,
				TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: "localhost", Certificates: []tls.Certificate{svid}},
			}}
			t.Cleanup(client.CloseIdleConnections)
			first := get(t, client, srv.URL)
			tc.change(t, w)
			second := get(t, client, srv.URL)
			if first.status != http.StatusOK || second.status != http.StatusUnauthorized {
				t.Errorf("got %d and %d, want 200 and 401", first.status, second.status)
			}
			if first.peer != second.peer {
				t.Errorf("got two connections, %s and %s, want the same one", first.peer, second.peer)
			}
			if want := map[bool]int{true: 2, false: 1}[tc.h2]; first.major != want {
				t.Errorf("got HTTP/%d, want HTTP/%d", first.major, want)
			}
		})
	}
}

func identified(w *world) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Peer", r.RemoteAddr)
		if _, err := w.Identify(r.TLS, ""); err != nil {
			rw.WriteHeader(http.StatusUnauthorized)
		}
	})
}

type reply struct {
	status, major int
	peer          string
}

func get(t *testing.T, client *http.Client, url string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.ProtoMajor, resp.Header.Get("Peer")}
}
