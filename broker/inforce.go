package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

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

// reload loads the catalogue in force. than is the digest of the catalogue that the caller used. If this replica no longer uses
// that catalogue, another caller has already reloaded, and reload does nothing.
func (b *Broker) reload(ctx context.Context, than string) error {
	b.inForce.mu.Lock()
	defer b.inForce.mu.Unlock()
	if b.catalogue().Digest() != than {
		return nil
	}
	head, err := b.cfg.Catalogues.InForce(ctx)
	if err != nil || head.Version == 0 || head.Digest == than {
		return err
	}
	catalogue, err := loadKept(ctx, b.cfg.Catalogues, head.Digest)
	if err != nil {
		return err
	}
	b.inForce.loaded.Store(catalogue)
	b.cfg.Log.InfoContext(ctx, "catalogue loaded", "digest", head.Digest, "version", head.Version, "scopes", len(catalogue.Scopes()))
	return nil
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
		head, err = applyFirst(ctx, store, CatalogueStep{
			Time: now.UTC(), Becomes: CatalogueApplied, Digest: configured.Digest(), Version: 1, Files: files,
			Reason: "first start of Brevet",
		})
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

func applyFirst(ctx context.Context, store Catalogues, step CatalogueStep) (CatalogueVersion, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return CatalogueVersion{}, fmt.Errorf("making an id: %w", err)
	}
	step.ID = id.String()
	if err := store.ChangeCatalogue(ctx, step); err != nil && !errors.Is(err, ErrOvertaken) {
		return CatalogueVersion{}, err
	}
	return store.InForce(ctx)
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
