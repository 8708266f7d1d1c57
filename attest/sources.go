package attest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// MaxStale is how long the last good bundle stays in use after its source begins to fail. An attacker who blocks a source can keep
// a removed authority in use for that long, so do not make it longer. If it were much shorter, a broken endpoint would soon lock
// out the domain's workloads.
const MaxStale = 24 * time.Hour

// startWait is how long Open waits for slow sources. They keep trying after that.
const startWait = 5 * time.Second

// BundleSpec says where the bundle of one trust domain comes from. Exactly one of the sources is set.
type BundleSpec struct {
	TrustDomain spiffeid.TrustDomain
	// WorkloadAPI is the address of a SPIFFE Workload API: unix:///path or tcp://ip:port.
	WorkloadAPI string
	// File is the path of a bundle in the SPIFFE bundle format. It is read again when it changes.
	File string
	// Endpoint is a SPIFFE federation bundle endpoint.
	Endpoint *EndpointSpec
}

// BundleStatus is the state of one source.
type BundleStatus struct {
	TrustDomain spiffeid.TrustDomain
	// Source names the source, as in "file /etc/brevet/acme.json".
	Source string
	// Available reports whether SVIDs of the trust domain can be verified now.
	Available bool
	// Sequence is the bundle's spiffe_sequence, 0 if it has none.
	Sequence uint64
	// Fetched is when the source last supplied a bundle; the zero time if never.
	Fetched time.Time
	// X509Authorities and JWTAuthorities are the numbers of keys of each kind in the bundle.
	X509Authorities, JWTAuthorities int
	// Expires is when the last of the X.509 authorities expires; the zero time if there is none.
	Expires time.Time
	// Err is the current error of the source, and "" if it works. Since is when the source began to fail; the zero time if it
	// works.
	Err   string
	Since time.Time
	// Until is when the bundle expires unless the source works again; the zero time while the source works.
	Until time.Time
}

// source keeps the bundle of one trust domain.
type source interface {
	bundle() (*spiffebundle.Bundle, error)
	status() BundleStatus
}

// Sources holds the bundles of the configured trust domains. Each source supplies only its own domain: a Workload API that also
// returns the bundles of federated domains cannot speak for a domain that is configured elsewhere.
type Sources struct {
	byDomain map[spiffeid.TrustDomain]source
	domains  []spiffeid.TrustDomain
	stop     context.CancelFunc
	running  sync.WaitGroup
}

var _ Bundles = (*Sources)(nil)

// Open starts a source for each spec. A local error, such as a file that cannot be read, makes it fail. A remote error does not:
// one trust domain whose endpoint is down must not stop the others. ctx bounds the start only; the sources run until Close.
func Open(ctx context.Context, specs []BundleSpec, log *slog.Logger, now func() time.Time) (*Sources, error) {
	if err := checkSpecs(specs); err != nil {
		return nil, err
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Sources{byDomain: make(map[spiffeid.TrustDomain]source, len(specs)), stop: stop}
	// runs are the loops of sources. Each calls started after its first attempt, whether or not that succeeded.
	var runs []func(ctx context.Context, started func())
	workloads := make(map[string]*workload)
	for _, spec := range specs {
		td := spec.TrustDomain
		s.domains = append(s.domains, td)
		switch {
		case spec.File != "":
			f := &file{held: newHeld(td, "file "+spec.File, log, now), path: spec.File}
			if _, err := f.bundle(); err != nil { // an error at the start is a mistake in the configuration
				stop()
				return nil, fmt.Errorf("attest: %w", err)
			}
			s.byDomain[td] = f
		case spec.Endpoint != nil:
			e, err := newEndpoint(*spec.Endpoint, newHeld(td, spec.Endpoint.Profile+" "+spec.Endpoint.URL, log, now))
			if err != nil {
				stop()
				return nil, err
			}
			s.byDomain[td] = e
			runs = append(runs, e.run)
		default:
			w, ok := workloads[spec.WorkloadAPI]
			if !ok {
				w = &workload{addr: spec.WorkloadAPI}
				workloads[spec.WorkloadAPI] = w
				runs = append(runs, w.run)
			}
			h := newHeld(td, "workload API "+spec.WorkloadAPI, log, now)
			w.members = append(w.members, h)
			s.byDomain[td] = h
		}
	}
	started := make([]chan struct{}, len(runs))
	for i, run := range runs {
		started[i] = make(chan struct{})
		s.running.Go(func() { run(runCtx, sync.OnceFunc(func() { close(started[i]) })) })
	}
	enough := time.After(startWait)
	for _, one := range started {
		select {
		case <-one:
		case <-enough:
			return s, nil
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("opening bundle sources: %w", ctx.Err()), s.Close())
		}
	}
	return s, nil
}

func checkSpecs(specs []BundleSpec) error {
	if len(specs) == 0 {
		return errors.New("attest: no bundle sources")
	}
	seen := make(map[spiffeid.TrustDomain]bool, len(specs))
	for _, spec := range specs {
		td := spec.TrustDomain
		if td.IsZero() || seen[td] {
			return fmt.Errorf("attest: trust domain %q is empty or configured twice", td)
		}
		seen[td] = true
		n := 0
		for _, set := range []bool{spec.WorkloadAPI != "", spec.File != "", spec.Endpoint != nil} {
			if set {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("attest: %s needs exactly one of Workload API, file and endpoint, not %d", td, n)
		}
		if spec.WorkloadAPI == "" {
			continue
		}
		if err := workloadapi.ValidateAddress(spec.WorkloadAPI); err != nil {
			return fmt.Errorf("attest: Workload API of %s: %w", td, err)
		}
	}
	return nil
}

// GetX509BundleForTrustDomain returns the X.509 authorities of td. It returns an error if td is not configured or has no bundle
// now.
func (s *Sources) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	bundle, err := s.bundle(td)
	if err != nil {
		return nil, err
	}
	return bundle.X509Bundle(), nil
}

// GetJWTBundleForTrustDomain returns the JWT authorities of td. It returns an error if td is not configured or has no bundle now.
func (s *Sources) GetJWTBundleForTrustDomain(td spiffeid.TrustDomain) (*jwtbundle.Bundle, error) {
	bundle, err := s.bundle(td)
	if err != nil {
		return nil, err
	}
	return bundle.JWTBundle(), nil
}

func (s *Sources) bundle(td spiffeid.TrustDomain) (*spiffebundle.Bundle, error) {
	src, ok := s.byDomain[td]
	if !ok {
		return nil, fmt.Errorf("no bundle source for %s", td)
	}
	return src.bundle()
}

// Status returns the state of each source, in the order of the specs.
func (s *Sources) Status() []BundleStatus {
	all := make([]BundleStatus, 0, len(s.domains))
	for _, td := range s.domains {
		all = append(all, s.byDomain[td].status())
	}
	return all
}

// Close stops the sources and waits for them. Fetched bundles stay readable.
func (s *Sources) Close() error {
	s.stop()
	s.running.Wait()
	return nil
}

const (
	workloadRetry = 5 * time.Second

	// If the source still fails after this time, it connects again. After some errors, go-spiffe closes a stream for good, and its
	// BundleSource would return the last bundle for ever.
	workloadRenew = 2 * time.Minute
)

// workload watches one Workload API for its members: the trust domains whose bundles the configuration takes from this API. The
// API also returns the bundles of federated domains, which workload ignores.
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
		// X.509 and JWT authorities arrive in two streams. Without this check, a bundle with only the JWT authorities could come
		// into use, and no certificate would verify against it.
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
