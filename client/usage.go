package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// ReportUses reports how often one of the caller's own credentials was used, and when last. It returns the recorded report: the
// first one is kept. It returns ErrNotFound if the credential is not the caller's, or ended more than an hour ago.
func (c *Client) ReportUses(ctx context.Context, id string, uses openapi.UseRequest) (openapi.UseReport, error) {
	var got openapi.UseReport
	if err := segment(id); err != nil {
		return got, err
	}
	req, err := c.post(ctx, "/v1/issuances/"+url.PathEscape(id)+"/uses", uses)
	if err != nil {
		return got, err
	}
	return got, c.read(req, &got)
}

// UsageFilter narrows what Usage counts. Since is inclusive, and Until is exclusive. The server chooses defaults for zero
// fields.
type UsageFilter struct {
	TrustDomain  string
	Since, Until time.Time
}

// Usage compares by scope what was granted with what was used, least used first. The caller must be an auditor.
func (c *Client) Usage(ctx context.Context, f UsageFilter) (openapi.Usage, error) {
	var got openapi.Usage
	target := c.base.JoinPath("/v1/audit/usage")
	target.RawQuery = Filter{TrustDomain: f.TrustDomain, Since: f.Since, Until: f.Until}.Values().Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return got, fmt.Errorf("making a call: %w", err)
	}
	return got, c.read(req, &got)
}
