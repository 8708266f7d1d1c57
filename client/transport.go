package client

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// newTransport returns a transport that connects to one server with the given TLS configuration.
func newTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		TLSClientConfig:     config,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: 16,
	}
}

// rotatingTransport sends requests with the source's current X.509-SVID. A connection presents one certificate for its whole
// life, and HTTP/2 uses one connection for all requests. So each SVID has its own transport: requests in progress finish on
// their connection, and requests after a rotation open a new one.
type rotatingTransport struct {
	source x509svid.Source
	config func(x509svid.Source) *tls.Config

	mu      sync.Mutex
	svid    *x509svid.SVID
	current *http.Transport
}

// RoundTrip implements [http.RoundTripper]. It sends a request once more if the server refused the connection's certificate and
// the source has a newer one of the same identity. The server returned 401 before it acted on the request, so a retry is safe.
func (t *rotatingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	carrier, used, err := t.latest()
	if err != nil {
		return nil, err
	}
	resp, err := carrier.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !refusesCertificate(resp) {
		return resp, err
	}
	next, newer, err := t.latest()
	if err != nil || newer == used || newer.ID != used.ID { // another identity must not get what this one requested
		return resp, nil //nolint:nilerr // the server's answer says more
	}
	again := req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		if req.GetBody == nil {
			return resp, nil
		}
		if again.Body, err = req.GetBody(); err != nil {
			return resp, nil //nolint:nilerr // as above
		}
	}
	_ = resp.Body.Close()
	return next.RoundTrip(again)
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *rotatingTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

// latest returns the transport for the source's current SVID.
func (t *rotatingTransport) latest() (*http.Transport, *x509svid.SVID, error) {
	svid, err := t.source.GetX509SVID()
	if err != nil {
		return nil, nil, fmt.Errorf("getting an X.509-SVID: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.svid == nil || !sameCertificate(t.svid, svid) {
		if t.current != nil {
			t.current.CloseIdleConnections()
		}
		t.svid, t.current = svid, newTransport(t.config(svid))
	}
	return t.current, t.svid, nil
}

func sameCertificate(a, b *x509svid.SVID) bool {
	return a == b || len(a.Certificates) > 0 && len(b.Certificates) > 0 && slices.Equal(a.Certificates[0].Raw, b.Certificates[0].Raw)
}

// longestRefusal is how much of a 401 is read to find its cause, in bytes.
const longestRefusal = 64 << 10

// refusesCertificate reports whether the server no longer accepts the connection's certificate. The body can be read again.
func refusesCertificate(resp *http.Response) bool {
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestRefusal))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
	var p openapi.Problem
	return err == nil && json.Unmarshal(body, &p) == nil && p.Code == openapi.CodeUnauthenticated &&
		slices.Contains([]string{"svid_expired", "svid_authority", "svid_signature"}, p.Reason)
}
