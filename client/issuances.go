package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/openapi"
)

// Filter narrows a listing. A zero field does not narrow it.
type Filter struct {
	SPIFFEID       string
	SPIFFEIDPrefix string
	TrustDomain    string
	Scope          string
	Task           string
	Decision       openapi.Decision
	DecisionCode   string // such as break_glass
	Status         openapi.Status
	// Since is inclusive, and Until is exclusive.
	Since, Until time.Time
	// Words must all occur in the reason, in any order and case.
	Words string
	// Params are the request's parameters by name, 8 at most.
	Params map[string]string
	// Approver is the ID of a person who voted on the request.
	Approver string
	// OnBehalfOf is the ID of the person on whose behalf the credential was requested.
	OnBehalfOf string
	// Credential is the SHA-256, in hex, of a token's claims or of another credential, as DigestOf returns it. Name is the name
	// by which the target system knows the credential.
	Credential, Name string
	Group            string
	Authority        string
	Resource         string
	Catalogue        string
	KeyID            string
	// Limit is the size of one page, 1 to 500. Zero leaves it to the server.
	Limit int
	// Cursor is the Next or Prev of another page with the same filter.
	Cursor string
}

// Values returns the filter as a URL query.
func (f Filter) Values() url.Values {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("spiffe_id", f.SPIFFEID)
	set("spiffe_id_prefix", f.SPIFFEIDPrefix)
	set("trust_domain", f.TrustDomain)
	set("scope", f.Scope)
	set("task", f.Task)
	set("decision", string(f.Decision))
	set("decision_code", f.DecisionCode)
	set("status", string(f.Status))
	set("q", f.Words)
	set("approver", f.Approver)
	set("on_behalf_of", f.OnBehalfOf)
	set("credential", f.Credential)
	set("name", f.Name)
	set("group", f.Group)
	set("authority", f.Authority)
	set("resource", f.Resource)
	set("catalogue", f.Catalogue)
	set("key_id", f.KeyID)
	set("cursor", f.Cursor)
	for name, value := range f.Params {
		v.Set("params."+name, value)
	}
	if !f.Since.IsZero() {
		set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if !f.Until.IsZero() {
		set("until", f.Until.UTC().Format(time.RFC3339Nano))
	}
	if f.Limit != 0 {
		set("limit", strconv.Itoa(f.Limit))
	}
	return v
}

// Page reads one page of records, newest first. Its Next is the Cursor of the following page, and its Prev that of the page
// before.
func (c *Client) Page(ctx context.Context, f Filter) (openapi.IssuancePage, error) {
	var page openapi.IssuancePage
	target := c.base.JoinPath("/v1/issuances")
	target.RawQuery = f.Values().Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return page, fmt.Errorf("making a call: %w", err)
	}
	err = c.read(req, &page)
	return page, err
}

// Issuances reads all matching records, newest first, one page at a time. It stops at the first error.
func (c *Client) Issuances(ctx context.Context, f Filter) iter.Seq2[openapi.Issuance, error] {
	return func(yield func(openapi.Issuance, error) bool) {
		for {
			page, err := c.Page(ctx, f)
			if err != nil {
				yield(openapi.Issuance{}, err)
				return
			}
			for _, one := range page.Issuances {
				if !yield(one, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			f.Cursor = page.Next
		}
	}
}

// Issuance reads one record.
func (c *Client) Issuance(ctx context.Context, id string) (openapi.Issuance, error) {
	var one openapi.Issuance
	err := c.get(ctx, "/v1/issuances/", id, &one)
	return one, err
}
