package export

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Format is an output format.
type Format string

// The formats. All except CSV and Parquet write one JSON object per line.
const (
	NDJSON      Format = "ndjson"      // {"index":…, "entry":…}
	CSV         Format = "csv"         // RFC 4180, with a header
	Parquet     Format = "parquet"     // Apache Parquet
	CloudEvents Format = "cloudevents" // CloudEvents 1.0 in its JSON form
	OCSF        Format = "ocsf"        // OCSF 1.3, class Authorize Session (3003)
)

// Writer writes events in one format. Flush ends a batch: it passes everything written so far to the underlying writer,
// but does not end the file. Close ends the file, but does not close the underlying writer.
type Writer interface {
	Write(e Event) error
	Flush() error
	Close() error
}

// NewWriter returns a writer for a format. source names the log, such as brevet.example/ledger.
func NewWriter(w io.Writer, format Format, source string) (Writer, error) {
	switch format {
	case NDJSON:
		return &lines{w, func(e Event) any {
			return struct {
				Index int64           `json:"index"`
				Entry json.RawMessage `json:"entry"`
			}{e.Index, json.RawMessage(e.Body)}
		}}, nil
	case CloudEvents:
		return &lines{w, func(e Event) any { return cloudEvent(e, source) }}, nil
	case OCSF:
		return &lines{w, func(e Event) any { return authorizeSession(e, source) }}, nil
	case CSV:
		t := &table{csv.NewWriter(w)}
		names := make([]string, len(columns))
		for i, c := range columns {
			names[i] = c.name
		}
		return t, t.csv.Write(names)
	case Parquet:
		schema := parquet.NewSchema("record", parquet.SchemaOf(Event{}))
		return &columnar{parquet.NewGenericWriter[Event](w, schema, parquet.Compression(&parquet.Zstd))}, nil
	}
	return nil, fmt.Errorf("%q is not an export format", format)
}

// lines writes one JSON object per line.
type lines struct {
	w    io.Writer
	form func(Event) any
}

func (l *lines) Write(e Event) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(l.form(e)); err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	_, err := l.w.Write(line.Bytes())
	return err
}

func (l *lines) Flush() error { return nil }
func (l *lines) Close() error { return nil }

// columns lists the CSV columns in order. Append new ones at the end, for programs that address columns by number.
var columns = []struct {
	name string
	of   func(Event) string
}{
	{"index", func(e Event) string { return strconv.FormatInt(e.Index, 10) }},
	{"time", func(e Event) string { return timeText(e.Time) }},
	{"kind", func(e Event) string { return e.Kind }},
	{"id", func(e Event) string { return e.ID }},
	{"spiffe_id", func(e Event) string { return e.SPIFFEID }},
	{"trust_domain", func(e Event) string { return e.TrustDomain }},
	{"task", func(e Event) string { return e.Task }},
	{"scope", func(e Event) string { return e.Scope }},
	{"authority", func(e Event) string { return e.Authority }},
	{"resource", func(e Event) string { return e.Resource }},
	{"params", func(e Event) string { return e.Params }},
	{"decision", func(e Event) string { return e.Decision }},
	{"code", func(e Event) string { return e.Code }},
	{"policies", func(e Event) string { return strings.Join(e.Policies, " ") }},
	{"catalogue", func(e Event) string { return e.Catalogue }},
	{"ttl", func(e Event) string { return strconv.FormatInt(e.TTL, 10) }},
	{"expires", func(e Event) string { return timeText(e.Expires) }},
	{"status", func(e Event) string { return e.Status }},
	{"detail", func(e Event) string { return e.Detail }},
	{"actor", func(e Event) string { return e.Actor }},
	{"verdict", func(e Event) string { return e.Verdict }},
	{"approves", func(e Event) string { return e.Approves }},
	{"credential", func(e Event) string { return e.Credential }},
	{"digest", func(e Event) string { return e.Digest }},
	{"reason", func(e Event) string { return e.Reason }},
	{"svid", func(e Event) string { return e.SVID }},
	{"thumbprint", func(e Event) string { return e.Thumbprint }},
	{"jkt", func(e Event) string { return e.JKT }},
	{"parent", func(e Event) string { return e.Parent }},
	{"ttl_asked", func(e Event) string { return strconv.FormatInt(e.TTLAsked, 10) }},
	{"clamps", func(e Event) string { return strings.Join(e.Clamps, " ") }},
	{"group", func(e Event) string { return e.Group }},
	{"audience", func(e Event) string { return e.Audience }},
	{"name", func(e Event) string { return e.Name }},
	{"vault_path", func(e Event) string { return e.VaultPath }},
	{"accessor", func(e Event) string { return e.Accessor }},
	{"lease", func(e Event) string { return e.Lease }},
	{"remote", func(e Event) string { return e.Remote }},
	{"operation", func(e Event) string { return e.Operation }},
	{"suppressed", func(e Event) string { return strconv.FormatInt(e.Suppressed, 10) }},
	{"on_behalf_of", func(e Event) string { return e.OnBehalfOf }},
	{"calls", func(e Event) string { return strconv.FormatInt(e.Calls, 10) }},
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// table writes CSV.
type table struct{ csv *csv.Writer }

func (t *table) Write(e Event) error {
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = inert(c.of(e))
	}
	return t.csv.Write(row)
}

