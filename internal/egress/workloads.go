package egress

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// dropWithin bounds the release of the credentials of one sandbox.
const dropWithin = 10 * time.Second

// Workloads is a [workloadapi.X509ContextWatcher] that serves the sandboxes whose identities the gateway gets.
type Workloads struct {
	gateway *Gateway
	cfg     SandboxConfig
	connect func(x509svid.Source) (*client.Client, error)

	mu   sync.Mutex
	byID map[string]*workload
}

// NewWorkloads registers sandboxes with cfg, but each with its own ID, and a client that connect opens with its SVIDs.
func (g *Gateway) NewWorkloads(cfg SandboxConfig, connect func(x509svid.Source) (*client.Client, error)) *Workloads {
	return &Workloads{gateway: g, cfg: cfg, connect: connect, byID: map[string]*workload{}}
}

// workload is one sandbox, with a broker client that authenticates as it.
type workload struct {
	svid    atomic.Pointer[x509svid.SVID]
	broker  *client.Client
	sandbox *Sandbox
}

// GetX509SVID implements [x509svid.Source].
func (w *workload) GetX509SVID() (*x509svid.SVID, error) { return w.svid.Load(), nil }

// Lookup returns the sandbox with a SPIFFE ID, or nil if the Workload API does not give its identity.
func (w *Workloads) Lookup(id string) *Sandbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.byID[id]; one != nil {
		return one.sandbox
	}
	return nil
}

// OnX509ContextUpdate registers new sandboxes. It stops serving those whose identities the Workload API no longer gives.
func (w *Workloads) OnX509ContextUpdate(now *workloadapi.X509Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	given := map[string]bool{}
	for _, svid := range now.SVIDs {
		id := svid.ID.String()
		given[id] = true
		if one := w.byID[id]; one != nil {
			one.svid.Store(svid)
			continue
		}
		one := &workload{}
		one.svid.Store(svid)
		var err error
		if one.broker, err = w.connect(one); err != nil {
			continue
		}
		cfg := w.cfg
		cfg.ID, cfg.Broker = id, one.broker
		if one.sandbox, err = w.gateway.Sandbox(cfg); err == nil {
			w.byID[id] = one
		}
	}
	for id, one := range w.byID {
		if !given[id] {
			delete(w.byID, id)
			go w.drop(one)
		}
	}
}

// OnX509ContextWatchError does nothing: the last identities stay in use until they expire.
func (w *Workloads) OnX509ContextWatchError(error) {}

func (w *Workloads) drop(one *workload) {
	ctx, cancel := context.WithTimeout(context.Background(), dropWithin)
	defer cancel()
	w.gateway.Drop(ctx, one.sandbox)
	one.broker.Close()
}

// Close drops all sandboxes.
func (w *Workloads) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var dropped sync.WaitGroup
	for _, one := range w.byID {
		dropped.Go(func() { w.drop(one) })
	}
	dropped.Wait()
	clear(w.byID)
}
