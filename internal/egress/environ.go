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

// Endpoint is where a gateway listens with a password.
type Endpoint struct {
	Address  string // host:port
	Password secret.Text
	// CA is the file with the certificate of the gateway's authority.
	CA string
	// Databases is the folder with the socket for PostgreSQL, .s.PGSQL.5432.
	Databases string
}

// Proxy is the endpoint as the URL that programs take for a proxy.
func (d Endpoint) Proxy() secret.Text {
	u := url.URL{Scheme: "http", User: url.UserPassword("brevet", d.Password.Reveal()), Host: d.Address}
	return secret.New(u.String())
}

// Why an endpoint does not lead to its gateway.
var (
	ErrNoGateway    = errors.New("no gateway answers")
	ErrOtherGateway = errors.New("something else answers")
)

const (
	// answerWithin bounds the check of an endpoint: its gateway is on this machine.
	answerWithin = 10 * time.Second
	// maxAnswer is how much of its answer is read, in bytes.
	maxAnswer = 16 << 10
)

// Check tells whether the gateway of this endpoint answers: it asks for a call to no host, which only the gateway that takes this
// password refuses for that reason. It quotes nothing of what another server answers.
func (d Endpoint) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Address+"/", nil)
	if err != nil {
		return errors.New("the address of the gateway is none") // err would quote it
	}
	req.SetBasicAuth("brevet", d.Password.Reveal())
	resp, err := (&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer}).RoundTrip(req) // by no proxy, following nothing
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

// Environ leads curl, git, Go, Node from 22.21 and 24 on, npm, pip, psql, Python, and whatever else goes by such variables, through the gateway, and has
// them trust its authority. Programs that cannot be told of a proxy find a base URL and the password for it.
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
		"NODE_USE_ENV_PROXY=1",            // Node from 22.21 and 24.5 on goes by the variables; 24.0 to 24.4 only in fetch
		"GIT_HTTP_PROXY_AUTHMETHOD=basic", // git sends the password without being asked for it
		"NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1",
		"PGHOST="+d.Databases, "PGPORT=5432",
		"BREVET_EGRESS_URL=http://"+d.Address, "BREVET_EGRESS_PASSWORD="+d.Password.Reveal(),
	)
}
