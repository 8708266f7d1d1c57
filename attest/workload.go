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

	// After this long without a good update the connection is made anew: go-spiffe gives up a stream for good on
	// some answers, and would then serve what it last had for ever.
	workloadRenew = 2 * time.Minute
)

// workload is one Workload API, and the trust domains that are configured to come from it. It hands out the bundles
// of federated domains too; of those only the members are read.
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

// watch follows one connection until ctx ends or the connection is no good.
func (w *workload) watch(ctx context.Context) error {
	options := workloadapi.WithClientOptions(workloadapi.WithAddr(w.addr), workloadapi.WithLogger(w))
	src, err := workloadapi.NewBundleSource(ctx, options)
	if err != nil {
		return fmt.Errorf("connecting to the Workload API: %w", err)
	}
	defer func() { _ = src.Close() }() // it closes a connection that is only read from
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

// update copies what the Workload API has now. A bundle that is no longer there is withdrawn.
func (w *workload) update(src *workloadapi.BundleSource) {
	defer w.started()
	for _, h := range w.members {
		// X.509 and JWT authorities come in two streams. While only those for JWTs are here, nobody knows whether a certificate is good.
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

// Errorf makes workload a go-spiffe logger, which is the only way to hear that a stream broke.
func (w *workload) Errorf(format string, args ...any) {
	defer w.started()
	for _, h := range w.members {
		h.fail(fmt.Errorf(format, args...))
	}
}

// Warnf is not of interest.
func (w *workload) Warnf(string, ...any) {}

// Infof is not of interest.
func (w *workload) Infof(string, ...any) {}

// Debugf is not of interest.
func (w *workload) Debugf(string, ...any) {}
