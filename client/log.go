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

// Checkpoint reads the last signed checkpoint of the log, as an auditor: a note (c2sp.org/tlog-checkpoint).
func (c *Client) Checkpoint(ctx context.Context) (string, error) {
	return c.text(ctx, "/v1/ledger/checkpoint")
}

// CosignedCheckpoint reads the last checkpoint that so many witnesses have cosigned, with their cosignatures.
func (c *Client) CosignedCheckpoint(ctx context.Context, witnesses int) (string, error) {
	return c.text(ctx, "/v1/ledger/checkpoint?witnesses="+strconv.Itoa(witnesses))
}

// LogKeys reads the public keys of the log, oldest first, as an auditor (c2sp.org/signed-note). Nothing proves that they
// are those of the log: compare them with what somebody else has.
func (c *Client) LogKeys(ctx context.Context) ([]string, error) {
	keys, err := c.text(ctx, "/v1/ledger/keys")
	return strings.Fields(keys), err
}

// LogReceipt reads the proof that an issuance is in the log, as an auditor.
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

// Entries reads one page of the log's entries, as an auditor of all trust domains: from an index on, up to limit, 1000 at
// most. Its Next is where the following one begins; at the end of the log a page is empty.
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

// TaskReceipt reads the proof of all that was asked and issued for a task, as an auditor.
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
