package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/brevet-dev/brevet/openapi"
)

// PersonSource returns the ID token of the calling person, and renews it when necessary. The client calls it for each call to
// the server, from several goroutines.
type PersonSource interface {
	IDToken(ctx context.Context) (string, error)
}

// AsPerson returns a client that authenticates a person with an ID token from source. It uses the server and the connections of
// c, and authenticates the server as c does. c must not authenticate a workload, because a call has one caller.
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

// personTransport adds the ID token to each call. Calls go only to the client's server, since no redirect is followed.
type personTransport struct {
	source PersonSource
	next   http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. It sends a copy of the request, since a RoundTripper must not change the caller's.
func (t personTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.source.IDToken(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close the body, also on errors
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

// CloseIdleConnections lets Close reach the transport below.
func (t personTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WhoAmI returns the identity of the caller, workload or person, as the server sees it, and its roles.
func (c *Client) WhoAmI(ctx context.Context) (openapi.Caller, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/whoami", nil)
	if err != nil {
		return openapi.Caller{}, fmt.Errorf("making a call: %w", err)
	}
	var out openapi.Caller
	return out, c.read(req, &out)
}
