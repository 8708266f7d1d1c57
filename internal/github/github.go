// Package github makes and ends installation access tokens of GitHub Apps, through GitHub's REST API.
//
// It must never return a token without comparing what GitHub granted with what was asked. It must never ask for a token without
// naming repositories and permissions: GitHub reads that as all of them. It must never put a token or the App's JWT in an error,
// follow a redirect, or take a proxy from the environment.
package github

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// MaxLife is how long an installation token of GitHub lives at most.
	MaxLife = time.Hour

	// callTimeout bounds one call. GitHub itself gives up on a request after 10 s.
	callTimeout = 20 * time.Second
	// backdated is how far in the past an App JWT says that it was issued, as GitHub recommends against clocks that differ.
	backdated = time.Minute
	// jwtLife is how long an App JWT is valid from now. GitHub refuses more than 10 minutes.
	jwtLife = 9 * time.Minute
	// settling is how long GitHub may need until all of its servers know a new token. Until then some answer 401.
	settling = 5 * time.Second

	accept     = "application/vnd.github+json"
	apiVersion = "2022-11-28"
	userAgent  = "brevet"
)

// The calls that this package makes.
const (
	creating = "making a token"
	deleting = "ending a token"
)

// App is a GitHub App as the configuration names it.
type App struct {
	ClientID string
	// URL is that of the REST API: https://api.github.com, or https://HOST/api/v3 of GitHub Enterprise Server.
	URL *url.URL
}

// Grant is what a token may do.
type Grant struct {
	// Installation is the id of the App's installation.
	Installation int64
	// Repositories are full names, owner/name, all of one owner.
	Repositories []string
	// Permissions map the names of GitHub's permissions to read, write or admin.
	Permissions map[string]string
}

// Token is an installation access token.
type Token struct {
	Secret  secret.Text
	Expires time.Time
}

// Sign returns the signature (base64url, the third part of a JWS) of RS256 over a JWS signing input.
type Sign func(ctx context.Context, signingInput string) (string, error)

// Client calls GitHub. It is safe for concurrent use.
type Client struct {
	http *http.Client
	now  func() time.Time

	mu    sync.Mutex
	young map[[sha256.Size]byte]time.Time // tokens made within settling, by hash
}

// New returns a Client that calls GitHub through a transport, such as that of NewTransport.
func New(transport http.RoundTripper, now func() time.Time) *Client {
	return &Client{
		http: &http.Client{
			Transport:     transport,
			Timeout:       callTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		now:   now,
		young: map[[sha256.Size]byte]time.Time{},
	}
}

// CreateToken makes a token that may do exactly what is wanted. Its errors are a *RefusedError, *LimitedError or
// *UnreachableError if no token was made; a *LostError if one may have been made; and a *GrantError, which has the token, if
// another one was made. ErrInvalid and an error of sign mean that GitHub was not called.
func (c *Client) CreateToken(ctx context.Context, app App, sign Sign, want Grant) (Token, error) {
	names, err := want.check()
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	jwt, err := c.appJWT(ctx, app, sign)
	if err != nil {
		return Token{}, fmt.Errorf("signing the App's JWT: %w", err)
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions"`
	}{names, want.Permissions})
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	got, err := c.do(ctx, call{
		doing: creating, method: http.MethodPost, body: body, bearer: jwt,
		url: app.URL.JoinPath("app", "installations", strconv.FormatInt(want.Installation, 10), "access_tokens"),
		// GitHub answers with a description of each repository, of 5 to 8 KiB.
		most: int64(64<<10 + len(names)*(32<<10)),
	})
	if err != nil {
		return Token{}, err
	}
	if got.status != http.StatusCreated {
		return Token{}, &LostError{Status: got.status, cause: errNotUnderstood}
	}
	token, err := readToken(got.body, want, c.now())
	if token.Secret.Reveal() != "" {
		c.Remember(token.Secret, c.now())
	}
	return token, err
}

// DeleteToken ends a token. It returns nil if GitHub confirms that, or says that it does not know the token: then the token is dead
// already. Right after a token was made, not every server of GitHub knows it; a caller that gets a *LostError then has to try again. The
// client has to know when the token was made: see Remember.
// The other errors are as of CreateToken, and the token is, or may be, alive.
func (c *Client) DeleteToken(ctx context.Context, app App, token secret.Text) error {
	got, err := c.do(ctx, call{
		doing: deleting, method: http.MethodDelete, bearer: token.Reveal(),
		url: app.URL.JoinPath("installation", "token"), most: 64 << 10,
	})
	var refused *RefusedError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		if refused.Message == "" { // a gateway in front of GitHub refuses, which says nothing about the token
			return &LostError{Status: refused.Status, cause: errNotUnderstood}
		}
		if c.isYoung(token) {
			return &LostError{Status: refused.Status, Message: refused.Message, cause: errYoung}
		}
		return nil
	case err != nil:
		return err
	case got.status != http.StatusNoContent:
		return &LostError{Status: got.status, cause: errNotUnderstood}
	}
	return nil
}

