package attest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// newFetchClient returns a client that connects only to the configured endpoint. It follows no redirect: otherwise the
// authenticated server could choose who speaks for the domain. It uses no proxy from the environment. It does not decompress, so
// the size cap applies to the received bytes. It authenticates the server again for each fetch.
func newFetchClient(tlsConfig *tls.Config) *http.Client {
	return &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			TLSClientConfig:        tlsConfig,
			TLSHandshakeTimeout:    fetchTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func fetchBundle(ctx context.Context, client *http.Client, url string) (_ []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching bundle: the endpoint returned status %d", resp.StatusCode)
	}
	doc, err := readCapped(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("fetching bundle: %w", err)
	}
	return doc, nil
}

func (e *endpoint) tlsConfig() (*tls.Config, error) {
	if e.spec.Profile == ProfileHTTPSSPIFFE {
		initial, err := readBundleFile(e.domain, e.spec.BundleFile)
		if err != nil {
			return nil, err
		}
		e.initial = initial
		return &tls.Config{
			MinVersion: tls.VersionTLS12,
			// The server's identity is its SPIFFE ID, not a host name: verifyServer does all the checks.
			InsecureSkipVerify: true, //nolint:gosec // see above
			VerifyConnection:   e.verifyServer,
		}, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.spec.CAFile == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(e.spec.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading CA file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading CA file: no certificate in %s", e.spec.CAFile)
	}
	return cfg, nil
}

// verifyServer authenticates an https_spiffe server: its SVID must verify against the domain's own bundle and have exactly the
// configured ID.
func (e *endpoint) verifyServer(state tls.ConnectionState) error {
	if err := checkChain(state.PeerCertificates); err != nil {
		return err
	}
	id, _, err := x509svid.Verify(state.PeerCertificates, e.trusted().X509Bundle(), x509svid.WithTime(e.now()))
	if err != nil {
		return fmt.Errorf("verifying bundle endpoint: %w", err)
	}
	if id != e.spec.SPIFFEID {
		return errors.New("verifying bundle endpoint: the server has another SPIFFE ID")
	}
	return nil
}
