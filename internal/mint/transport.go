package mint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

const (
	// longestAnswer bounds how much of an answer is read. A key with a thousand versions fits.
	longestAnswer = 1 << 20
	// longestRefusal bounds how much of an error answer is read.
	longestRefusal = 8 << 10
	maxMessages    = 3
)

// guard lets an answer through only if it is a 200 of bounded size, or a 204 from one of the silent paths. The Vault client
// treats a 3xx with a body, and a 404 with data, as a success.
type guard struct {
	next http.RoundTripper
}

// silent matches the only paths where Vault answers a success without content.
var silent = regexp.MustCompile(`/v1/(?:sys/leases/revoke|auth/token/revoke-accessor|` + scopes.GitHubTokens + `/[0-9a-f-]+)$`)

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	// If a connection ends before the answer to a GET, Go's transport may send the GET again. In Vault, a GET can create a
	// database login, and a second GET a second one. So give a request without a body an empty one: the transport does not repeat
	// a request whose body it has begun to send.
	if req.Body == nil || req.Body == http.NoBody {
		once := *req
		once.Body, once.GetBody = io.NopCloser(strings.NewReader("")), nil
		req = &once
	}
	resp, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNoContent && silent.MatchString(req.URL.Path) {
		return resp, nil
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		refusal := &answerError{status: resp.StatusCode}
		var answer api.ErrorResponse
		// An answer that is not JSON still has a status, which says enough.
		if json.NewDecoder(io.LimitReader(resp.Body, longestRefusal)).Decode(&answer) == nil {
			refusal.listed = answer.Errors != nil
			for _, message := range answer.Errors[:min(len(answer.Errors), maxMessages)] {
				refusal.messages = append(refusal.messages, clip(message))
			}
		}
		return nil, refusal
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: longestAnswer}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	if b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func newTransport(cfg Config) (*quiet.Transport, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%w: reading the CA of Vault: %w", ErrConfig, err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: no certificate in the CA file of Vault", ErrConfig)
		}
	}
	return quiet.New(&http.Transport{
		// No Proxy: the environment must not put a proxy between Brevet and Vault.
		DialContext:            (&net.Dialer{Timeout: cfg.Timeout}).DialContext,
		TLSClientConfig:        trust,
		TLSHandshakeTimeout:    cfg.Timeout,
		ResponseHeaderTimeout:  cfg.Timeout,
		MaxResponseHeaderBytes: 32 << 10,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConns:           128,
		MaxIdleConnsPerHost:    128,
		DisableCompression:     true, // otherwise a small answer could expand to a large one
		ForceAttemptHTTP2:      true,
		// Without pings, the transport would keep using a dead HTTP/2 connection, and each call would time out.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: cfg.Timeout},
	}), nil
}

// newClient makes a Vault client that takes nothing from the environment and holds no token yet. Do not use the client's Clone
// and WithNamespace methods: they read the environment again.
func newClient(cfg Config, transport http.RoundTripper) (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address: cfg.Addr,
		HttpClient: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		Timeout:          cfg.Timeout,
		MaxRetries:       0,
		CheckRetry:       func(_ context.Context, _ *http.Response, err error) (bool, error) { return false, err },
		DisableRedirects: true,
	})
	if err != nil {
		// The environment can still have one effect: a malformed VAULT_* variable makes NewClient fail. The error may repeat the
		// variable's value, so it is not passed on.
		return nil, fmt.Errorf("%w: the Vault client refuses to start: is a VAULT_* variable malformed?", ErrConfig)
	}
	client.ClearToken()
	client.SetWrappingLookupFunc(func(string, string) string { return "" })
	headers := http.Header{api.RequestHeaderName: {"true"}}
	if cfg.Namespace != "" {
		headers.Set(api.NamespaceHeaderName, cfg.Namespace)
	}
	client.SetHeaders(headers)
	return client, nil
}
