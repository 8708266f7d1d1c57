// Package export writes ledger entries in formats that other systems read: CSV, Parquet, CloudEvents, OCSF and JSON
// lines.
//
// It must never do I/O except to the given writer. It must never let text from a sandbox trigger anything in the program
// that reads the export.
package export

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Event is one ledger entry as a flat row. A field is empty if the entry does not have it. The order of the fields is that of the
// Parquet columns.
type Event struct {
	Index       int64     `parquet:"index,delta"`
	Time        time.Time `parquet:"time,timestamp(microsecond)"`
	Kind        string    `parquet:"kind,dict"`
	ID          string    `parquet:"id"`             // of the request, or of the command
	SPIFFEID    string    `parquet:"spiffe_id,dict"` // of the sandbox concerned
	TrustDomain string    `parquet:"trust_domain,dict"`
	Task        string    `parquet:"task,dict"`
	Scope       string    `parquet:"scope,dict"`
	Authority   string    `parquet:"authority,dict"`
	Resource    string    `parquet:"resource,dict"`
	Params      string    `parquet:"params"` // JSON
	Decision    string    `parquet:"decision,dict"`
	Code        string    `parquet:"code,dict"` // the reason for the decision
	Policies    []string  `parquet:"policies,list"`
	Catalogue   string    `parquet:"catalogue,dict"`
	TTL         int64     `parquet:"ttl"` // seconds
	Expires     time.Time `parquet:"expires,optional,timestamp(microsecond)"`
	Status      string    `parquet:"status,dict"` // of the request after this entry
	Detail      string    `parquet:"detail,dict"`
	Actor       string    `parquet:"actor,dict"` // who acted: a person's id or a SPIFFE ID
	Verdict     string    `parquet:"verdict,dict"`
	Approves    string    `parquet:"approves"`        // for an issuance: the request that people approved
	Credential  string    `parquet:"credential,dict"` // the kind of credential
	Digest      string    `parquet:"digest"`          // SHA-256 of the credential's claims, or of its secret, in hex
	Reason      string    `parquet:"reason"`          // written by a sandbox or by the author of a command: never trust it
	Body        string    `parquet:"body"`            // the entry, byte for byte
	SVID        string    `parquet:"svid,dict"`       // how the sandbox authenticated
	Thumbprint  string    `parquet:"thumbprint,dict"` // of the sandbox's certificate
	JKT         string    `parquet:"jkt,dict"`        // thumbprint of the key in its DPoP proof
	Parent      string    `parquet:"parent"`          // the issuance from which this one was exchanged
	TTLAsked    int64     `parquet:"ttl_asked"`       // seconds
	Clamps      []string  `parquet:"clamps,list"`
	Group       string    `parquet:"group,dict"`    // the group that has to approve
	Audience    string    `parquet:"audience,dict"` // of a token
	Name        string    `parquet:"name"`          // how the issuing system identifies the credential
	VaultPath   string    `parquet:"vault_path,dict"`
	Accessor    string    `parquet:"accessor"` // of Vault, as is the lease
	Lease       string    `parquet:"lease"`
	Remote      string    `parquet:"remote,dict"`       // address of the caller whose call was refused
	Operation   string    `parquet:"operation,dict"`    // the refused operation
	Suppressed  int64     `parquet:"suppressed"`        // refusals without an entry of their own since the last one with an entry
	OnBehalfOf  string    `parquet:"on_behalf_of,dict"` // the id of the person the sandbox acts for
	Calls       int64     `parquet:"calls"`             // how many calls used the issuance, or were made in all, as the sandbox reports
}

