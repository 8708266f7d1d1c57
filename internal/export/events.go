package export

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

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
	Version string      `json:"version"`
	UID     string      `json:"uid"`
	LogName string      `json:"log_name"`
	Product ocsfProduct `json:"product"`
}

type ocsfProduct struct {
	Name   string `json:"name"`
	Vendor string `json:"vendor_name"`
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

// mapped lists the columns for which the class has a field, and the whole entry.
var mapped = []string{
	"index", "time", "kind", "id", "spiffe_id", "trust_domain", "scope", "expires", "status", "actor", "body",
}

// authorizeSession converts an entry to OCSF's class Authorize Session. Columns for which it has no field go to unmapped.
func authorizeSession(e Event, source string) ocsfEvent {
	activity, name := activityOther, e.Kind
	if strings.HasPrefix(e.Kind, "request.") || e.Kind == "issuance.intent" || e.Kind == "issuance.issued" {
		activity, name = activityAssign, "Assign Privileges"
	}
	out := ocsfEvent{
		ActivityID: activity, ActivityName: name, CategoryUID: ocsfCategory, CategoryName: "Identity & Access Management",
		ClassUID: ocsfClass, ClassName: "Authorize Session", TypeUID: ocsfClass*100 + activity,
		Time: e.Time.UnixMilli(), SeverityID: severityOf(e), StatusID: statusOf(e), Status: e.Status, StatusDetail: cmp.Or(e.Detail, e.Code),
		Message:  e.Kind,
		Metadata: ocsfMetadata{ocsfVersion, strconv.FormatInt(e.Index, 10), source, ocsfProduct{"Brevet", "Brevet"}},
		User:     ocsfUser{UID: cmp.Or(e.SPIFFEID, e.Actor, "unknown"), Domain: e.TrustDomain},
		Unmapped: map[string]string{},
	}
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
	for i, column := range columns {
		value := e.text(i)
		empty := value == "" || value == "0" && (column != "calls" || e.Kind != "issuance.reported")
		if !empty && !slices.Contains(mapped, column) {
			out.Unmapped[column] = value
		}
	}
	return out
}

func severityOf(e Event) int {
	switch {
	case strings.HasPrefix(e.Kind, "quarantine."), e.Kind == "credentials.revoke", strings.Contains(e.Code, "break_glass"):
		return severityHigh
	case e.Kind == "call.refused", e.Kind == "issuance.unknown", strings.HasPrefix(e.Kind, "catalogue."):
		return severityMedium
	case e.Kind == "request.denied", e.Kind == "issuance.failed", e.Kind == "issuance.compensated":
		return severityLow
	}
	return severityInformational
}

func statusOf(e Event) int {
	switch e.Kind {
	case "request.denied", "call.refused", "issuance.failed":
		return statusFailure
	case "request.pending", "issuance.unknown", "issuance.revoking":
		return statusOther
	}
	return statusSuccess
}
