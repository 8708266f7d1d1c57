package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/scopes"
)

// maxSteps limits how often a step is retried because another step was faster.
const maxSteps = 8

// CatalogueVersion is the catalogue in force.
type CatalogueVersion struct {
	Version int64 // counts up from 1; 0 if there is none
	Digest  string
	Since   time.Time
	// Actor applied the catalogue. It is empty if Brevet did so at its first start. Reason is free text of the actor.
	Actor, Reason string
}

// CatalogueState is the state of a catalogue change.
type CatalogueState string

// The states of a catalogue change.
const (
	CatalogueProposed   CatalogueState = "proposed"
	CatalogueApplied    CatalogueState = "applied"
	CatalogueRejected   CatalogueState = "rejected"
	CatalogueSuperseded CatalogueState = "superseded" // another was applied first
)

// CatalogueStep is one step of a catalogue change. It has its own ledger entry.
type CatalogueStep struct {
	ID      string // a UUIDv7
	Time    time.Time
	Becomes CatalogueState // any state but CatalogueSuperseded, which follows from other steps
	// Digest is that of the new catalogue, and Base that of the catalogue in force before. Version is the version that the new
	// catalogue has or would have.
	Digest, Base string
	Version      int64
	// Actor is a SPIFFE ID or the ID of a person. It is empty for the very first step.
	Actor, Reason string
	// Proposal is the ID of the proposed change that this step decides, and Proposer its author. Both are empty if there is none.
	Proposal, Proposer string
	// Forced means that the actor insisted, although Vault lacked policies for the new catalogue or did not answer.
	Forced bool
	// Files are the files of the catalogue. They may be omitted if the store has them.
	Files []scopes.File
}

// CatalogueChange is a proposal to replace the catalogue Base, and its outcome.
type CatalogueChange struct {
	ID           string
	Digest, Base string
	Version      int64 // the version that it has if applied, or would have had
	State        CatalogueState
	Actor        string
	Reason       string
	Time         time.Time
	// Decider approved or rejected the proposal, at DecidedAt and for DecidedReason.
	Decider, DecidedReason string
	DecidedAt              time.Time
	// Forced means that the proposal, or the step that applied the catalogue, was forced: see CatalogueStep.
	Forced bool
}

// CatalogueOrder is the catalogue that an admin wants to put in force.
type CatalogueOrder struct {
	Actor  string
	Base   string // digest of the catalogue that the admin believes is in force
	Files  []scopes.File
	Reason string
	Force  bool // apply it even if Vault is not prepared
}

// CatalogueVerdict is another admin's decision on a proposal.
type CatalogueVerdict struct {
	Actor   string
	Base    string // as in CatalogueOrder
	Digest  string // of the proposed catalogue
	Verdict approval.Verdict
	Reason  string
	Force   bool // as in CatalogueOrder
}

// ApplyCatalogue replaces the catalogue base. If a second admin must approve, it only proposes the change. It returns
// scopes.Problems if the catalogue is invalid, and ErrOtherCatalogue if the base is not in force. Once a catalogue is applied, no
// replica issues anything by another one, and requests that people have not decided or whose sandbox has not redeemed them are void.
// Applying the catalogue in force changes nothing. If Vault lacks policies for its new scopes, ApplyCatalogue returns a
// *VaultNotPreparedError, and ErrVaultNotChecked if Vault does not answer, unless the order is forced.
func (b *Broker) ApplyCatalogue(ctx context.Context, order CatalogueOrder) (CatalogueChange, error) {
	catalogue, err := scopes.Load(order.Files)
	if err == nil {
		err = checkText(order.Files)
	}
	if err != nil {
		return CatalogueChange{}, err
	}
	for range maxSteps {
		head, err := b.headIs(ctx, order.Base)
		if err != nil {
			return CatalogueChange{}, err
		}
		if catalogue.Digest() == head.Digest {
			b.cfg.Tokens.WaitForReplicas(ctx) // another replica may have applied it and died before every replica knew
			return CatalogueChange{
				Digest: head.Digest, Version: head.Version, State: CatalogueApplied, Actor: head.Actor, Reason: head.Reason, Time: head.Since,
			}, nil
		}
		step := CatalogueStep{
			Becomes: CatalogueApplied, Digest: catalogue.Digest(), Base: head.Digest, Version: head.Version + 1,
			Actor: order.Actor, Reason: order.Reason, Forced: order.Force, Files: order.Files,
		}
		if err := b.prepareVault(ctx, catalogue, &step); err != nil {
			return CatalogueChange{}, err
		}
		change, err := b.change(ctx, step)
		if errors.Is(err, ErrConcurrentChange) {
			continue
		}
		return change, err
	}
	return CatalogueChange{}, ErrConcurrentChange
}

