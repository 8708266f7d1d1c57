package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/brevet-dev/brevet/openapi"
)

// Catalogue reads the catalogue in force. The caller must be an admin or auditor of all trust domains. It returns ErrNotFound
// if there is none.
func (c *Client) Catalogue(ctx context.Context) (openapi.Catalogue, error) {
	var got openapi.Catalogue
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/catalogue", nil)
	if err != nil {
		return got, fmt.Errorf("making a call: %w", err)
	}
	return got, c.read(req, &got)
}

// CatalogueFiles reads the files of any catalogue that was proposed or applied. The caller must check that they match the
// digest.
func (c *Client) CatalogueFiles(ctx context.Context, digest string) ([]openapi.CatalogueFile, error) {
	var got openapi.CatalogueFiles
	err := c.get(ctx, "/v1/catalogue/", digest, &got)
	return got.Files, err
}

// CatalogueChanges lists the changes of the catalogue with their states, newest first.
func (c *Client) CatalogueChanges(ctx context.Context, limit int) ([]openapi.CatalogueChange, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.String()+"/v1/catalogue/history?limit="+strconv.Itoa(limit), nil)
	if err != nil {
		return nil, fmt.Errorf("making a call: %w", err)
	}
	var got openapi.CatalogueHistory
	err = c.read(req, &got)
	return got.Changes, err
}

// ApplyCatalogue replaces base, the digest of the catalogue in force. The caller must be an admin of all trust domains. The
// result says whether the new catalogue is applied or waits for another admin. It returns ErrOtherCatalogue if base is not in
// force, also if the same order is sent again after it was carried out.
func (c *Client) ApplyCatalogue(ctx context.Context, base string, order openapi.CatalogueOrder) (openapi.CatalogueChange, error) {
	return c.changeCatalogue(ctx, http.MethodPut, "/v1/catalogue", base, order)
}

// DecideCatalogue approves or rejects a catalogue that another admin proposed as the replacement of base. It returns
// ErrNotFound if the catalogue is no longer proposed.
func (c *Client) DecideCatalogue(ctx context.Context, base, digest string, decision openapi.CatalogueDecision) (openapi.CatalogueChange, error) {
	if err := segment(digest); err != nil {
		return openapi.CatalogueChange{}, err
	}
	return c.changeCatalogue(ctx, http.MethodPost, "/v1/catalogue/proposals/"+url.PathEscape(digest), base, decision)
}

func (c *Client) changeCatalogue(ctx context.Context, method, path, base string, body any) (openapi.CatalogueChange, error) {
	var change openapi.CatalogueChange
	encoded, err := json.Marshal(body)
	if err != nil {
		return change, fmt.Errorf("encoding a call: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(encoded))
	if err != nil {
		return change, fmt.Errorf("making a call: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("If-Match", strconv.Quote(base))
	got, err := c.do(req)
	if err != nil {
		return change, err
	}
	if got.status != http.StatusOK && got.status != http.StatusAccepted {
		return change, fmt.Errorf("%w: status %d", ErrAnswer, got.status)
	}
	err = got.decode(&change)
	return change, err
}
