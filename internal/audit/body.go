package audit

import (
	"cmp"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// body is an entry's body. Each kind of entry has some of the fields.
type body struct {
	Version int     `json:"version"`
	Kind    string  `json:"kind"`
	ID      string  `json:"id"`
	Time    string  `json:"time"`
	Status  string  `json:"status"`
	Detail  string  `json:"detail"`
	Expires *string `json:"expires"`
	At      *string `json:"at"`

	Subject struct {
		SPIFFEID    string `json:"spiffe_id"`
		TrustDomain string `json:"trust_domain"`
		SVID        string `json:"svid"`
		Thumbprint  string `json:"thumbprint"`
	} `json:"subject"`
	Request struct {
		Scope          string         `json:"scope"`
		Task           string         `json:"task"`
		Reason         string         `json:"reason"`
		Digest         string         `json:"digest"`
		Params         jsontext.Value `json:"params"`
		TTL            int64          `json:"ttl"`
		IdempotencyKey *string        `json:"idempotency_key"`
		JKT            *string        `json:"jkt"`
		// Others are the members of the request context besides the task.
		Others jsontext.Value `json:",embed"`
	} `json:"request"`
	Decision struct {
		Outcome     string         `json:"outcome"`
		Code        string         `json:"code"`
		Explanation string         `json:"explanation"`
		Authority   string         `json:"authority"`
		Resource    string         `json:"resource"`
		Catalogue   string         `json:"catalogue"`
		Params      jsontext.Value `json:"params"`
		TTL         int64          `json:"ttl"`
		Clamps      []struct {
			Bound string `json:"bound"`
		} `json:"clamps"`
		Policies []string `json:"policies"`
		Approval *struct {
			Group      string  `json:"group"`
			Quorum     int64   `json:"quorum"`
			Canonical  *string `json:"canonical"`
			BreakGlass *string `json:"break_glass"`
		} `json:"approval"`
	} `json:"decision"`
	Approves *struct {
		Request string `json:"request"`
		Hash    string `json:"hash"`
	} `json:"approves"`
	Parent *string `json:"parent"`
	User   *struct {
		ID     string   `json:"id"`
		Groups []string `json:"groups"`
	} `json:"on_behalf_of"`
	Intent *intent `json:"intent"`
	Minted struct {
		Accessor string `json:"accessor"`
		Lease    string `json:"lease"`
		Name     string `json:"name"`
		Digest   string `json:"digest"`
	} `json:"minted"`

	// Actor depends on the kind: in an outcome it is a SPIFFE ID or a person's id, in a command a subject or a person, in a
	// vote a person.
	Actor jsontext.Value `json:"actor"`

	Person struct {
		ID     string   `json:"id"`
		Name   string   `json:"name"`
		Handle string   `json:"handle"`
		Groups []string `json:"groups"`
	} `json:"person"`
	SaidAt  string `json:"said_at"`
	Verdict string `json:"verdict"`
	Covers  string `json:"covers"`
	Of      string `json:"of"`
	Hash    string `json:"hash"`
	Note    string `json:"note"`
	Was     string `json:"was"`
	Votes   int64  `json:"votes"`

	// Calls and LastUsedAt are what a credential's holder reports about its use.
	Calls      int64   `json:"calls"`
	LastUsedAt *string `json:"last_used_at"`

	// Task and Report are what a sandbox's egress gateway reports about the calls of a task.
	Task   string      `json:"task"`
	Report *callReport `json:"report"`

	Credential string `json:"credential"`
	Assertion  string `json:"assertion"`
	PublicKey  string `json:"public_key"`
	Name       string `json:"name"`
	Site       string `json:"relying_party"`
	Algorithm  int64  `json:"algorithm"`
	SignCount  int64  `json:"sign_count"`
	Passkey    string `json:"passkey"`

	Target struct {
		SPIFFEID string `json:"spiffe_id"`
		Task     string `json:"task"`
	} `json:"target"`
	Reason string `json:"reason"`
	Lifts  string `json:"lifts"` // older entries lack it

	Digest   string `json:"digest"`
	Base     string `json:"base"`
	Number   int64  `json:"number"`
	Proposal string `json:"proposal"`
	Proposer string `json:"proposer"`
}

// intent is what was to be made.
type intent struct {
	Kind         string  `json:"kind"`
	Audience     *string `json:"audience"`
	KeyID        *string `json:"key_id"`
	ClaimsDigest *string `json:"claims_digest"`
	OneShot      bool    `json:"one_shot"`
	StatusList   struct {
		ID    *string `json:"id"`
		Index *int64  `json:"index"`
	} `json:"status_list"`
	Grant struct {
		Path   string `json:"path"`
		Leased bool   `json:"leased"`
		Static bool   `json:"static"`
	} `json:"grant"`
}

// actor returns the id of the person or the SPIFFE ID of the workload that acted, or Null if the entry names neither.
func (b *body) actor() string {
	if len(b.Actor) == 0 {
		return Null
	}
	var name string
	if b.Actor.Kind() == '"' {
		_ = json.Unmarshal(b.Actor, &name)
		return cmp.Or(name, Null)
	}
	var who struct {
		SPIFFEID string `json:"spiffe_id"`
		ID       string `json:"id"`
	}
	_ = json.Unmarshal(b.Actor, &who)
	if who.SPIFFEID != "" {
		return who.SPIFFEID
	}
	return cmp.Or(who.ID, Null)
}

// begins reports whether the entry begins a record.
func (b *body) begins() bool {
	return b.Kind == "request.denied" || b.Kind == "request.pending" || b.Kind == "issuance.intent"
}

// beginsRightly reports whether the entry's kind and state are the ones that its decision leads to.
func (b *body) beginsRightly() bool {
	switch b.Decision.Outcome {
	case "deny":
		return b.Kind == "request.denied" && b.Status == "denied"
	case "pending":
		return b.Kind == "request.pending" && b.Status == "pending"
	case "allow":
		if b.Kind != "issuance.intent" || b.Intent == nil {
			return false
		}
		switch b.Intent.Kind {
		case "none": // the record is the permit: there is nothing to make, and nothing that it comes from
			return b.Status == "issued" && b.Parent == nil && b.Request.JKT == nil && *b.Intent == intent{Kind: "none"}
		case "jwt":
			return b.Status == "issued"
		}
		return b.Status == "intent"
	}
	return false
}

func pointed(s *string) string {
	if s == nil {
		return Null
	}
	return *s
}

// instant formats a time as rows and bodies do.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
