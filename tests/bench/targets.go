package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// target creates n callers of something that is measured. Each is a client with a separate connection.
type target func(n int) ([]call, error)

// targets are the things that are compared. The first ones are Brevet's, the others are the alternatives without it.
func (d *deployment) targets() map[string]target {
	return map[string]target{
		"issue": func(n int) ([]call, error) { return d.sandboxes(n, d.url) },
		"issue-eddsa": func(n int) ([]call, error) {
			return callers(n, func(i int) (call, error) { return d.sandbox(i, d.url, readEdDSA) })
		},
		"issue-jwt":    func(n int) ([]call, error) { return d.bearers(n, read) },
		"dynamic":      func(n int) ([]call, error) { return d.readers(n, "bench.database") },
		"dynamic-long": func(n int) ([]call, error) { return d.readers(n, "bench.database.long") },
		"login":        d.logins,
		"sign":         d.signers,
		"creds":        d.creds,
	}
}

// read is the request body that most measurements use.
var read = map[string]any{"scope": "bench.read", "params": map[string]any{"repo": "acme/api"}, "task": "bench"}

// readEdDSA is read for a scope whose tokens EdDSA signs in place of ES256.
var readEdDSA = map[string]any{"scope": "bench.read.eddsa", "params": read["params"], "task": "bench"}

func agent(i int) spiffeid.ID {
	return spiffeid.RequireFromString(fmt.Sprintf("spiffe://%s/agents/agent-%d", domain, i))
}

// sandboxes request a signed token. They are spread over the given brokers.
func (d *deployment) sandboxes(n int, of ...string) ([]call, error) {
	return callers(n, func(i int) (call, error) { return d.sandbox(i, of[i%len(of)], read) })
}

// readers request database logins.
func (d *deployment) readers(n int, scope string) ([]call, error) {
	body := map[string]any{"scope": scope, "task": "bench"}
	return callers(n, func(i int) (call, error) { return d.sandbox(i, d.url, body) })
}

// sandbox calls a broker over mutual TLS.
func (d *deployment) sandbox(i int, of string, body any) (call, error) {
	trust, err := d.proved(agent(i))
	if err != nil {
		return nil, err
	}
	return post(trust, of+"/v1/tokens", http.Header{}, body, http.StatusCreated)
}

// bearers call the broker with a JWT-SVID in each request.
func (d *deployment) bearers(n int, body any) ([]call, error) {
	return callers(n, func(i int) (call, error) {
		return d.refreshed(i, "https://"+domain, func(token string) (call, error) {
			return post(d.anonymous(), d.url+"/v1/tokens", http.Header{"Authorization": {"Bearer " + token}}, body, http.StatusCreated)
		})
	})
}

// logins log in with Vault's own JWT method, with JWT-SVIDs of the same issuer. They get a Vault token.
func (d *deployment) logins(n int) ([]call, error) {
	return callers(n, func(i int) (call, error) {
		return d.refreshed(i, "vault", func(token string) (call, error) {
			return post(nil, d.servers.Vault.Addr()+"/v1/auth/jwt/login", http.Header{}, map[string]any{"role": "bench", "jwt": token}, http.StatusOK)
		})
	})
}

// refreshed returns a caller that gets a new JWT-SVID each minute, like a client of the Workload API.
func (d *deployment) refreshed(i int, audience string, with func(token string) (call, error)) (call, error) {
	var ask call
	var until time.Time
	return func(ctx context.Context) error {
		if now := time.Now(); now.After(until) {
			token, err := d.issuer.JWTSVID(agent(i), audience)
			if err != nil {
				return err
			}
			if ask, err = with(token); err != nil {
				return err
			}
			until = now.Add(time.Minute)
		}
		return ask(ctx)
	}, nil
}

// signers make Transit sign input of the length of a Brevet token.
func (d *deployment) signers(n int) ([]call, error) {
	input := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 900)))
	body := map[string]any{"input": input, "marshaling_algorithm": "jws"}
	return callers(n, func(int) (call, error) {
		return post(nil, d.servers.Vault.Addr()+"/v1/transit/sign/brevet", d.root(), body, http.StatusOK)
	})
}

