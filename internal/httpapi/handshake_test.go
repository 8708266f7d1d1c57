package httpapi_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// If a trust domain has no keys, the caller is not at fault: it gets 503, and no token.
func TestMissingBundleIsAServerError(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	c := s.JWTClient(t, foreign)
	s.DropBundle(s.Other.TrustDomain())
	_, err := c.Page(t.Context(), client.Filter{})
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Code != openapi.CodeBundleUnavailable || problem.RetryAfter == 0 {
		t.Errorf("got %v, want %s with Retry-After", err, openapi.CodeBundleUnavailable)
	}
	if _, err := s.JWTClient(t, agent).Page(t.Context(), client.Filter{}); err != nil {
		t.Errorf("the other trust domain suffers: %v", err)
	}
}

// I12: certificates are public. A caller that presents one without its key gets nothing, and that is recorded.
func TestStolenCertificatesAreRecorded(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	stolen, thief := *s.X509(t, agent), s.X509(t, twin)
	stolen.PrivateKey = thief.PrivateKey
	conn, err := (&tls.Dialer{Config: s.ClientTLS(&stolen)}).DialContext(t.Context(), "tcp", s.Addr)
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil {
		t.Fatal("the handshake went well")
	}
	// The server writes the log line, and so the record, after it has answered the client.
	eventually(t, func() error {
		entries := s.DB.Entries(t)
		if len(entries) != 1 || entries[0].Body["detail"] != "svid_key_missing" || entries[0].Body["remote"] != "127.0.0.1" {
			return fmt.Errorf("got %v, want one entry of a certificate without its key", entries)
		}
		return nil
	})
}

// A certificate that is not an acceptable SVID never becomes a request, but is recorded (I12).
func TestRefusedHandshakesAreRecorded(t *testing.T) {
	t.Parallel()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	forge, err := devstack.NewIssuer(devstack.IssuerConfig{TrustDomain: s.Acme.TrustDomain()})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := forge.X509SVID(spiffeid.RequireFromString(agent))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&tls.Dialer{Config: s.ClientTLS(forged)}).DialContext(t.Context(), "tcp", s.Addr)
	if err == nil {
		// In TLS 1.3 a client learns that its certificate was refused when it first reads.
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	if err == nil {
		t.Fatal("the handshake went well")
	}
	// The entry is durable before the alert is sent.
	entries := s.DB.Entries(t)
	if len(entries) != 1 {
		t.Fatalf("got %d entries, want one", len(entries))
	}
	want := map[string]any{"code": "unauthenticated", "detail": "svid_signature", "operation": "tlsHandshake", "remote": "127.0.0.1"}
	for name, value := range want {
		if got := entries[0].Body[name]; got != value {
			t.Errorf("%s: got %v, want %v", name, got, value)
		}
	}
	if entries[0].Body["subject"] != nil {
		t.Errorf("the record names %v, who proved nothing", entries[0].Body["subject"])
	}
}
