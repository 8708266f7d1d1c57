package client

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
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
	return fetch[openapi.IssuancePage](ctx, c, call{path: "/v1/issuances", query: f.Values()})
}

// Issuances reads all matching records, newest first, one page at a time. It stops at the first error.
func (c *Client) Issuances(ctx context.Context, f Filter) iter.Seq2[openapi.Issuance, error] {
	return all(f.Cursor, func(cursor string) ([]openapi.Issuance, string, error) {
		f.Cursor = cursor
		page, err := c.Page(ctx, f)
		return page.Issuances, page.Next, err
	})
}

// all reads the items of all pages, from the page at a cursor on. It stops at the first error.
func all[T any](cursor string, page func(cursor string) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at, first := cursor, true; first || at != ""; first = false {
			items, next, err := page(at)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range items {
				if !yield(one, nil) {
					return
				}
			}
			at = next
		}
	}
}

// Issuance reads one record.
func (c *Client) Issuance(ctx context.Context, id string) (openapi.Issuance, error) {
	return fetch[openapi.Issuance](ctx, c, call{path: "/v1/issuances/%s", name: id})
}

// TaskTimeline reads every recorded event of a sandbox's task, oldest first. If spiffeID is empty, it reads one of the caller's
// own tasks. It stops at the first error.
func (c *Client) TaskTimeline(ctx context.Context, task, spiffeID string) iter.Seq2[openapi.TimelineEvent, error] {
	query := url.Values{}
	if spiffeID != "" {
		query.Set("spiffe_id", spiffeID)
	}
	return c.timeline(ctx, call{path: "/v1/tasks/%s/timeline", name: task, query: query})
}

// IssuanceTimeline reads every recorded event of one record, oldest first. It stops at the first error.
func (c *Client) IssuanceTimeline(ctx context.Context, id string) iter.Seq2[openapi.TimelineEvent, error] {
	return c.timeline(ctx, call{path: "/v1/issuances/%s/timeline", name: id, query: url.Values{}})
}

func (c *Client) timeline(ctx context.Context, what call) iter.Seq2[openapi.TimelineEvent, error] {
	return all("", func(cursor string) ([]openapi.TimelineEvent, string, error) {
		what.query.Set("limit", "500")
		if cursor != "" {
			what.query.Set("cursor", cursor)
		}
		page, err := fetch[openapi.Timeline](ctx, c, what)
		return page.Events, page.Next, err
	})
}

// ReportUses reports how often one of the caller's own credentials was used, and when last. It returns the recorded report: the
// first one is kept. It returns ErrNotFound if the credential is not the caller's, or ended more than an hour ago.
func (c *Client) ReportUses(ctx context.Context, id string, uses openapi.UseRequest) (openapi.UseReport, error) {
	return fetch[openapi.UseReport](ctx, c, call{method: http.MethodPost, path: "/v1/issuances/%s/uses", name: id, body: uses})
}

// MaxCallRows is the maximum number of rows of one report of calls.
const MaxCallRows = 128

// ReportCalls reports what the caller called during one of its tasks. The caller may send a report again. It returns
// ErrAlreadyReported if the session has a different report with that number, and ErrInvalid if the report is not valid or larger
// than the server accepts (64 KiB).
func (c *Client) ReportCalls(ctx context.Context, task string, report openapi.CallReport) (openapi.CallReceipt, error) {
	return fetch[openapi.CallReceipt](ctx, c, call{method: http.MethodPost, path: "/v1/tasks/%s/calls", name: task, body: report})
}

// TaskCalls sums up what a sandbox called during a task. It returns ErrNotFound if nothing is recorded about calls of the task.
// The caller must be an auditor.
func (c *Client) TaskCalls(ctx context.Context, spiffeID, task string) (openapi.TaskCalls, error) {
	query := url.Values{"spiffe_id": {spiffeID}}
	return fetch[openapi.TaskCalls](ctx, c, call{path: "/v1/tasks/%s/calls", name: task, query: query})
}

// UsageFilter narrows what Usage counts. Since is inclusive, and Until is exclusive. The server chooses defaults for zero
// fields.
type UsageFilter struct {
	TrustDomain  string
	Since, Until time.Time
}

// Usage compares by scope what was granted with what was used, least used first. The caller must be an auditor.
func (c *Client) Usage(ctx context.Context, f UsageFilter) (openapi.Usage, error) {
	query := Filter{TrustDomain: f.TrustDomain, Since: f.Since, Until: f.Until}.Values()
	return fetch[openapi.Usage](ctx, c, call{path: "/v1/audit/usage", query: query})
}

// Checkpoint reads the latest signed checkpoint of the log, as a note (c2sp.org/tlog-checkpoint). The caller must be an
// auditor.
func (c *Client) Checkpoint(ctx context.Context) (string, error) {
	return c.text(ctx, call{path: "/v1/ledger/checkpoint"})
}

// CosignedCheckpoint reads the latest checkpoint that at least this number of witnesses has cosigned, with the cosignatures.
func (c *Client) CosignedCheckpoint(ctx context.Context, witnesses int) (string, error) {
	return c.text(ctx, call{path: "/v1/ledger/checkpoint", query: url.Values{"witnesses": {strconv.Itoa(witnesses)}}})
}

// LogKeys reads the public keys of the log, oldest first (c2sp.org/signed-note). The caller must be an auditor. Nothing proves
// that the keys are those of the log: compare them with another party's copy.
func (c *Client) LogKeys(ctx context.Context) ([]string, error) {
	keys, err := c.text(ctx, call{path: "/v1/ledger/keys"})
	return strings.Fields(keys), err
}

func (c *Client) text(ctx context.Context, what call) (string, error) {
	req, err := c.request(ctx, what)
	if err != nil {
		return "", err
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

// LogReceipt reads the proof that an issuance is in the log. The caller must be an auditor.
func (c *Client) LogReceipt(ctx context.Context, id string) (openapi.LogReceipt, error) {
	return fetch[openapi.LogReceipt](ctx, c, call{path: "/v1/issuances/%s/receipt", name: id})
}

// TaskReceipt reads the proof of everything that was requested and issued for a task. The caller must be an auditor.
func (c *Client) TaskReceipt(ctx context.Context, spiffeID, task string) (openapi.LogReceipt, error) {
	query := url.Values{"spiffe_id": {spiffeID}}
	return fetch[openapi.LogReceipt](ctx, c, call{path: "/v1/tasks/%s/receipt", name: task, query: query})
}

// Entries reads one page of the log's entries: at most limit entries, 1000 at most, starting at index from. Next of the page is
// the index at which the following page starts. At the end of the log a page is empty. The caller must be an auditor of all
// trust domains.
func (c *Client) Entries(ctx context.Context, from int64, limit int) (openapi.EntryPage, error) {
	query := url.Values{"from": {strconv.FormatInt(from, 10)}, "limit": {strconv.Itoa(limit)}}
	return fetch[openapi.EntryPage](ctx, c, call{path: "/v1/ledger/entries", query: query})
}

// DigestOf returns the value of Filter.Credential that finds a credential: a SHA-256 in hex. It covers the claims of a JWT, and
// otherwise the whole token, password or private key. The credential itself is not sent.
func DigestOf(credential secret.Text) string {
	text := credential.Reveal()
	if claims := claimsOf(text); claims != nil {
		text = string(claims)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// claimsOf returns the payload of a JWT (RFC 7515), whatever its signature, or nil for any other text.
func claimsOf(text string) []byte {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return nil
	}
	for i, part := range parts[:2] {
		data, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || !json.Valid(data) {
			return nil
		}
		if i == 1 {
			return data
		}
	}
	return nil
}
