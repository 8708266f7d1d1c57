package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// mostSteps bounds how often a step is taken anew because others were quicker.
const mostSteps = 8

// CatalogueVersion is the catalogue in force.
type CatalogueVersion struct {
	Version int64 // counts up from 1; 0 when there is none
	Digest  string
	Since   time.Time
	// Actor has applied it; empty when Brevet did at its first start. Reason is free text of the actor.
	Actor, Reason string
}

// CatalogueState is what became of a catalogue that somebody wanted.
type CatalogueState string

// The states of changes.
const (
	CatalogueProposed   CatalogueState = "proposed"
	CatalogueApplied    CatalogueState = "applied"
	CatalogueRejected   CatalogueState = "rejected"
	CatalogueSuperseded CatalogueState = "superseded" // another was applied first
)

// CatalogueStep is one step of a change, which is an entry of its own.
type CatalogueStep struct {
	ID      string // a UUIDv7
	Time    time.Time
	Becomes CatalogueState // all but CatalogueSuperseded, which follows from others
	// Digest is that of the catalogue, Base of the one in force before, and Version the one that it is or would be.
	Digest, Base string
	Version      int64
	// Actor is a SPIFFE ID or the id of a person; empty for the first of all.
	Actor, Reason string
	// Proposal is the id of the change that is decided on, and Proposer who made it; empty when none is.
	Proposal, Proposer string
	// Files are those of the catalogue. They may be left out when they are known.
	Files []scopes.File
}

// CatalogueChange is a catalogue that somebody wanted in the place of Base, and what became of that.
type CatalogueChange struct {
	ID           string
	Digest, Base string
	Version      int64 // that it has when it is applied, and else would have had
	State        CatalogueState
	Actor        string
	Reason       string
	Time         time.Time
	// Decider has approved or rejected what was proposed, at DecidedAt and for DecidedReason.
	Decider, DecidedReason string
	DecidedAt              time.Time
}

// CatalogueOrder is what an admin wants to be in force.
type CatalogueOrder struct {
	Actor  string
	Base   string // the digest that the admin takes to be in force
	Files  []scopes.File
	Reason string
}

// CatalogueVerdict is what another admin says to a proposal.
type CatalogueVerdict struct {
	Actor   string
	Base    string // as in CatalogueOrder
	Digest  string // of what was proposed
	Verdict Verdict
	Reason  string
}

// ApplyCatalogue puts a catalogue in the place of the base, or proposes that where a second admin has to agree. It is
// scopes.Problems when it is none, and ErrOtherCatalogue when the base is not in force. Once it is applied, nothing is
// issued by another, on any replica. To apply what is in force changes nothing.
func (b *Broker) ApplyCatalogue(ctx context.Context, order CatalogueOrder) (CatalogueChange, []string, error) {
	catalogue, err := scopes.Load(order.Files)
	if err == nil {
		err = checkText(order.Files)
	}
	if err != nil {
		return CatalogueChange{}, nil, err
	}
	for range mostSteps {
		head, err := b.headIs(ctx, order.Base)
		if err != nil {
			return CatalogueChange{}, nil, err
		}
		if catalogue.Digest() == head.Digest {
			b.waitForReplicas(ctx) // whoever has just applied it may have died before it was confirmed
			return CatalogueChange{
				Digest: head.Digest, Version: head.Version, State: CatalogueApplied, Actor: head.Actor, Reason: head.Reason, Time: head.Since,
			}, nil, nil
		}
		change, err := b.change(ctx, head, catalogue.Digest(), order)
		if errors.Is(err, ErrOvertaken) {
			continue
		}
		return change, b.newPolicies(ctx, head.Digest, catalogue), err
	}
	return CatalogueChange{}, nil, ErrOvertaken
}

// headIs returns what is in force when that is the base.
func (b *Broker) headIs(ctx context.Context, base string) (CatalogueVersion, error) {
	if b.cfg.Catalogues == nil {
		return CatalogueVersion{}, ErrOtherCatalogue
	}
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err != nil {
		return CatalogueVersion{}, fmt.Errorf("reading which catalogue is in force: %w", err)
	}
	if head.Version == 0 || head.Digest != base {
		return CatalogueVersion{}, ErrOtherCatalogue
	}
	return head, nil
}

// change takes the one step of an order, unless it is proposed already.
func (b *Broker) change(ctx context.Context, head CatalogueVersion, digest string, order CatalogueOrder) (CatalogueChange, error) {
	step := CatalogueStep{
		Becomes: CatalogueApplied, Digest: digest, Base: head.Digest, Version: head.Version + 1,
		Actor: order.Actor, Reason: order.Reason, Files: order.Files,
	}
	if b.cfg.SecondAdmin {
		open, err := b.cfg.Catalogues.Proposal(ctx, digest)
		if !errors.Is(err, ErrNotFound) {
			return open, err
		}
		step.Becomes = CatalogueProposed
	}
	if err := b.takeStep(ctx, &step); err != nil {
		return CatalogueChange{}, err
	}
	return CatalogueChange{
		ID: step.ID, Digest: digest, Base: head.Digest, Version: step.Version, State: step.Becomes,
		Actor: order.Actor, Reason: order.Reason, Time: step.Time,
	}, nil
}

