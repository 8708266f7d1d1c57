package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// ReportUses says how often a credential of the caller's own was used, and when last. It returns what is recorded: the first
// report stands. ErrNotFound when the credential is not the caller's, or has ended more than an hour ago.
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

// UsageFilter narrows what is counted. Since is inclusive, Until exclusive; zero fields leave it to the server.
type UsageFilter struct {
	TrustDomain  string
	Since, Until time.Time
}

// Usage compares what was granted with what was used, by scope, as an auditor. First comes what was used least.
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
