package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"

	"github.com/brevet-dev/brevet/openapi"
)

// TaskTimeline reads every recorded event of a sandbox's task, oldest first. If spiffeID is empty, it reads one of the caller's
// own tasks. It stops at the first error.
func (c *Client) TaskTimeline(ctx context.Context, task, spiffeID string) iter.Seq2[openapi.TimelineEvent, error] {
	query := url.Values{}
	if spiffeID != "" {
		query.Set("spiffe_id", spiffeID)
	}
	return c.timeline(ctx, "/v1/tasks/", task, query)
}

// IssuanceTimeline reads every recorded event of one record, oldest first. It stops at the first error.
func (c *Client) IssuanceTimeline(ctx context.Context, id string) iter.Seq2[openapi.TimelineEvent, error] {
	return c.timeline(ctx, "/v1/issuances/", id, url.Values{})
}

func (c *Client) timeline(ctx context.Context, path, of string, query url.Values) iter.Seq2[openapi.TimelineEvent, error] {
	return func(yield func(openapi.TimelineEvent, error) bool) {
		query.Set("limit", "500")
		for {
			page, err := c.timelinePage(ctx, path, of, query)
			if err != nil {
				yield(openapi.TimelineEvent{}, err)
				return
			}
			for _, e := range page.Events {
				if !yield(e, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

func (c *Client) timelinePage(ctx context.Context, path, of string, query url.Values) (openapi.Timeline, error) {
	var page openapi.Timeline
	if err := segment(of); err != nil {
		return page, err
	}
	target := c.base.String() + path + url.PathEscape(of) + "/timeline?" + query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return page, fmt.Errorf("making a call: %w", err)
	}
	err = c.read(req, &page)
	return page, err
}
