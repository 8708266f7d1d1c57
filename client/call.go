package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
)

// maxAnswer is the largest response that the client reads, in bytes. A page of 500 records fits.
const maxAnswer = 16 << 20

// call is one call of the API.
type call struct {
	method string // empty means GET
	path   string // "%s" in it stands for name
	name   string // an ID, or the name of a task; it is escaped, so it can't change the path
	query  url.Values
	body   any    // sent as JSON; nil for none
	match  string // If-Match; empty for none
	order  bool   // the server may carry it out later (202)
}

// request makes the request of a call.
func (c *Client) request(ctx context.Context, what call) (*http.Request, error) {
	path := what.path
	if before, after, named := strings.Cut(path, "%s"); named {
		if what.name == "" || what.name == "." || what.name == ".." {
			return nil, fmt.Errorf("%w: an id or a name is required", ErrInvalid)
		}
		path = before + url.PathEscape(what.name) + after
	}
	if len(what.query) > 0 {
		path += "?" + what.query.Encode()
	}
	var content io.Reader = http.NoBody
	if what.body != nil {
		encoded, err := json.Marshal(what.body)
		if err != nil {
			return nil, fmt.Errorf("encoding a call: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(what.method, http.MethodGet), c.base.String()+path, content)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	if what.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if what.match != "" {
		req.Header.Set("If-Match", what.match)
	}
	return req, nil
}

// reply is a successful response.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) decode(v any) error {
	if mediaType(r.header) != "application/json" {
		return fmt.Errorf("%w: its media type is not JSON", ErrAnswer)
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		// The decoder's error can quote the body, and the body can hold a credential.
		return fmt.Errorf("%w: it is not the JSON of this API", ErrAnswer)
	}
	return nil
}

// fetch makes a call and decodes the object in its response.
func fetch[T any](ctx context.Context, c *Client, what call) (T, error) {
	var object T
	req, err := c.request(ctx, what)
	if err != nil {
		return object, err
	}
	got, err := c.do(req)
	if err != nil {
		return object, err
	}
	if got.status != http.StatusOK && (got.status != http.StatusAccepted || !what.order) {
		return object, fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
	err = got.decode(&object)
	return object, err
}

// do sends one call as the caller. It returns a response with status 400 or above as a *Problem.
func (c *Client) do(req *http.Request) (reply, error) {
	req.Header.Set("Accept", "application/json, application/problem+json")
	resp, err := c.send(c.http, req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if nonce := resp.Header.Get(dpop.NonceHeader); nonce != "" {
		c.nonce.Store(&nonce)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return reply{}, fmt.Errorf("reading the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return reply{}, fmt.Errorf("%w: it is larger than %d bytes", ErrAnswer, maxAnswer)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return reply{}, problemOf(resp, body)
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: body}, nil
}

// prove is do with a DPoP proof. If the server asks for another nonce, it has not decided the request yet, and prove sends the
// request once more.
func (c *Client) prove(req *http.Request, signer *dpop.Signer) (reply, error) {
	if signer == nil {
		return c.do(req)
	}
	got, err := c.proveOnce(req, signer)
	p, ok := errors.AsType[*Problem](err)
	if !ok || p.Code != openapi.CodeUseDPoPNonce || req.GetBody == nil {
		return got, err
	}
	again := req.Clone(req.Context())
	if again.Body, err = req.GetBody(); err != nil {
		return reply{}, fmt.Errorf("making a call: %w", err)
	}
	return c.proveOnce(again, signer)
}

func (c *Client) proveOnce(req *http.Request, signer *dpop.Signer) (reply, error) {
	ask := dpop.Request{Method: req.Method, URL: req.URL.String()}
	if nonce := c.nonce.Load(); nonce != nil {
		ask.Nonce = *nonce
	}
	proof, err := signer.Proof(ask)
	if err != nil {
		return reply{}, fmt.Errorf("proving a key: %w", err)
	}
	req.Header.Set(dpop.Header, proof)
	return c.do(req)
}

// send sends one call as the caller, with carrier as its HTTP client.
func (c *Client) send(carrier *http.Client, req *http.Request) (*http.Response, error) {
	if c.jwt != nil {
		svid, err := c.jwt.FetchJWTSVID(req.Context(), jwtsvid.Params{Audience: c.audience, Subject: c.subject})
		if err != nil {
			return nil, fmt.Errorf("fetching a JWT-SVID: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+svid.Marshal())
	}
	resp, err := carrier.Do(req)
	if err != nil {
		return nil, fmt.Errorf("calling the server: %w", err)
	}
	return resp, nil
}

// problemOf returns the *Problem in a failure response. If the response is not a Brevet problem document, it returns ErrAnswer
// with the status only, since any proxy on the way may have sent it.
func problemOf(resp *http.Response, body []byte) error {
	p := &Problem{RequestID: resp.Header.Get("Request-Id"), RetryAfter: retryAfter(resp.Header)}
	if mediaType(resp.Header) != "application/problem+json" || json.Unmarshal(body, &p.Problem) != nil ||
		sentinels[p.Code] == nil || p.Type != p.Code.Type() || p.Status != resp.StatusCode {
		return fmt.Errorf("%w: status %d", ErrAnswer, resp.StatusCode)
	}
	return p
}

func mediaType(h http.Header) string {
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return mediaType
}

func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
