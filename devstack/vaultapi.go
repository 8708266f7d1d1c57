package devstack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// vaultHTTP knows no proxy and follows nothing. Vault's own client would read VAULT_ADDR, VAULT_TOKEN and a dozen
// more from the environment, and here it must be this Vault and no other.
var vaultHTTP = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	Timeout:       20 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// call makes one request to Vault's API under /v1/; in and out may be nil.
func (v *Vault) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, v.Addr()+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if v.keys.RootToken != "" {
		req.Header.Set("X-Vault-Token", v.keys.RootToken)
	}
	resp, err := vaultHTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("reading Vault's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