// appJWT returns a JWT that proves to GitHub who the App is.
func (c *Client) appJWT(ctx context.Context, app App, sign Sign) (string, error) {
	now := c.now()
	claims, err := json.Marshal(struct {
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		Issuer   string `json:"iss"`
	}{now.Add(-backdated).Unix(), now.Add(jwtLife).Unix(), app.ClientID})
	if err != nil {
		return "", err
	}
	input := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	signature, err := sign(ctx, input)
	if err != nil {
		return "", err
	}
	if raw, err := base64.RawURLEncoding.DecodeString(signature); err != nil || len(raw) == 0 {
		return "", errors.New("the signature is not base64url")
	}
	return input + "." + signature, nil
}

// Remember tells the client when a token was made, which another client may have done. The client keeps the token's hash until all
// servers of GitHub know the token.
func (c *Client) Remember(token secret.Text, made time.Time) {
	if c.now().Sub(made) >= settling {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for sum, made := range c.young {
		if now.Sub(made) >= settling {
			delete(c.young, sum)
		}
	}
	c.young[sha256.Sum256([]byte(token.Reveal()))] = made
}

func (c *Client) isYoung(token secret.Text) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok := c.young[sha256.Sum256([]byte(token.Reveal()))]
	return ok && c.now().Sub(made) < settling
}

// call is one request to GitHub.
type call struct {
	doing  string
	method string
	url    *url.URL
	bearer string
	body   []byte
	most   int64 // bytes of the answer
}

type answer struct {
	status int
	body   []byte
}

// do makes one call, and returns an answer only if its status is 2xx and its body is complete.
func (c *Client) do(ctx context.Context, ask call) (answer, error) {
	var connected, waits atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { waits.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, ask.method, ask.url.String(), bytes.NewReader(ask.body))
	if err != nil {
		return answer{}, &UnreachableError{errors.New("the App's url is not valid")}
	}
	req.Header.Set("Authorization", "Bearer "+ask.bearer)
	req.Header.Set("Accept", accept)
	req.Header.Set("X-GitHub-Api-Version", apiVersion)
	req.Header.Set("User-Agent", userAgent)
	if ask.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if waits.Load() && !connected.Load() { // the transport had no connection to send anything on
			return answer{}, &UnreachableError{cause(err)}
		}
		return answer{}, &LostError{cause: cause(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, ask.most+1))
	switch code := resp.StatusCode; {
	case code >= 300 && code <= 499 && code != http.StatusRequestTimeout:
		// The status alone says that nothing was done, so a body that was cut off does not matter.
		return answer{}, refusal(ask.doing, resp, message(body), c.now())
	case code < 200 || code > 299:
		return answer{}, &LostError{Status: code, Message: message(body)}
	case err != nil:
		return answer{}, &LostError{Status: code, cause: cause(err)}
	case int64(len(body)) > ask.most:
		return answer{}, &LostError{Status: code, cause: errTooLarge}
	}
	return answer{resp.StatusCode, body}, nil
}

// message returns the message of an answer of GitHub, clipped, or "".
func message(body []byte) string {
	var problem struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &problem) != nil {
		return "" // the status says enough
	}
	return clip(problem.Message)
}

// refusal returns the error that a status of 3xx or 4xx means.
func refusal(doing string, resp *http.Response, said string, now time.Time) error {
	limited := resp.StatusCode == http.StatusTooManyRequests
	if resp.StatusCode == http.StatusForbidden {
		limited = resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-RateLimit-Remaining") == "0" ||
			strings.Contains(strings.ToLower(said), "secondary rate limit")
	}
	if limited {
		return &LimitedError{resp.StatusCode, said, retryAfter(resp.Header, now)}
	}
	return &RefusedError{resp.StatusCode, said, advise(doing, resp.StatusCode)}
}

// retryAfter says how long GitHub wants callers to wait. It is a minute if GitHub does not say, as its documentation advises.
func retryAfter(header http.Header, now time.Time) time.Duration {
	wait := time.Minute
	if after, err := strconv.ParseInt(header.Get("Retry-After"), 10, 32); err == nil {
		wait = time.Duration(after) * time.Second
	} else if at, err := http.ParseTime(header.Get("Retry-After")); err == nil {
		wait = at.Sub(now)
	} else if reset, err := strconv.ParseInt(header.Get("X-RateLimit-Reset"), 10, 64); err == nil && header.Get("X-RateLimit-Remaining") == "0" {
		wait = time.Unix(reset, 0).Sub(now)
	}
	return min(max(wait, time.Second), time.Hour)
}
