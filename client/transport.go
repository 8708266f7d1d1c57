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

// newTransport opens connections to one server with that TLS.
func newTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		TLSClientConfig:     config,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: 16,
	}
}

// rotatingTransport calls with the source's current X.509-SVID. A connection presents one certificate for as long as it lives, and HTTP/2
// keeps one connection for all calls, so each SVID has a transport of its own: calls under way end on the connection that they began on,
// and calls after a rotation open a new one.
type rotatingTransport struct {
	source x509svid.Source
	config func(x509svid.Source) *tls.Config

	mu      sync.Mutex
	svid    *x509svid.SVID
	current *http.Transport
}

// RoundTrip implements [http.RoundTripper]. It sends a call once more when the server refused the connection's certificate and the source
// has a newer one of the same identity. The server answered 401 before it acted on the request, so a retry is safe.
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
	if err != nil || newer == used || newer.ID != used.ID { // what one identity asks for is not for another to get
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

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *rotatingTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

// latest is the transport for the source's current SVID.
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

// refusesCertificate tells whether the server says that the connection's certificate proves its client no longer. The body can be read again.
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
