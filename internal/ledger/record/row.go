package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Columns are the columns of Row.
const Columns = `
	id::text AS id, entry_index, time, spiffe_id, svid_kind, thumbprint, task, scope, authority, resource, params, reason,
	ttl_asked, ttl, decision, decision_code, explanation, policies, clamps, catalogue,
	CASE WHEN ` + Void + ` THEN 'void' WHEN ` + Lapsed + ` THEN 'expired' ELSE status END AS status, coalesce(status_detail, '') AS status_detail,
	CASE WHEN ` + Void + ` THEN (
			SELECT c.time FROM (SELECT ` + voidedBy + `) AS v (version) JOIN catalogue_changes AS c USING (version) WHERE c.kind = 'applied')
		WHEN ` + Lapsed + ` THEN expires_at ELSE status_time END AS status_time, expires_at, coalesce(` + voidedBy + `, 0) AS voided_by,
	coalesce(approval_group, '') AS approval_group, coalesce(approval_quorum, 0) AS approval_quorum,
	coalesce(break_glass, '') AS break_glass, ` + Broken + ` AS broken,
	coalesce(credential_kind, '') AS credential_kind, coalesce(audience, '') AS audience, coalesce(key_id, '') AS key_id,
	coalesce(encode(claims_digest, 'hex'), '') AS claims_digest, request_digest,
	coalesce(idempotency_key, '') AS idempotency_key, coalesce(actor, '') AS actor,
	leased, static, coalesce(vault_path, '') AS vault_path, coalesce(vault_accessor, '') AS vault_accessor,
	coalesce(vault_lease, '') AS vault_lease, coalesce(credential_name, '') AS credential_name, secret_digest,
	coalesce(canonical, '') AS canonical, votes, redemptions, coalesce(redeemed_by::text, '') AS redeemed_by,
	coalesce(approves::text, '') AS approves, coalesce(remembered::text, '') AS remembered,
	coalesce(parent::text, '') AS parent, on_behalf_of, on_behalf_groups, context`

// Broken is the condition that people have broken the glass for a request, in place of an approval by the group that was
// asked.
const Broken = `(break_glass IS NOT NULL
	AND EXISTS (SELECT FROM votes AS v WHERE v.request = id AND v.verdict = 'break_glass'))`

// Lapsed is the condition that a record has ended by its time alone, which needs no entry. A leased credential ends when
// Vault says so. An approved request can be redeemed for a minute more.
const Lapsed = `(status IN ('issued', 'pending', 'approved') AND NOT leased
	AND expires_at <= now() - CASE status WHEN 'approved' THEN interval '1 minute' ELSE '0' END)`

// Void is the condition that a change of the catalogue has ended a request that waited for people or to be redeemed. The change's entry
// says so, and none of the request. voidedBy is the version of that catalogue, or NULL.
const (
	Void     = `(` + voidedBy + ` IS NOT NULL)`
	voidedBy = `CASE WHEN status IN ('pending', 'approved') THEN voided_by(status, entry_index, expires_at) END`
)

// InForceSince is the index of the entry that put the catalogue in force. A request that waits with a smaller index is void.
const InForceSince = `coalesce((SELECT max(c.entry_index) FROM catalogue_changes AS c WHERE c.kind = 'applied'), -1)`

// Row is a record as Postgres returns its Columns.
type Row struct {
	ID         string
	EntryIndex int64
	Time       time.Time

	SPIFFEID                         string `db:"spiffe_id"`
	SVIDKind                         string `db:"svid_kind"`
	Thumbprint, Task, Reason         string
	Scope, Authority, Resource       string
	Params                           []byte
	Context                          []byte
	TTLAsked                         int64 `db:"ttl_asked"`
	TTL                              int64
	RequestDigest                    []byte
	IdempotencyKey                   string
	OnBehalfOf                       *string
	OnBehalfGroups, Policies, Clamps []string

	Decision, DecisionCode, Explanation, Catalogue string

	Status, StatusDetail, Actor string
	StatusTime                  time.Time
	ExpiresAt                   *time.Time
	VoidedBy                    int64

	ApprovalGroup, BreakGlass, Canonical, Remembered string
	ApprovalQuorum, Votes, Redemptions               int
	Broken                                           bool
	RedeemedBy, Approves, Parent                     string

	CredentialKind, Audience, KeyID, ClaimsDigest        string
	VaultPath, VaultAccessor, VaultLease, CredentialName string
	SecretDigest                                         []byte
	Leased, Static                                       bool
}

