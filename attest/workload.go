package attest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

const (
	workloadRetry = 5 * time.Second

	// After this long without a good update, the connection is made again: on some answers go-spiffe gives up a stream
	// permanently, and would then serve its last bundle for ever.
	workloadRenew = 2 * time.Minute
)

// workload is one Workload API, with the trust domains that are configured to come from it. The API also returns the bundles of
// federated domains; only the bundles of the members are read.
type workload struct {
	addr    string
	members []*held
	started func()
}

func (w *workload) run(ctx context.Context, started func()) {
	w.started = started
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.Errorf("%v", err)
		}
		wait.For(ctx, workloadRetry)
	}
}

// watch follows one connection until ctx ends or the connection fails.
func (w *workload) watch(ctx context.Context) error {
	options := workloadapi.WithClientOptions(workloadapi.WithAddr(w.addr), workloadapi.WithLogger(w))
	src, err := workloadapi.NewBundleSource(ctx, options)
	if err != nil {
		return fmt.Errorf("connecting to the Workload API: %w", err)
	}
	defer func() { _ = src.Close() }() // the connection is only read from
	tick := time.NewTicker(workloadRenew)
	defer tick.Stop()
	w.update(src)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-src.Updated():
			w.update(src)
		case <-tick.C:
			if w.members[0].failing() > workloadRenew {
				return errors.New("no update from the Workload API")
			}
		}
	}
}

// update copies the current bundles of the Workload API. It withdraws a bundle that the API no longer has.
func (w *workload) update(src *workloadapi.BundleSource) {
	defer w.started()
	for _, h := range w.members {
		// X.509 and JWT authorities arrive in two streams. With the JWT authorities alone, no certificate can be verified.
		_, err := src.GetX509BundleForTrustDomain(h.domain)
		var bundle *spiffebundle.Bundle
		if err == nil {
			bundle, err = src.GetBundleForTrustDomain(h.domain)
		}
		if err != nil {
			h.withdraw(err)
			continue
		}
		h.set(bundle)
	}
}

// Errorf makes workload a go-spiffe logger. That is the only way to learn that a stream broke.
func (w *workload) Errorf(format string, args ...any) {
	defer w.started()
	for _, h := range w.members {
		h.fail(fmt.Errorf(format, args...))
	}
}

// Warnf does nothing.
func (w *workload) Warnf(string, ...any) {}

// Infof does nothing.
func (w *workload) Infof(string, ...any) {}

// Debugf does nothing.
func (w *workload) Debugf(string, ...any) {}