func (t *table) Flush() error {
	t.csv.Flush()
	return t.csv.Error()
}

func (t *table) Close() error { return t.Flush() }

// inert keeps a spreadsheet from treating a cell as a formula (H78). If the cell begins like one, also after characters
// that spreadsheets skip, inert puts an apostrophe before it.
func inert(cell string) string {
	rest := strings.TrimLeft(cell, " \t\r\n\v\f\u00a0\ufeff\"'")
	if rest != "" && strings.ContainsAny(rest[:1], "=+-@|%") || strings.HasPrefix(rest, "\uff1d") || strings.HasPrefix(rest, "\uff0b") ||
		strings.HasPrefix(rest, "\uff0d") || strings.HasPrefix(rest, "\uff20") || strings.ContainsAny(cell[:min(1, len(cell))], "\t\r\n") {
		return "'" + cell
	}
	return cell
}

// columnar writes Parquet. Each batch becomes a row group. Without Close the file is invalid.
type columnar struct {
	w *parquet.GenericWriter[Event]
}

func (c *columnar) Write(e Event) error {
	_, err := c.w.Write([]Event{e})
	return err
}

func (c *columnar) Flush() error { return c.w.Flush() }
func (c *columnar) Close() error { return c.w.Close() }

// cloudEvent converts an entry to CloudEvents 1.0. Source and id together identify an entry permanently.
func cloudEvent(e Event, source string) any {
	return struct {
		SpecVersion string          `json:"specversion"`
		ID          string          `json:"id"`
		Source      string          `json:"source"`
		Type        string          `json:"type"`
		Subject     string          `json:"subject,omitempty"`
		Time        string          `json:"time"`
		MediaType   string          `json:"datacontenttype"`
		Data        json.RawMessage `json:"data"`
	}{
		"1.0", strconv.FormatInt(e.Index, 10), "//" + source, "dev.brevet." + e.Kind, e.SPIFFEID, timeText(e.Time), "application/json",
		json.RawMessage(e.Body),
	}
}

// The numbers of OCSF's class Authorize Session, in the category Identity & Access Management.
const (
	ocsfVersion  = "1.3.0"
	ocsfCategory = 3
	ocsfClass    = 3003

	activityAssign = 1 // Assign Privileges
	activityOther  = 99

	severityInformational, severityLow, severityMedium, severityHigh = 1, 2, 3, 4

	statusSuccess, statusFailure, statusOther = 1, 2, 99
)

