package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/export"
)

const (
	// mostExported is the largest number of records in one export. exportBatch is how many records one query reads.
	mostExported, exportBatch = 100_000, 500
	// exportPatience bounds the write of one batch to a browser.
	exportPatience = 30 * time.Second
	// exportsAtOnce is how many concurrent exports one person may run on one replica.
	exportsAtOnce = 2
)

// exports maps the export formats to their media types.
var exports = map[export.Format]string{
	export.CSV: "text/csv; charset=utf-8", export.NDJSON: "application/x-ndjson",
	export.CloudEvents: "application/x-ndjson", export.OCSF: "application/x-ndjson",
}

// export streams the results of a search as a file. On an error it aborts the response, so that the browser does not take a
// partial file for a complete one.
func (c *Console) export(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	if errors.Is(err, errNobody) {
		toLogin(w, r)
		return
	}
	values := r.URL.Query()
	format, search := export.Format(values.Get("format")), readSearch(values)
	switch {
	case err != nil:
	case !who.Audits():
		err = errNotAllowed
	case exports[format] == "" || search.Bad:
		err = errForm
	}
	var first broker.Page
	if err == nil {
		leave, busy := c.exports.Enter(who.ID())
		if busy != nil {
			c.fail(w, r, who, errExporting)
			return
		}
		defer leave()
		search.query.Limit = exportBatch
		first, err = c.cfg.Broker.List(r.Context(), search.query, who.Auditor)
	}
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", exports[format])
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "brevet-history-"+c.cfg.Now().UTC().Format("20060102-150405")+extension(format)))
	if err := c.writeExport(w, r, exporting{who, search.query, format}, first); err != nil {
		c.cfg.Log.WarnContext(r.Context(), "export aborted", "error", err)
		panic(http.ErrAbortHandler)
	}
}

func extension(format export.Format) string {
	if format == export.CSV {
		return ".csv"
	}
	return "." + string(format) + ".jsonl"
}

// errExporting means that the person already runs the allowed number of exports.
var errExporting = errors.New("too many concurrent exports")

// exporting is one export: the visitor, the query and the format.
type exporting struct {
	who    *visitor
	query  broker.Query
	format export.Format
}

// writeExport writes page after page until the login expires. If there are more records than the limit, the last line says
// so.
func (c *Console) writeExport(w http.ResponseWriter, r *http.Request, e exporting, page broker.Page) error {
	control := http.NewResponseController(w)
	out, err := export.NewWriter(w, e.format, c.origin.Host+"/history")
	for written := 0; err == nil; {
		if err := control.SetWriteDeadline(c.cfg.Now().Add(exportPatience)); err != nil {
			return err
		}
		for i := range page.Records {
			event, err := recordOf(&page.Records[i])
			if err == nil {
				err = out.Write(event)
			}
			if err != nil {
				return err
			}
		}
		written += len(page.Records)
		switch {
		case page.Next == 0:
			return out.Close()
		case !c.cfg.Now().Before(e.who.Expires()):
			return errNobody
		case written >= c.mostExported:
			return errors.Join(out.Write(cutOff(&page.Records[len(page.Records)-1])), out.Close())
		}
		e.query.Before = page.Next
		page, err = c.cfg.Broker.List(r.Context(), e.query, e.who.Auditor)
	}
	return err
}

// cutOff returns the last line of a truncated export.
func cutOff(last *broker.View) export.Event {
	until := last.Time.Add(time.Second).UTC().Format(time.RFC3339) // rounded up: some records repeat, but none is missing
	said := "The export is truncated. Search again with until=" + url.QueryEscape(until)
	body, _ := json.Marshal(map[string]string{"cut": said}) //nolint:errchkjson // text can be encoded
	return export.Event{Index: last.Index, Time: last.Time, Kind: "export.cut", Reason: said, Body: string(body)}
}

// recordOf converts a record in its current state to the columns of entries.
func recordOf(v *broker.View) (export.Event, error) {
	params, err := json.Marshal(v.Params)
	if err != nil {
		return export.Event{}, fmt.Errorf("writing the parameters of %s: %w", v.ID, err)
	}
	e := export.Event{
		Index: v.Index, ID: v.ID, Time: v.Time, Kind: entryKind(v), SPIFFEID: v.Subject.ID.String(), TrustDomain: v.Subject.ID.TrustDomain().Name(),
		Task: v.Task, Scope: v.Scope, Authority: v.Authority, Resource: v.Resource, Params: string(params), Reason: v.Reason,
		Decision: v.Decision, Code: v.DecisionCode, Policies: v.Policies, Catalogue: v.Catalogue, TTL: int64(v.TTL / time.Second),
		Expires: v.Expires, Status: string(v.Status), Detail: v.StatusDetail, Actor: v.Actor, Approves: v.Approves,
		Credential: v.CredentialKind, Digest: credentialDigest(v), SVID: string(v.Subject.Kind), Thumbprint: v.Subject.Thumbprint, Parent: v.Parent,
		TTLAsked: int64(v.TTLAsked / time.Second), Clamps: slices.Clone(v.Clamps), Group: v.ApprovalGroup, Audience: v.Audience,
		Name: v.Minted.Name, VaultPath: v.VaultPath, Accessor: v.Minted.Accessor, Lease: v.Minted.Lease,
	}
	if v.User != nil {
		e.OnBehalfOf = v.User.ID
	}
	body, err := json.Marshal(bodyOf(e, v.Params))
	if err != nil {
		return export.Event{}, fmt.Errorf("writing %s: %w", v.ID, err)
	}
	e.Body = string(body)
	return e, nil
}

// entryKind returns the entry kind for the state of a record.
func entryKind(v *broker.View) string {
	if v.Decision == "pending" || v.Status == broker.StatusDenied {
		return "request." + string(v.Status)
	}
	return "issuance." + string(v.Status)
}

// bodyOf returns a record as an object without its empty members.
func bodyOf(e export.Event, params map[string]any) map[string]any {
	body := map[string]any{"id": e.ID, "time": e.Time, "kind": e.Kind, "params": params, "ttl": e.TTL}
	for name, value := range map[string]string{
		"spiffe_id": e.SPIFFEID, "trust_domain": e.TrustDomain, "task": e.Task, "scope": e.Scope, "authority": e.Authority,
		"resource": e.Resource, "reason": e.Reason, "decision": e.Decision, "code": e.Code, "policies": strings.Join(e.Policies, " "),
		"catalogue": e.Catalogue, "status": e.Status, "detail": e.Detail, "actor": e.Actor, "approves": e.Approves,
		"on_behalf_of": e.OnBehalfOf, "credential": e.Credential, "digest": e.Digest, "svid": e.SVID, "parent": e.Parent,
		"group": e.Group, "audience": e.Audience, "name": e.Name,
	} {
		if value != "" {
			body[name] = value
		}
	}
	if !e.Expires.IsZero() {
		body["expires"] = e.Expires
	}
	return body
}