// PageOf reads records until there are limit of them, or until they fill a page. Some records are a thousand times as large
// as others, and any client that may send requests can make them so. err is the error of the query.
func PageOf(rows pgx.Rows, err error, limit int) (broker.Page, error) {
	if err != nil {
		return broker.Page{}, err
	}
	defer rows.Close()
	var page broker.Page
	for size := 0; rows.Next(); {
		if len(page.Records) == limit || size > MaxPageBytes {
			page.Next = page.Records[len(page.Records)-1].Index
			return page, nil
		}
		r, err := pgx.RowToStructByName[Row](rows)
		if err != nil {
			return broker.Page{}, err
		}
		view, err := r.View()
		if err != nil {
			return broker.Page{}, err
		}
		page.Records = append(page.Records, *view)
		size += len(r.Params) + len(r.Reason) + len(r.SPIFFEID) + len(r.Explanation) + len(r.Resource)
	}
	return page, rows.Err()
}

// View returns the record.
func (r *Row) View() (*broker.View, error) {
	id, err := spiffeid.FromString(r.SPIFFEID)
	if err != nil {
		return nil, fmt.Errorf("reading the subject of %s: %w", r.ID, err)
	}
	params, err := DecodeParams(r.Params)
	if err != nil {
		return nil, fmt.Errorf("reading the parameters of %s: %w", r.ID, err)
	}
	said, err := DecodeContext(r.Context, r.Task)
	if err != nil {
		return nil, fmt.Errorf("reading the request context of %s: %w", r.ID, err)
	}
	v := &broker.View{
		ID: r.ID, Index: r.EntryIndex, Time: r.Time.UTC(),
		Subject:        broker.Subject{ID: id, Kind: attest.Kind(r.SVIDKind), Thumbprint: r.Thumbprint},
		RequestContext: said, Scope: r.Scope, Authority: r.Authority, Resource: r.Resource, Params: params, Reason: r.Reason,
		TTLAsked: time.Duration(r.TTLAsked) * time.Second, TTL: time.Duration(r.TTL) * time.Second,
		Decision: r.Decision, DecisionCode: r.DecisionCode, Explanation: r.Explanation,
		Policies: r.Policies, Clamps: r.Clamps, Catalogue: r.Catalogue,
		Status: broker.Status(r.Status), StatusDetail: r.StatusDetail, StatusTime: r.StatusTime.UTC(), Expires: Instant(r.ExpiresAt),
		VoidedBy:      r.VoidedBy,
		ApprovalGroup: r.ApprovalGroup, ApprovalQuorum: r.ApprovalQuorum, BreakGlass: r.BreakGlass, Broken: r.Broken,
		CredentialKind: r.CredentialKind, Audience: r.Audience, KeyID: r.KeyID, ClaimsDigest: r.ClaimsDigest,
		VaultPath: r.VaultPath, Actor: r.Actor, Leased: r.Leased, Static: r.Static,
		Canonical: r.Canonical, Votes: r.Votes, Redemptions: r.Redemptions, RedeemedBy: r.RedeemedBy, Approves: r.Approves, Remembered: r.Remembered,
		Parent: r.Parent,
		Minted: broker.Minted{
			VaultLease: broker.VaultLease{Accessor: r.VaultAccessor, Lease: r.VaultLease}, Name: r.CredentialName,
		},
	}
	copy(v.Minted.Digest[:], r.SecretDigest)
	if r.OnBehalfOf != nil {
		v.User = &scopes.User{ID: *r.OnBehalfOf, Groups: r.OnBehalfGroups}
	}
	copy(v.RequestDigest[:], r.RequestDigest)
	return v, nil
}

// DecodeContext decodes a request context. The task is that of its own column, which limits and searches use. Names match exactly: an
// encoding/json decoder would also take "Task" for "task".
func DecodeContext(raw []byte, task string) (scopes.RequestContext, error) {
	var said scopes.RequestContext
	err := jsonv2.Unmarshal(raw, &said)
	said.Task = task
	return said, err
}

// DecodeParams decodes whole numbers as int64, as a decision has them.
func DecodeParams(raw []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var params map[string]any
	if err := decoder.Decode(&params); err != nil {
		return nil, err
	}
	for name, value := range params {
		params[name] = plain(value)
	}
	return params, nil
}

// plain replaces the numbers in a decoded value.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		real, _ := v.Float64() // the nearest float64 to all other numbers
		return real
	case map[string]any:
		for name, inner := range v {
			v[name] = plain(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = plain(inner)
		}
	}
	return value
}

// Instant returns a time in UTC, which is zero if there is none.
func Instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
