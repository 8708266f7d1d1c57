package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
)

// Endpoint says where a gateway listens for a caller with a password.
type Endpoint struct {
	Address  string // host:port
	Password secret.Text
	// CA is the path of the file with the certificate of the gateway's authority.
	CA string
	// Databases is the directory of the PostgreSQL socket, .s.PGSQL.5432.
	Databases string
}

// Proxy returns the endpoint as a proxy URL, with the password in it.
func (d Endpoint) Proxy() secret.Text {
	u := url.URL{Scheme: "http", User: url.UserPassword("brevet", d.Password.Reveal()), Host: d.Address}
	return secret.New(u.String())
}

// The errors of Check.
var (
	ErrNoGateway    = errors.New("no gateway responds")
	ErrOtherGateway = errors.New("another server responds")
)

const (
	// answerWithin bounds the check of an endpoint, whose gateway runs on the same machine.
	answerWithin = 10 * time.Second
	// maxAnswer is how much of the response Check reads, in bytes.
	maxAnswer = 16 << 10
)

// Check returns nil if the gateway of this endpoint responds. It sends a call that names no host: only a gateway that accepts
// this password refuses that call with egress_no_rule. It returns ErrNoGateway if nothing responds and ErrOtherGateway if
// something else does. It never quotes the response of another server.
func (d Endpoint) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Address+"/", nil)
	if err != nil {
		return errors.New("the address of the gateway is invalid") // err would quote the address
	}
	req.SetBasicAuth("brevet", d.Password.Reveal())
	resp, err := (&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer}).RoundTrip(req) // uses no proxy, and follows no redirect
	var dialing *net.OpError
	switch {
	case errors.As(err, &dialing) && dialing.Op == "dial":
		return fmt.Errorf("%w: %w", ErrNoGateway, dialing.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w within %s", ErrNoGateway, answerWithin)
	case err != nil:
		return ErrOtherGateway
	}
	defer func() { _ = resp.Body.Close() }()
	var told problem
	if json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&told) != nil || told.Code != codeNoRule {
		return ErrOtherGateway
	}
	return nil
}

// Environ returns environment variables that send programs through the gateway and make them trust its authority. They work for
// curl, git, Go, Node from 22.21 and 24 on, npm, pip, psql, Python and other programs that read these variables. For programs
// without proxy support there is a base URL, and the password for it.
func (d Endpoint) Environ() []string {
	var all []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "npm_config_proxy", "npm_config_https_proxy"} {
		all = append(all, name+"="+d.Proxy().Reveal())
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile", "REQUESTS_CA_BUNDLE", "PIP_CERT", "AWS_CA_BUNDLE",
	} {
		all = append(all, name+"="+d.CA)
	}
	return append(
		all,
		"NODE_USE_ENV_PROXY=1",            // Node from 22.21 and 24.5 on obeys the variables; 24.0 to 24.4 only in fetch
		"GIT_HTTP_PROXY_AUTHMETHOD=basic", // git sends the password without waiting for a challenge
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
		"PGHOST="+d.Databases, "PGPORT=5432",
		"BREVET_EGRESS_URL=http://"+d.Address, "BREVET_EGRESS_PASSWORD="+d.Password.Reveal(),
	)
}
