package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/brevet-dev/brevet/openapi"
)

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

// Revoke ends the selected credentials. The caller must be an admin. It returns ErrNotFound if no live credential matches.
func (c *Client) Revoke(ctx context.Context, which Selection, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/revocations", "", openapi.RevocationRequest{
		ID: which.ID, Task: which.Task, SpiffeID: which.SPIFFEID, SpiffeIDPrefix: which.SPIFFEIDPrefix,
		TrustDomain: which.TrustDomain, Scope: which.Scope, Catalogue: which.Catalogue, Reason: reason,
	})
}

// Quarantine stops issuing to a sandbox and every SPIFFE ID below it, or to a whole trust domain ("spiffe://" and its name). It
// also ends the credentials that they hold. The caller must be an admin.
func (c *Client) Quarantine(ctx context.Context, spiffeID, reason string) (openapi.Receipt, error) {
	return c.order(ctx, "/v1/quarantines", "", openapi.QuarantineRequest{SpiffeID: spiffeID, Reason: reason})
}

// Unquarantine lifts the quarantine of exactly this name. It returns ErrNotFound if there is none.
func (c *Client) Unquarantine(ctx context.Context, spiffeID, reason string) error {
	query := url.Values{"spiffe_id": {spiffeID}}
	if reason != "" {
		query.Set("reason", reason)
	}
	req, err := c.request(ctx, call{method: http.MethodDelete, path: "/v1/quarantines", query: query})
	if err != nil {
		return err
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
	list, err := fetch[openapi.QuarantineList](ctx, c, call{path: "/v1/quarantines"})
	return list.Quarantines, err
}

// order sends an order whose response is a receipt. Every order can be repeated: it ends what is left.
func (c *Client) order(ctx context.Context, path, name string, body any) (openapi.Receipt, error) {
	return fetch[openapi.Receipt](ctx, c, call{method: http.MethodPost, path: path, name: name, body: body, order: true})
}

// Catalogue reads the catalogue in force. The caller must be an admin or auditor of all trust domains. It returns ErrNotFound
// if there is none.
func (c *Client) Catalogue(ctx context.Context) (openapi.Catalogue, error) {
	return fetch[openapi.Catalogue](ctx, c, call{path: "/v1/catalogue"})
}

// CatalogueFiles reads the files of any catalogue that was proposed or applied. The caller must check that they match the
// digest.
func (c *Client) CatalogueFiles(ctx context.Context, digest string) ([]openapi.CatalogueFile, error) {
	got, err := fetch[openapi.CatalogueFiles](ctx, c, call{path: "/v1/catalogue/%s", name: digest})
	return got.Files, err
}

// CatalogueChanges lists the changes of the catalogue with their states, newest first.
func (c *Client) CatalogueChanges(ctx context.Context, limit int) ([]openapi.CatalogueChange, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	got, err := fetch[openapi.CatalogueHistory](ctx, c, call{path: "/v1/catalogue/history", query: query})
	return got.Changes, err
}

// ApplyCatalogue replaces base, the digest of the catalogue in force. The caller must be an admin of all trust domains. The
// result says whether the new catalogue is applied or waits for another admin. It returns ErrOtherCatalogue if base is not in
// force, also if the same order is sent again after it was carried out.
func (c *Client) ApplyCatalogue(ctx context.Context, base string, order openapi.CatalogueOrder) (openapi.CatalogueChange, error) {
	return fetch[openapi.CatalogueChange](ctx, c, call{
		method: http.MethodPut, path: "/v1/catalogue", match: strconv.Quote(base), body: order, order: true,
	})
}

// DecideCatalogue approves or rejects a catalogue that another admin proposed as the replacement of base. It returns
// ErrNotFound if the catalogue is no longer proposed.
func (c *Client) DecideCatalogue(ctx context.Context, base, digest string, decision openapi.CatalogueDecision) (openapi.CatalogueChange, error) {
	return fetch[openapi.CatalogueChange](ctx, c, call{
		method: http.MethodPost, path: "/v1/catalogue/proposals/%s", name: digest, match: strconv.Quote(base), body: decision, order: true,
	})
}