// headIs returns the catalogue in force. It returns ErrOtherCatalogue if that is not the base.
func (b *Broker) headIs(ctx context.Context, base string) (CatalogueVersion, error) {
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err != nil {
		return CatalogueVersion{}, fmt.Errorf("reading which catalogue is in force: %w", err)
	}
	if head.Version == 0 || head.Digest != base {
		return CatalogueVersion{}, ErrOtherCatalogue
	}
	return head, nil
}

// change commits the step of an order, unless the same catalogue is already proposed.
func (b *Broker) change(ctx context.Context, step CatalogueStep) (CatalogueChange, error) {
	if b.cfg.SecondAdmin {
		open, err := b.cfg.Catalogues.Proposal(ctx, step.Digest)
		if !errors.Is(err, ErrNotFound) {
			return open, err
		}
		step.Becomes = CatalogueProposed
	}
	if err := b.takeStep(ctx, &step); err != nil {
		return CatalogueChange{}, err
	}
	return CatalogueChange{
		ID: step.ID, Digest: step.Digest, Base: step.Base, Version: step.Version, State: step.Becomes,
		Actor: step.Actor, Reason: step.Reason, Time: step.Time, Forced: step.Forced,
	}, nil
}

// takeStep commits a step. If the step applies a catalogue, takeStep waits until no replica still checks calls by an old one that
// it remembers. For new records there is no need to wait: the ledger rejects decisions by an old catalogue.
func (b *Broker) takeStep(ctx context.Context, step *CatalogueStep) error {
	step.ID, step.Time = newID(), b.cfg.Now().UTC().Truncate(time.Microsecond)
	if err := b.cfg.Catalogues.ChangeCatalogue(ctx, *step); err != nil {
		return fmt.Errorf("recording a change of the catalogue: %w", err)
	}
	if step.Becomes == CatalogueApplied {
		b.cfg.Tokens.WaitForReplicas(ctx)
		if err := b.reload(ctx, b.catalogue().Digest()); err != nil {
			b.cfg.Log.WarnContext(ctx, "catalogue in force not read", "error", err)
		}
	}
	return nil
}

// prepareVault sets up Vault for the catalogue of a step, if this broker may, and checks that Vault has the policies that the base did not
// need. If the step is forced, a failure is only logged. Afterwards the step is forced only if something was wrong.
func (b *Broker) prepareVault(ctx context.Context, catalogue *scopes.Catalogue, step *CatalogueStep) error {
	var err error
	if b.cfg.Prepare != nil {
		err = b.cfg.Prepare(ctx, catalogue)
	}
	if err == nil {
		err = b.checkPolicies(ctx, step.Base, catalogue)
	}
	if err != nil && !errors.Is(err, ErrVaultNotPrepared) {
		err = fmt.Errorf("%w: %w", ErrVaultNotChecked, err)
	}
	forced := step.Forced
	step.Forced = forced && err != nil
	if !forced || err == nil {
		return err
	}
	b.cfg.Log.WarnContext(ctx, "catalogue forced", "digest", step.Digest, "actor", step.Actor, "error", err)
	return nil
}

// checkPolicies asks Vault for the policies that a catalogue needs and the one before did not.
func (b *Broker) checkPolicies(ctx context.Context, before string, after *scopes.Catalogue) error {
	needs := after.VaultPolicies()
	// A catalogue that cannot be loaded counts as one without policies.
	if catalogue, err := loadKept(ctx, b.cfg.Catalogues, before); err == nil {
		had := catalogue.VaultPolicies()
		needs = slices.DeleteFunc(needs, func(p scopes.VaultPolicy) bool { return slices.Contains(had, p) })
	}
	if len(needs) == 0 {
		return nil
	}
	names := make([]string, len(needs))
	for i, p := range needs {
		names[i] = p.Name
	}
	missing, err := b.cfg.Minter.MissingPolicies(ctx, names)
	if err != nil || len(missing) == 0 {
		return err
	}
	return &VaultNotPreparedError{Missing: slices.DeleteFunc(needs, func(p scopes.VaultPolicy) bool { return !slices.Contains(missing, p.Name) })}
}