// takeStep commits a step. Other replicas learn of it by what the ledger does not take from them any more, and those that let
// calls pass from memory are waited for.
func (b *Broker) takeStep(ctx context.Context, step *CatalogueStep) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("making an id: %w", err)
	}
	step.ID, step.Time = id.String(), b.cfg.Now().UTC().Truncate(time.Microsecond)
	if err := b.cfg.Catalogues.ChangeCatalogue(ctx, *step); err != nil {
		return fmt.Errorf("recording a change of the catalogue: %w", err)
	}
	if step.Becomes == CatalogueApplied {
		b.waitForReplicas(ctx)
		if err := b.reload(ctx, b.catalogue().Digest()); err != nil {
			b.cfg.Log.WarnContext(ctx, "catalogue in force not read", "error", err)
		}
	}
	return nil
}

// newPolicies are the names of Vault's policies that a catalogue needs and the one before did not.
func (b *Broker) newPolicies(ctx context.Context, before string, after *scopes.Catalogue) []string {
	var had []scopes.VaultPolicy
	// What cannot be loaded here had none that can be told.
	if catalogue, err := loadKept(ctx, b.cfg.Catalogues, before); err == nil {
		had = catalogue.VaultPolicies()
	}
	var names []string
	for _, p := range after.VaultPolicies() {
		if !slices.ContainsFunc(had, func(old scopes.VaultPolicy) bool { return old.Name == p.Name }) {
			names = append(names, p.Name)
		}
	}
	return names
}

// DecideCatalogue approves or rejects a proposal. ErrNotFound when it is not open. Who has proposed it can reject it, and
// not approve it: that is ErrOwnProposal.
func (b *Broker) DecideCatalogue(ctx context.Context, v CatalogueVerdict) (CatalogueChange, error) {
	for range mostSteps {
		head, err := b.headIs(ctx, v.Base)
		if err != nil {
			return CatalogueChange{}, err
		}
		open, err := b.cfg.Catalogues.Proposal(ctx, v.Digest)
		if err != nil {
			return CatalogueChange{}, err
		}
		step := CatalogueStep{
			Becomes: CatalogueRejected, Digest: open.Digest, Base: head.Digest, Version: open.Version,
			Actor: v.Actor, Reason: v.Reason, Proposal: open.ID, Proposer: open.Actor,
		}
		if v.Verdict == Approve {
			step.Becomes = CatalogueApplied
			if open.Actor == v.Actor {
				return CatalogueChange{}, ErrOwnProposal
			}
			// What was a catalogue when it was proposed may be none to this version.
			if _, err := loadKept(ctx, b.cfg.Catalogues, open.Digest); err != nil {
				return CatalogueChange{}, err
			}
		}
		err = b.takeStep(ctx, &step)
		if errors.Is(err, ErrOvertaken) {
			continue
		}
		open.State, open.Decider, open.DecidedReason, open.DecidedAt = step.Becomes, v.Actor, v.Reason, step.Time
		return open, err
	}
	return CatalogueChange{}, ErrOvertaken
}

// CatalogueInForce returns the catalogue in force with its files; ErrNotFound when none ever was applied.
func (b *Broker) CatalogueInForce(ctx context.Context) (CatalogueVersion, []scopes.File, error) {
	head, err := b.CatalogueHead(ctx)
	if err != nil {
		return head, nil, err
	}
	files, err := keptFiles(ctx, b.cfg.Catalogues, head.Digest)
	return head, files, err
}

// CatalogueHead tells which catalogue is in force; ErrNotFound when none ever was applied.
func (b *Broker) CatalogueHead(ctx context.Context) (CatalogueVersion, error) {
	if b.cfg.Catalogues == nil {
		return CatalogueVersion{}, ErrNotFound
	}
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err == nil && head.Version == 0 {
		err = ErrNotFound
	}
	return head, err
}

// CatalogueFiles returns the files of a catalogue that was proposed or applied, else ErrNotFound.
func (b *Broker) CatalogueFiles(ctx context.Context, digest string) ([]scopes.File, error) {
	if b.cfg.Catalogues == nil {
		return nil, ErrNotFound
	}
	return keptFiles(ctx, b.cfg.Catalogues, digest)
}

// CatalogueChanges lists what became of catalogues, newest first.
func (b *Broker) CatalogueChanges(ctx context.Context, limit int) ([]CatalogueChange, error) {
	if b.cfg.Catalogues == nil {
		return nil, nil
	}
	return b.cfg.Catalogues.CatalogueChanges(ctx, limit)
}

// NeedsSecondAdmin tells whether a catalogue waits for the approval of another admin than the one who brings it.
func (b *Broker) NeedsSecondAdmin() bool { return b.cfg.SecondAdmin }