type ocsfEvent struct {
	ActivityID   int               `json:"activity_id"`
	ActivityName string            `json:"activity_name"`
	CategoryUID  int               `json:"category_uid"`
	CategoryName string            `json:"category_name"`
	ClassUID     int               `json:"class_uid"`
	ClassName    string            `json:"class_name"`
	TypeUID      int               `json:"type_uid"`
	Time         int64             `json:"time"` // milliseconds since 1970
	SeverityID   int               `json:"severity_id"`
	StatusID     int               `json:"status_id"`
	Status       string            `json:"status,omitempty"`
	StatusDetail string            `json:"status_detail,omitempty"`
	Message      string            `json:"message"`
	Metadata     ocsfMetadata      `json:"metadata"`
	User         ocsfUser          `json:"user"`
	Actor        *ocsfActor        `json:"actor,omitempty"`
	Session      *ocsfSession      `json:"session,omitempty"`
	Privileges   []string          `json:"privileges,omitempty"`
	Unmapped     map[string]string `json:"unmapped,omitempty"`
}

type ocsfMetadata struct {
	Version string `json:"version"`
	UID     string `json:"uid"`
	LogName string `json:"log_name"`
	Product struct {
		Name   string `json:"name"`
		Vendor string `json:"vendor_name"`
	} `json:"product"`
}

type ocsfUser struct {
	UID    string `json:"uid"`
	Name   string `json:"name,omitempty"`
	Domain string `json:"domain,omitempty"`
}

type ocsfActor struct {
	User ocsfUser `json:"user"`
}

type ocsfSession struct {
	UID         string `json:"uid"`
	ExpiresTime int64  `json:"expiration_time,omitempty"`
}

// authorizeSession converts an entry to OCSF's class Authorize Session. Columns for which it has no field go to unmapped.
func authorizeSession(e Event, source string) ocsfEvent {
	activity, name := activityOther, e.Kind
	if strings.HasPrefix(e.Kind, "request.") || e.Kind == "issuance.intent" || e.Kind == "issuance.issued" {
		activity, name = activityAssign, "Assign Privileges"
	}
	severity, status := severityInformational, statusSuccess
	switch {
	case strings.HasPrefix(e.Kind, "quarantine."), e.Kind == "credentials.revoke", strings.Contains(e.Code, "break_glass"):
		severity = severityHigh
	case e.Kind == "call.refused", e.Kind == "issuance.unknown", strings.HasPrefix(e.Kind, "catalogue."):
		severity = severityMedium
	case e.Kind == "request.denied", e.Kind == "issuance.failed", e.Kind == "issuance.compensated":
		severity = severityLow
	}
	switch e.Kind {
	case "request.denied", "call.refused", "issuance.failed":
		status = statusFailure
	case "request.pending", "issuance.unknown", "issuance.revoking":
		status = statusOther
	}
	out := ocsfEvent{
		ActivityID: activity, ActivityName: name, CategoryUID: ocsfCategory, CategoryName: "Identity & Access Management",
		ClassUID: ocsfClass, ClassName: "Authorize Session", TypeUID: ocsfClass*100 + activity,
		Time: e.Time.UnixMilli(), SeverityID: severity, StatusID: status, Status: e.Status, StatusDetail: cmp.Or(e.Detail, e.Code),
		Message:  e.Kind,
		Metadata: ocsfMetadata{Version: ocsfVersion, UID: strconv.FormatInt(e.Index, 10), LogName: source},
		User:     ocsfUser{UID: cmp.Or(e.SPIFFEID, e.Actor, "unknown"), Domain: e.TrustDomain},
		Unmapped: map[string]string{},
	}
	out.Metadata.Product.Name, out.Metadata.Product.Vendor = "Brevet", "Brevet"
	if e.Actor != "" {
		out.Actor = &ocsfActor{ocsfUser{UID: e.Actor}}
	}
	if e.ID != "" {
		out.Session = &ocsfSession{UID: e.ID}
		if !e.Expires.IsZero() {
			out.Session.ExpiresTime = e.Expires.UnixMilli()
		}
	}
	if e.Scope != "" {
		out.Privileges = []string{e.Scope}
	}
	for _, column := range columns {
		value := column.of(e)
		switch column.name {
		case "index", "time", "kind", "id", "spiffe_id", "trust_domain", "scope", "expires", "status", "actor":
			continue // the class has a field for it
		}
		if value != "" && (value != "0" || column.name == "calls" && (e.Kind == "issuance.reported" || e.Kind == "calls.recorded")) {
			out.Unmapped[column.name] = value
		}
	}
	return out
}
