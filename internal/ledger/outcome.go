package ledger

import (
	"context"
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

// RecordOutcome implements [broker.Ledger]. It also returns broker.ErrNotFound for a record that was never begun.
func (l *Ledger) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	if !slices.Contains(outcomes, out.Status) {
		return fmt.Errorf("%w to %q", broker.ErrNotForward, out.Status)
	}
	if (out.Detail == "") != slices.Contains(plainOutcomes, out.Status) {
		return fmt.Errorf("%w: an outcome needs a code if it was not foreseen, and else has none", record.ErrUnrecordable)
	}
	e, err := newEntry(kindOutcome+string(out.Status), out.ID, out.Time)
	if err != nil {
		return err
	}
	e.alone, e.term = out.ID, out.Term
	e, err = e.with(outcomeBody{
		Version: record.BodyVersion, Kind: e.kind, ID: out.ID, Time: e.time, Status: string(out.Status), Detail: out.Detail,
		Actor: out.Actor, Minted: mintedOf(out.Minted), Term: out.Term,
	})
	if err != nil {
		return err
	}
	_, err = l.append(ctx, e)
	return err
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
