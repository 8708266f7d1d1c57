package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/openapi"
)

// Checkpoint reads the latest signed checkpoint of the log, as a note (c2sp.org/tlog-checkpoint). The caller must be an
// auditor.
func (c *Client) Checkpoint(ctx context.Context) (string, error) {
	return c.text(ctx, "/v1/ledger/checkpoint")
}

// CosignedCheckpoint reads the latest checkpoint that at least this number of witnesses has cosigned, with the cosignatures.
func (c *Client) CosignedCheckpoint(ctx context.Context, witnesses int) (string, error) {
	return c.text(ctx, "/v1/ledger/checkpoint?witnesses="+strconv.Itoa(witnesses))
}

// LogKeys reads the public keys of the log, oldest first (c2sp.org/signed-note). The caller must be an auditor. Nothing proves
// that the keys are those of the log: compare them with another party's copy.
func (c *Client) LogKeys(ctx context.Context) ([]string, error) {
	keys, err := c.text(ctx, "/v1/ledger/keys")
	return strings.Fields(keys), err
}

// LogReceipt reads the proof that an issuance is in the log. The caller must be an auditor.
func (c *Client) LogReceipt(ctx context.Context, id string) (openapi.LogReceipt, error) {
	var receipt openapi.LogReceipt
	if err := segment(id); err != nil {
		return receipt, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/issuances/"+url.PathEscape(id)+"/receipt", nil)
	if err != nil {
		return receipt, fmt.Errorf("making a call: %w", err)
	}
	err = c.read(req, &receipt)
	return receipt, err
}

// Entries reads one page of the log's entries: at most limit entries, 1000 at most, starting at index from. Next of the page is
// the index at which the following page starts. At the end of the log a page is empty. The caller must be an auditor of all
// trust domains.
func (c *Client) Entries(ctx context.Context, from int64, limit int) (openapi.EntryPage, error) {
	var page openapi.EntryPage
	target := c.base.JoinPath("/v1/ledger/entries")
	target.RawQuery = url.Values{"from": {strconv.FormatInt(from, 10)}, "limit": {strconv.Itoa(limit)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return page, fmt.Errorf("making a call: %w", err)
	}
	err = c.read(req, &page)
	return page, err
}

// TaskReceipt reads the proof of everything that was requested and issued for a task. The caller must be an auditor.
func (c *Client) TaskReceipt(ctx context.Context, spiffeID, task string) (openapi.LogReceipt, error) {
	var receipt openapi.LogReceipt
	if err := segment(task); err != nil {
		return receipt, err
	}
	target := c.base.JoinPath("/v1/tasks", task, "receipt")
	target.RawQuery = url.Values{"spiffe_id": {spiffeID}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return receipt, fmt.Errorf("making a call: %w", err)
	}
	err = c.read(req, &receipt)
	return receipt, err
}

func (c *Client) text(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+path, nil)
	if err != nil {
		return "", fmt.Errorf("making a call: %w", err)
	}
	got, err := c.do(req)
	if err != nil {
		return "", err
	}
	if got.status != http.StatusOK || mediaType(got.header) != "text/plain" {
		return "", fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
	return string(got.body), nil
}