// DecideCatalogue approves or rejects a proposal. It returns ErrNotFound if the proposal is not open. The proposer may reject the
// proposal, but not approve it: that returns ErrOwnProposal.
func (b *Broker) DecideCatalogue(ctx context.Context, v CatalogueVerdict) (CatalogueChange, error) {
	for range maxSteps {
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
			Forced: v.Force && v.Verdict == approval.Approve,
		}
		if v.Verdict == approval.Approve {
			step.Becomes = CatalogueApplied
			if open.Actor == v.Actor {
				return CatalogueChange{}, ErrOwnProposal
			}
			// A newer version of Brevet may not accept a catalogue that was valid when it was proposed.
			catalogue, err := loadKept(ctx, b.cfg.Catalogues, open.Digest)
			if err == nil {
				err = b.prepareVault(ctx, catalogue, &step)
			}
			if err != nil {
				return CatalogueChange{}, err
			}
		}
		err = b.takeStep(ctx, &step)
		if errors.Is(err, ErrConcurrentChange) {
			continue
		}
		open.State, open.Decider, open.DecidedReason, open.DecidedAt = step.Becomes, v.Actor, v.Reason, step.Time
		open.Forced = open.Forced || step.Forced
		return open, err
	}
	return CatalogueChange{}, ErrConcurrentChange
}

// CatalogueInForce returns the catalogue in force with its files. It returns ErrNotFound if none was ever applied.
func (b *Broker) CatalogueInForce(ctx context.Context) (CatalogueVersion, []scopes.File, error) {
	head, err := b.CatalogueHead(ctx)
	if err != nil {
		return head, nil, err
	}
	files, err := keptFiles(ctx, b.cfg.Catalogues, head.Digest)
	return head, files, err
}

// CatalogueHead returns the version in force. It returns ErrNotFound if none was ever applied.
func (b *Broker) CatalogueHead(ctx context.Context) (CatalogueVersion, error) {
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err == nil && head.Version == 0 {
		err = ErrNotFound
	}
	return head, err
}

// OpenRequests counts the requests that a change of the catalogue would make void.
func (b *Broker) OpenRequests(ctx context.Context) (int, error) {
	return b.cfg.Catalogues.OpenRequests(ctx)
}

// CatalogueFiles returns the files of a proposed or applied catalogue. It returns ErrNotFound if there is none.
func (b *Broker) CatalogueFiles(ctx context.Context, digest string) ([]scopes.File, error) {
	return keptFiles(ctx, b.cfg.Catalogues, digest)
}

// CatalogueChanges lists catalogue changes, newest first.
func (b *Broker) CatalogueChanges(ctx context.Context, limit int) ([]CatalogueChange, error) {
	return b.cfg.Catalogues.CatalogueChanges(ctx, limit)
}

// NeedsSecondAdmin reports whether an admin other than the author must approve each catalogue.
func (b *Broker) NeedsSecondAdmin() bool { return b.cfg.SecondAdmin }

// followEvery is how often a replica checks whether another has applied a catalogue. This makes the first request after a change
// faster. Correctness does not depend on it: the ledger refuses a decision by an old catalogue.
const followEvery = 500 * time.Millisecond

// catalogueInForce holds the latest catalogue that this replica knows to be applied.
type catalogueInForce struct {
	mu     sync.Mutex // held during a load
	loaded atomic.Pointer[scopes.Catalogue]
}

// catalogue returns the catalogue to decide by.
func (b *Broker) catalogue() *scopes.Catalogue {
	if loaded := b.inForce.loaded.Load(); loaded != nil {
		return loaded
	}
	return b.cfg.Catalogue()
}

// Scopes returns the scopes of the catalogue that this replica decides by.
func (b *Broker) Scopes() []*scopes.Scope { return b.catalogue().Scopes() }

// reload loads the catalogue in force. used is the digest of the catalogue that the caller used. If this replica no longer uses
// that catalogue, another caller has already reloaded, and reload does nothing.
func (b *Broker) reload(ctx context.Context, used string) error {
	b.inForce.mu.Lock()
	defer b.inForce.mu.Unlock()
	if b.catalogue().Digest() != used {
		return nil
	}
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err != nil || head.Version == 0 || head.Digest == used {
		return err
	}
	catalogue, err := loadKept(ctx, b.cfg.Catalogues, head.Digest)
	if err != nil {
		return err
	}
	b.inForce.loaded.Store(catalogue)
	b.cfg.Log.InfoContext(ctx, "catalogue loaded", "digest", head.Digest, "version", head.Version, "scopes", len(catalogue.Scopes()))
	b.checkKeys(ctx, catalogue)
	return nil
}

