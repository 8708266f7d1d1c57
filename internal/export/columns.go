package export

import (
	"io"
	"time"

	"github.com/parquet-go/parquet-go"
)

// record is a row of Parquet.
type record struct {
	Index       int64      `parquet:"index,delta"`
	Time        time.Time  `parquet:"time,timestamp(microsecond)"`
	Kind        string     `parquet:"kind,dict"`
	ID          string     `parquet:"id"`
	SPIFFEID    string     `parquet:"spiffe_id,dict"`
	TrustDomain string     `parquet:"trust_domain,dict"`
	Task        string     `parquet:"task,dict"`
	Scope       string     `parquet:"scope,dict"`
	Authority   string     `parquet:"authority,dict"`
	Resource    string     `parquet:"resource,dict"`
	Params      string     `parquet:"params"`
	Decision    string     `parquet:"decision,dict"`
	Code        string     `parquet:"code,dict"`
	Policies    []string   `parquet:"policies,list"`
	Catalogue   string     `parquet:"catalogue,dict"`
	TTL         int64      `parquet:"ttl"`
	Expires     *time.Time `parquet:"expires,optional,timestamp(microsecond)"`
	Status      string     `parquet:"status,dict"`
	Detail      string     `parquet:"detail,dict"`
	Actor       string     `parquet:"actor,dict"`
	Verdict     string     `parquet:"verdict,dict"`
	Approves    string     `parquet:"approves"`
	Credential  string     `parquet:"credential,dict"`
	Digest      string     `parquet:"digest"`
	Reason      string     `parquet:"reason"`
	Body        string     `parquet:"body"`
	SVID        string     `parquet:"svid,dict"`
	Thumbprint  string     `parquet:"thumbprint,dict"`
	JKT         string     `parquet:"jkt,dict"`
	Parent      string     `parquet:"parent"`
	TTLAsked    int64      `parquet:"ttl_asked"`
	Clamps      []string   `parquet:"clamps,list"`
	Group       string     `parquet:"group,dict"`
	Audience    string     `parquet:"audience,dict"`
	Name        string     `parquet:"name"`
	VaultPath   string     `parquet:"vault_path,dict"`
	Accessor    string     `parquet:"accessor"`
	Lease       string     `parquet:"lease"`
	Remote      string     `parquet:"remote,dict"`
	Operation   string     `parquet:"operation,dict"`
	Suppressed  int64      `parquet:"suppressed"`
	OnBehalfOf  string     `parquet:"on_behalf_of,dict"`
	Calls       int64      `parquet:"calls"`
}

// columnar writes Parquet. Each batch becomes a row group. Without Close the file is invalid.
type columnar struct {
	w *parquet.GenericWriter[record]
}

func newColumns(w io.Writer) *columnar {
	return &columnar{parquet.NewGenericWriter[record](w, parquet.Compression(&parquet.Zstd))}
}

func (c *columnar) Write(e Event) error {
	r := record{
		Index: e.Index, Time: e.Time, Kind: e.Kind, ID: e.ID, SPIFFEID: e.SPIFFEID, TrustDomain: e.TrustDomain, Task: e.Task,
		Scope: e.Scope, Authority: e.Authority, Resource: e.Resource, Params: e.Params, Decision: e.Decision, Code: e.Code,
		Policies: e.Policies, Catalogue: e.Catalogue, TTL: e.TTL, Status: e.Status, Detail: e.Detail, Actor: e.Actor,
		Verdict: e.Verdict, Approves: e.Approves, Credential: e.Credential, Digest: e.Digest, Reason: e.Reason, Body: e.Body,
		SVID: e.SVID, Thumbprint: e.Thumbprint, JKT: e.JKT, Parent: e.Parent, TTLAsked: e.TTLAsked, Clamps: e.Clamps, Group: e.Group,
		Audience: e.Audience, Name: e.Name, VaultPath: e.VaultPath, Accessor: e.Accessor, Lease: e.Lease, Remote: e.Remote,
		Operation: e.Operation, Suppressed: e.Suppressed, OnBehalfOf: e.OnBehalfOf, Calls: e.Calls,
	}
	if !e.Expires.IsZero() {
		r.Expires = &e.Expires
	}
	_, err := c.w.Write([]record{r})
	return err
}

func (c *columnar) Flush() error { return c.w.Flush() }
func (c *columnar) Close() error { return c.w.Close() }