// creds request database logins directly from Vault, which are neither wrapped nor recorded.
func (d *deployment) creds(n int) ([]call, error) {
	return callers(n, func(int) (call, error) {
		return request(nil, http.MethodGet, d.servers.Vault.Addr()+"/v1/database/creds/reporting", d.root(), nil, http.StatusOK), nil
	})
}

func (d *deployment) root() http.Header {
	return http.Header{"X-Vault-Token": {d.servers.Vault.RootToken()}}
}

func callers(n int, one func(i int) (call, error)) ([]call, error) {
	all := make([]call, n)
	for i := range all {
		var err error
		if all[i], err = one(i); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func post(trust *tls.Config, url string, header http.Header, body any, want int) (call, error) {
	text, err := json.Marshal(body)
	return request(trust, http.MethodPost, url, header, text, want), err
}

// request sends the same request on each call and expects one status.
func request(trust *tls.Config, method, url string, header http.Header, body []byte, want int) call {
	ask := asking(trust, method, url, header)
	return func(ctx context.Context) error {
		got, err := ask(ctx, body)
		if err == nil && got.status != want {
			err = fmt.Errorf("%s %s: status %d: %.300s", method, url, got.status, got.body)
		}
		return err
	}
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// asking returns a client with one persistent connection. Its bodies are JSON unless the header says otherwise. The caller
// may change the header between two calls.
func asking(trust *tls.Config, method, url string, header http.Header) func(context.Context, []byte) (answer, error) {
	if header.Get("Content-Type") == "" && method == http.MethodPost {
		header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{TLSClientConfig: trust, MaxConnsPerHost: 1}}
	return func(ctx context.Context, body []byte) (answer, error) {
		req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
		if err != nil {
			return answer{}, err
		}
		req.Header = header
		resp, err := client.Do(req)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = resp.Body.Close() }()
		got := answer{status: resp.StatusCode, header: resp.Header}
		got.body, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return got, err
	}
}

// endLogins ends the database logins that were requested, Brevet's through Brevet. Otherwise they would expire, and Brevet
// would find that out, while the next target is measured. Its time is not counted. Tokens of the login target are not ended:
// they outlive the run.
func (d *deployment) endLogins(ctx context.Context) error {
	officer, err := d.proved(spiffeid.RequireFromString("spiffe://" + domain + "/ops/admin"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	revoke := asking(officer, http.MethodPost, d.url+"/v1/revocations", http.Header{})
	for _, scope := range []string{"bench.database", "bench.database.long"} {
		for { // until none is left
			got, err := revoke(ctx, fmt.Appendf(nil, `{"scope": %q, "reason": "measured"}`, scope))
			if err != nil {
				return err
			}
			if got.status == http.StatusNotFound {
				break
			}
			if got.status >= http.StatusBadRequest {
				return fmt.Errorf("ending what %s gave: status %d: %.300s", scope, got.status, got.body)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	end, err := post(nil, d.servers.Vault.Addr()+"/v1/sys/leases/revoke-prefix/database/creds/reporting", d.root(), map[string]any{"sync": true}, http.StatusNoContent)
	if err != nil {
		return err
	}
	return end(ctx)
}

// prepareVault configures the login method of Vault that one would use without Brevet.
func (d *deployment) prepareVault(ctx context.Context) error {
	set := d.issuer.Bundle().JWTBundle()
	var keys []string
	for _, public := range set.JWTAuthorities() {
		text, err := pemOf(public)
		if err != nil {
			return err
		}
		keys = append(keys, text)
	}
	for _, step := range []struct {
		path string
		body map[string]any
	}{
		{"sys/auth/jwt", map[string]any{"type": "jwt"}},
		{"auth/jwt/config", map[string]any{"jwt_validation_pubkeys": keys}},
		{"auth/jwt/role/bench", map[string]any{
			"role_type": "jwt", "user_claim": "sub", "bound_audiences": []string{"vault"}, "token_ttl": "1h", "token_policies": []string{"default"},
		}},
	} {
		do, err := post(nil, d.servers.Vault.Addr()+"/v1/"+step.path, d.root(), step.body, http.StatusNoContent)
		if err != nil {
			return err
		}
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}