// checkKeys warns about each algorithm of the catalogue with which no key signs now. Until there is one, requests for the scopes with
// this algorithm fail, and all others work.
func (b *Broker) checkKeys(ctx context.Context, catalogue *scopes.Catalogue) {
	for _, algorithm := range catalogue.Algorithms() {
		if _, err := b.cfg.Minter.Key(algorithm); err != nil {
			b.cfg.Log.WarnContext(ctx, "no key signs the tokens of some scopes", "algorithm", algorithm, "error", err)
		}
	}
}

// loadKept loads a catalogue from the store.
func loadKept(ctx context.Context, store Catalogues, digest string) (*scopes.Catalogue, error) {
	files, err := keptFiles(ctx, store, digest)
	if err != nil {
		return nil, err
	}
	catalogue, err := scopes.Load(files)
	if err != nil {
		return nil, fmt.Errorf("catalogue %s in the ledger is not valid for this version of Brevet: %w", digest, err)
	}
	return catalogue, nil
}

// keptFiles reads the files of a catalogue from the store and checks them against the digest. So Brevet neither shows nor uses
// files that differ from that catalogue.
func keptFiles(ctx context.Context, store Catalogues, digest string) ([]scopes.File, error) {
	files, err := store.CatalogueFiles(ctx, digest)
	if err != nil {
		return nil, err
	}
	if scopes.Digest(files) != digest {
		return nil, fmt.Errorf("%w: the files of catalogue %s do not match its digest", ErrLedgerUnavailable, digest)
	}
	return files, nil
}

// FollowCatalogue keeps this replica on the catalogue in force until ctx ends, and returns the error of ctx. Requests do not
// depend on it: without it, the first request after a change is decided twice.
func (b *Broker) FollowCatalogue(ctx context.Context) error {
	b.checkKeys(ctx, b.catalogue())
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := b.reload(ctx, b.catalogue().Digest())
		if err != nil && !failing {
			b.cfg.Log.WarnContext(ctx, "catalogue in force not read", "error", err)
		}
		failing = err != nil
	}
}

// OpenCatalogue returns the catalogue to start with: the one in force. If none was ever applied, it applies the given files as
// the first catalogue. Replicas that start at the same time agree on one. If files differ from the catalogue in force,
// OpenCatalogue only logs a warning.
func OpenCatalogue(ctx context.Context, store Catalogues, files []scopes.File, now time.Time, log *slog.Logger) (*scopes.Catalogue, error) {
	configured, invalid := scopes.Load(files)
	head, err := store.InForce(ctx)
	if err == nil && head.Version == 0 {
		if invalid == nil {
			invalid = checkText(files)
		}
		if invalid != nil {
			return nil, fmt.Errorf("loading the first catalogue: %w", invalid)
		}
		err = store.ChangeCatalogue(ctx, CatalogueStep{
			ID: newID(), Time: now.UTC(), Becomes: CatalogueApplied, Digest: configured.Digest(), Version: 1, Files: files,
			Reason: "first start of Brevet",
		})
		if err == nil || errors.Is(err, ErrConcurrentChange) {
			head, err = store.InForce(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading which catalogue is in force: %w", err)
	}
	if invalid == nil && configured.Digest() == head.Digest {
		return configured, nil
	}
	if invalid != nil {
		log.WarnContext(ctx, "configured catalogue cannot be loaded and is not the one in force", "in_force", head.Digest, "error", invalid)
	} else {
		log.WarnContext(ctx, "configured catalogue is not the one in force: compare and apply it with brevet catalog plan and brevet catalog apply",
			"in_force", head.Digest, "version", head.Version, "configured", configured.Digest())
	}
	return loadKept(ctx, store, head.Digest)
}

// checkText rejects files that JSON cannot represent: catalogues are transferred as JSON.
func checkText(files []scopes.File) error {
	var problems scopes.Problems
	for _, f := range files {
		if !utf8.Valid(f.Data) || strings.ContainsRune(string(f.Data), 0) {
			problems = append(problems, scopes.Problem{File: f.Name, What: "is not plain UTF-8 text"})
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}
