package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/brevet-dev/brevet/openapi"
)

// PersonSource gives the ID token of the person who calls. It is asked for each call, by several goroutines, and renews
// the token when it has to.
type PersonSource interface {
	IDToken(ctx context.Context) (string, error)
}

// AsPerson returns a client of the same server, over the same connections, whose calls prove a person with an ID token
// from source. The server is known as it was to c, which must prove no workload: a call has one caller.
func (c *Client) AsPerson(source PersonSource) (*Client, error) {
	switch {
	case source == nil:
		return nil, errors.New("client: a person needs a source of ID tokens")
	case c.jwt != nil || c.rotating != nil:
		return nil, errors.New("client: it proves a workload, and cannot prove a person too")
	}
	person, carrier := *c, *c.http
	carrier.Transport = personTransport{source: source, next: c.http.Transport}
	person.http = &carrier
	return &person, nil
}

// personTransport adds the token to each call. Calls go to the client's server only, since no redirect is followed.
type personTransport struct {
	source PersonSource
	next   http.RoundTripper
}

// RoundTrip sends a copy of the call, since the caller's own is not ours to change.
func (t personTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.source.IDToken(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a transport closes it, whatever happens
		}
		return nil, fmt.Errorf("fetching an ID token: %w", err)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	if t.next == nil {
		return http.DefaultTransport.RoundTrip(req) //nolint:forbidigo // as the given client would
	}
	return t.next.RoundTrip(req)
}

// CloseIdleConnections lets Close reach what is below.
func (t personTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WhoAmI returns who the server takes the caller for, workload or person, and which roles that gives.
func (c *Client) WhoAmI(ctx context.Context) (openapi.Caller, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/whoami", nil)
	if err != nil {
		return openapi.Caller{}, fmt.Errorf("making a call: %w", err)
	}
	var out openapi.Caller
	return out, c.read(req, &out)
}
