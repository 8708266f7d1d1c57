package ledger

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger/record"
)

// outcomeBody is the body of the entries that change a record's status.
type outcomeBody struct {
	Version int         `json:"version"`
	Kind    string      `json:"kind"`
	ID      string      `json:"id"`
	Time    time.Time   `json:"time"`
	Status  string      `json:"status"`
	Detail  string      `json:"detail,omitzero"`
	Actor   string      `json:"actor,omitzero"`
	Minted  *mintedBody `json:"minted,omitempty"`
	Term    int64       `json:"term,omitzero"`
}

type mintedBody struct {
	Accessor string `json:"accessor,omitzero"`
	Lease    string `json:"lease,omitzero"`
	Name     string `json:"name,omitzero"`
	Digest   string `json:"digest,omitzero"`
}

// outcomes are the statuses that a record can move to. plainOutcomes are those of them that have no code for a reason.
var (
	outcomes = []broker.Status{
		broker.StatusIssued, broker.StatusFailed, broker.StatusUnknown, broker.StatusCompensated, broker.StatusRevoking,
		broker.StatusRevoked, broker.StatusReleased, broker.StatusExpired,
		broker.StatusUsed,
	}
	plainOutcomes = []broker.Status{broker.StatusIssued, broker.StatusExpired, broker.StatusUsed}
)

func outcomeEntry(out broker.Outcome) (entry, error) {
	if !slices.Contains(outcomes, out.Status) {
		return entry{}, fmt.Errorf("%w to %q", broker.ErrNotForward, out.Status)
	}
	if (out.Detail == "") != slices.Contains(plainOutcomes, out.Status) {
		return entry{}, fmt.Errorf("%w: an outcome needs a code if it was not foreseen, and else has none", record.ErrUnrecordable)
	}
	e, err := newEntry(kindOutcome+string(out.Status), out.ID, out.Time)
	if err != nil {
		return entry{}, err
	}
	e.alone, e.term = out.ID, out.Term
	return e.with(outcomeBody{
		Version: record.BodyVersion, Kind: e.kind, ID: out.ID, Time: e.time, Status: string(out.Status), Detail: out.Detail,
		Actor: out.Actor, Minted: mintedOf(out.Minted), Term: out.Term,
	})
}

func mintedOf(m *broker.Minted) *mintedBody {
	if m == nil {
		return nil
	}
	body := &mintedBody{Accessor: m.Accessor, Lease: m.Lease, Name: m.Name}
	if m.Digest != [32]byte{} {
		body.Digest = hex.EncodeToString(m.Digest[:])
	}
	return body
}
