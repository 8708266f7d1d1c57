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

// TaskEnd says more about the end of a task. The zero value ends a task of the caller's own, now.
type TaskEnd struct {
	// SPIFFEID is the sandbox whose task it is, for orchestrators and admins.
	SPIFFEID string
	// At is when the task ends.
	At time.Time
	// Reason is why, in at most 1000 bytes.
	Reason string
}

// Selection says which credentials an admin revokes. All the set fields have to match, and at least one is needed.
type Selection struct {
	ID             string
	Task           string
	SPIFFEID       string
	SPIFFEIDPrefix string
	TrustDomain    string
	Scope          string
	Catalogue      string
}

// Release ends a credential of the caller's own. It may be called again.
func (c *Client) Release(ctx context.Context, id string) (openapi.Receipt, error) {
	if err := segment(id); err != nil {
		return openapi.Receipt{}, err
	}
	return c.order(ctx, "/v1/issuances/"+url.PathEscape(id)+"/release", nil)
}

// EndTask ends a task and all that was issued for it. It may be called again.
func (c *Client) EndTask(ctx context.Context, task string, end TaskEnd) (openapi.Receipt, error) {
	if err := segment(task); err != nil {
		return openapi.Receipt{}, err
	}
	return c.order(ctx, "/v1/tasks/"+url.PathEscape(task)+"/end",
		openapi.TaskEndRequest{SpiffeID: end.SPIFFEID, At: end.At, Reason: end.Reason})
}

// Revoke ends what is selected, as an admin. ErrNotFound when nothing alive is.
func (c *Client) Revoke(ctx context.Context, which Selection, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/revocations", openapi.RevocationRequest{
		ID: which.ID, Task: which.Task, SpiffeID: which.SPIFFEID, SpiffeIDPrefix: which.SPIFFEIDPrefix,
		TrustDomain: which.TrustDomain, Scope: which.Scope, Catalogue: which.Catalogue, Reason: reason,
	})
}

// Quarantine stops issuing to a sandbox and everything below it, or to all of "spiffe://" and a trust domain, and ends
// what they hold, as an admin.
func (c *Client) Quarantine(ctx context.Context, spiffeID, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/quarantines", openapi.QuarantineRequest{SpiffeID: spiffeID, Reason: reason})
}

// Unquarantine lifts a quarantine of exactly that name. ErrNotFound when there is none.
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

// Quarantines lists those that stand, as an admin or auditor.
func (c *Client) Quarantines(ctx context.Context) ([]openapi.Quarantine, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("/v1/quarantines").String(), nil)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	var list openapi.QuarantineList
	err = c.read(req, &list)
	return list.Quarantines, err
}

// order sends what is answered with a receipt. Every order may be sent again: it ends what is left.
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

// post makes a call with a body in JSON, or with none when body is nil.
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

// segment refuses what would not be one segment of a path.
func segment(name string) error {
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("%w: an id or a name is required", ErrInvalid)
	}
	return nil
}
