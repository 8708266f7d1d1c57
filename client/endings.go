package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// TaskEnd holds the options of EndTask. The zero value ends one of the caller's own tasks now.
type TaskEnd struct {
	// SPIFFEID is the sandbox that the task belongs to, for orchestrators and admins.
	SPIFFEID string
	// At is when the task ends. Zero means now.
	At time.Time
	// Reason is why the task ends, in at most 1000 bytes.
	Reason string
}

// Selection says which credentials an admin revokes. A credential must match every field that is set, and at least one field
// must be set.
type Selection struct {
	ID             string
	Task           string
	SPIFFEID       string
	SPIFFEIDPrefix string
	TrustDomain    string
	Scope          string
	Catalogue      string
}

// Release ends one of the caller's own credentials. It is idempotent.
func (c *Client) Release(ctx context.Context, id string) (openapi.Receipt, error) {
	if err := segment(id); err != nil {
		return openapi.Receipt{}, err
	}
	return c.order(ctx, "/v1/issuances/"+url.PathEscape(id)+"/release", nil)
}

// EndTask ends a task and every credential that was issued for it. It is idempotent.
func (c *Client) EndTask(ctx context.Context, task string, end TaskEnd) (openapi.Receipt, error) {
	if err := segment(task); err != nil {
		return openapi.Receipt{}, err
	}
	return c.order(ctx, "/v1/tasks/"+url.PathEscape(task)+"/end",
		openapi.TaskEndRequest{SpiffeID: end.SPIFFEID, At: end.At, Reason: end.Reason})
}

// Revoke ends the selected credentials. The caller must be an admin. It returns ErrNotFound if no live credential matches.
func (c *Client) Revoke(ctx context.Context, which Selection, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/revocations", openapi.RevocationRequest{
		ID: which.ID, Task: which.Task, SpiffeID: which.SPIFFEID, SpiffeIDPrefix: which.SPIFFEIDPrefix,
		TrustDomain: which.TrustDomain, Scope: which.Scope, Catalogue: which.Catalogue, Reason: reason,
	})
}

// Quarantine stops issuing to a sandbox and every SPIFFE ID below it, or to a whole trust domain ("spiffe://" and its name). It
// also ends the credentials that they hold. The caller must be an admin.
func (c *Client) Quarantine(ctx context.Context, spiffeID, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/quarantines", openapi.QuarantineRequest{SpiffeID: spiffeID, Reason: reason})
}

// Unquarantine lifts the quarantine of exactly this name. It returns ErrNotFound if there is none.
func (c *Client) Unquarantine(ctx context.Context, spiffeID, reason string) error {
	query := url.Values{"spiffe_id": {spiffeID}}
	if reason != "" {
		query.Set("reason", reason)
	}
	target := c.base.JoinPath("/v1/quarantines")
	target.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, target.String(), nil)
	if err != nil {
		return fmt.Errorf("making a call: %w", err)
	}
	got, err := c.do(req)
	if err != nil {
		return err
	}
	if got.status != http.StatusNoContent {
		return fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
	return nil
}

// Quarantines lists the quarantines in force. The caller must be an admin or auditor.
func (c *Client) Quarantines(ctx context.Context) ([]openapi.Quarantine, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("/v1/quarantines").String(), nil)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	var list openapi.QuarantineList
	err = c.read(req, &list)
	return list.Quarantines, err
}

// order sends an order whose response is a receipt. Every order can be repeated: it ends what is left.
func (c *Client) order(ctx context.Context, path string, body any) (openapi.Receipt, error) {
	var receipt openapi.Receipt
	req, err := c.post(ctx, path, body)
	if err != nil {
		return receipt, err
	}
	got, err := c.do(req)
	if err != nil {
		return receipt, err
	}
	if got.status != http.StatusOK && got.status != http.StatusAccepted {
		return receipt, fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
	err = got.decode(&receipt)
	return receipt, err
}

// post makes a POST request with a JSON body, or with an empty one if body is nil.
func (c *Client) post(ctx context.Context, path string, body any) (*http.Request, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding a call: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.String()+path, content)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// segment returns an error unless name can be one segment of a path.
func segment(name string) error {
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("%w: an id or a name is required", ErrInvalid)
	}
	return nil
}
