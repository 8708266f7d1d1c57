package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// serveProven serves all sandboxes whose identities the Workload API also gives to the gateway. They authenticate with
// their SVIDs.
func (c *EgressServeCmd) serveProven(ctx context.Context, gateway *egress.Gateway, cfg egress.SandboxConfig) error {
	identity := client.NewIdentity(c.SVID)
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(c.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return c.noSVID(err)
	}
	defer func() { _ = source.Close() }()
	if err := identity.Err(); err != nil { // the sandboxes' identities come too, and none of them is the gateway's
		return withOption(err, "--svid or BREVET_SVID")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.MTLS)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", c.MTLS, err)
	}
	secured := tlsconfig.MTLSServerConfig(source, source, tlsconfig.AuthorizeAny())
	// The certificate of a client that resumes a session would not be verified.
	secured.SessionTicketsDisabled, secured.MinVersion = true, tls.VersionTLS12
	all := &sandboxes{gateway: gateway, cfg: cfg, flags: c.CallerFlags, source: source, byID: map[string]*holder{}}
	defer all.close()
	watched := make(chan error, 1)
	go func() { watched <- workloadapi.WatchX509Context(ctx, all, insistent(c.WorkloadAPI)...) }()
	err = gateway.Serve(ctx, tls.NewListener(listener, secured), egress.Proven(source, time.Now, all.lookup))
	return errors.Join(err, ended(ctx, <-watched))
}

// sandboxes are the sandboxes whose identities the Workload API currently gives to the gateway.
type sandboxes struct {
	gateway *egress.Gateway
	cfg     egress.SandboxConfig
	flags   CallerFlags
	source  *workloadapi.X509Source

	mu   sync.Mutex
	byID map[string]*holder
}

// holder is one sandbox, with a broker client that authenticates as it.
type holder struct {
	svid    atomic.Pointer[x509svid.SVID]
	broker  *client.Client
	sandbox *egress.Sandbox
}

// GetX509SVID implements [x509svid.Source].
func (h *holder) GetX509SVID() (*x509svid.SVID, error) { return h.svid.Load(), nil }

func (s *sandboxes) lookup(id string) *egress.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.byID[id]; h != nil {
		return h.sandbox
	}
	return nil
}

// OnX509ContextUpdate implements [workloadapi.X509ContextWatcher]. It stops serving identities that the Workload API no
// longer gives.
func (s *sandboxes) OnX509ContextUpdate(now *workloadapi.X509Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	given := map[string]bool{}
	for _, svid := range now.SVIDs {
		id := svid.ID.String()
		given[id] = true
		if h := s.byID[id]; h != nil {
			h.svid.Store(svid)
			continue
		}
		if h, err := s.hold(svid); err == nil {
			s.byID[id] = h
		}
	}
	for id, h := range s.byID {
		if !given[id] {
			delete(s.byID, id)
			go h.end(s.gateway)
		}
	}
}

// OnX509ContextWatchError implements [workloadapi.X509ContextWatcher]. The last identities stay in use until they expire.
func (s *sandboxes) OnX509ContextWatchError(error) {}

func (s *sandboxes) hold(svid *x509svid.SVID) (*holder, error) {
	h := &holder{}
	h.svid.Store(svid)
	var err error
	if h.broker, err = s.flags.clientAs(h, s.source); err != nil {
		return nil, err
	}
	cfg := s.cfg
	cfg.ID, cfg.Broker = svid.ID.String(), h.broker
	h.sandbox, err = s.gateway.Sandbox(cfg)
	return h, err
}

func (h *holder) end(gateway *egress.Gateway) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	gateway.Drop(ctx, h.sandbox)
	h.broker.Close()
}

func (s *sandboxes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.byID {
		h.end(s.gateway)
	}
	clear(s.byID)
}