// body has the fields of all kinds of entries.
type body struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Subject struct {
		SPIFFEID    string `json:"spiffe_id"`
		TrustDomain string `json:"trust_domain"`
		SVID        string `json:"svid"`
		Thumbprint  string `json:"thumbprint"`
	} `json:"subject"`
	Request struct {
		Scope  string          `json:"scope"`
		Params json.RawMessage `json:"params"`
		Task   string          `json:"task"`
		Reason string          `json:"reason"`
		TTL    int64           `json:"ttl"`
		JKT    string          `json:"jkt"`
	} `json:"request"`
	Decision struct {
		Outcome   string          `json:"outcome"`
		Code      string          `json:"code"`
		Authority string          `json:"authority"`
		Resource  string          `json:"resource"`
		Params    json.RawMessage `json:"params"`
		TTL       int64           `json:"ttl"`
		Policies  []string        `json:"policies"`
		Catalogue string          `json:"catalogue"`
		Clamps    []struct {
			Bound string `json:"bound"`
		} `json:"clamps"`
		Approval struct {
			Group string `json:"group"`
		} `json:"approval"`
	} `json:"decision"`
	Status  string    `json:"status"`
	Detail  string    `json:"detail"`
	Expires time.Time `json:"expires"`
	Intent  struct {
		Kind         string `json:"kind"`
		ClaimsDigest string `json:"claims_digest"`
		Audience     string `json:"audience"`
		Grant        struct {
			Path string `json:"path"`
		} `json:"grant"`
	} `json:"intent"`
	Minted struct {
		Digest   string `json:"digest"`
		Name     string `json:"name"`
		Accessor string `json:"accessor"`
		Lease    string `json:"lease"`
	} `json:"minted"`
	Approves struct {
		Request string `json:"request"`
	} `json:"approves"`
	OnBehalfOf struct {
		ID string `json:"id"`
	} `json:"on_behalf_of"`
	Actor    actor  `json:"actor"`
	PersonID string `json:"person_id"`
	Person   struct {
		ID string `json:"id"`
	} `json:"person"`
	Target struct {
		SPIFFEID       string `json:"spiffe_id"`
		SPIFFEIDPrefix string `json:"spiffe_id_prefix"`
		TrustDomain    string `json:"trust_domain"`
		Task           string `json:"task"`
		Scope          string `json:"scope"`
		Catalogue      string `json:"catalogue"`
	} `json:"target"`
	Reason  string `json:"reason"`
	Note    string `json:"note"`
	Verdict string `json:"verdict"`
	Code    string `json:"code"`   // of a refused call
	Digest  string `json:"digest"` // of a catalogue
	Parent  string `json:"parent"`

	Remote     string `json:"remote"`
	Operation  string `json:"operation"`
	Suppressed int64  `json:"suppressed"`

	Calls int64 `json:"calls"`
	// Task and Report are what an egress gateway reports about the calls of a task.
	Task   string `json:"task"`
	Report struct {
		Calls []struct {
			Count int64 `json:"count"`
		} `json:"calls"`
	} `json:"report"`
}

// actor is the id of a person or the SPIFFE ID of a workload. Entries write it in three forms.
type actor string

func (a *actor) UnmarshalJSON(text []byte) error {
	var plain string
	if json.Unmarshal(text, &plain) == nil {
		*a = actor(plain)
		return nil
	}
	var who struct {
		ID       string `json:"id"`
		SPIFFEID string `json:"spiffe_id"`
	}
	err := json.Unmarshal(text, &who)
	*a = actor(who.ID + who.SPIFFEID)
	return err
}

// Read flattens an entry. Event.Body is text, byte for byte.
func Read(index int64, text string) (Event, error) {
	var b body
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return Event{}, fmt.Errorf("entry %d is not an entry that this program supports: %w", index, err)
	}
	e := Event{
		Index: index, ID: b.ID, Time: b.Time, Kind: b.Kind,
		SPIFFEID:    cmp.Or(b.Subject.SPIFFEID, b.Target.SPIFFEID, b.Target.SPIFFEIDPrefix),
		TrustDomain: cmp.Or(b.Subject.TrustDomain, b.Target.TrustDomain),
		Task:        cmp.Or(b.Request.Task, b.Target.Task, b.Task), Scope: cmp.Or(b.Request.Scope, b.Target.Scope),
		Authority: b.Decision.Authority, Resource: b.Decision.Resource,
		Params:   cmp.Or(string(b.Decision.Params), string(b.Request.Params)),
		Reason:   cmp.Or(b.Request.Reason, b.Reason, b.Note),
		Decision: b.Decision.Outcome, Code: cmp.Or(b.Decision.Code, b.Code), Policies: b.Decision.Policies,
		Catalogue: cmp.Or(b.Decision.Catalogue, b.Target.Catalogue, b.Digest),
		TTL:       b.Decision.TTL, Expires: b.Expires, Status: b.Status, Detail: b.Detail,
		Actor: cmp.Or(string(b.Actor), b.PersonID, b.Person.ID), Verdict: b.Verdict,
		Approves: b.Approves.Request, OnBehalfOf: b.OnBehalfOf.ID,
		Credential: b.Intent.Kind, Digest: cmp.Or(b.Intent.ClaimsDigest, b.Minted.Digest), Body: text,
		SVID: b.Subject.SVID, Thumbprint: b.Subject.Thumbprint, JKT: b.Request.JKT, Parent: b.Parent, TTLAsked: b.Request.TTL,
		Group: b.Decision.Approval.Group, Audience: b.Intent.Audience, Name: b.Minted.Name, VaultPath: b.Intent.Grant.Path,
		Accessor: b.Minted.Accessor, Lease: b.Minted.Lease, Remote: b.Remote, Operation: b.Operation, Suppressed: b.Suppressed, Calls: b.Calls,
	}
	if b.Kind == "calls.recorded" { // the sandbox acts itself; the rows are in the body
		e.SPIFFEID = string(b.Actor)
		for _, row := range b.Report.Calls {
			e.Calls += row.Count
		}
	}
	for _, clamp := range b.Decision.Clamps {
		e.Clamps = append(e.Clamps, clamp.Bound)
	}
	if e.TrustDomain == "" {
		e.TrustDomain, _, _ = strings.Cut(strings.TrimPrefix(e.SPIFFEID, "spiffe://"), "/")
	}
	return e, nil
}
