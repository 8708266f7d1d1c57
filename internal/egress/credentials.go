package egress

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const (
	// askWithin bounds the wait for a response from Brevet.
	askWithin = 30 * time.Second
	// reportWithin bounds the report of how often a credential was used.
	reportWithin = 10 * time.Second
	// margin is how long before its expiry a credential stops being used for new calls.
	margin = 2 * time.Second
	// deniedFor is how long a denial is repeated without a request to Brevet, so that a sandbox that retries in a loop does not
	// fill the record.
	deniedFor = time.Second
	// maxSlots bounds how many different credentials are cached for a sandbox, because the sandbox chooses the parameters.
	maxSlots = 1000
)

// credentialCache holds the credentials and permits of one sandbox, in memory.
type credentialCache struct {
	gateway *Gateway
	broker  *client.Client
	now     func() time.Time
	task    string
	reason  string
	log     *slog.Logger

	mu    sync.Mutex
	slots map[string]*slot
	// watched are the credentials that one goroutine watches while there are any.
	watched []*held
	// released is set when the cache closes, and closed when every credential is released.
	released chan struct{}
	reports  sync.WaitGroup // reports that are not sent yet
}

// slot holds the credential of one scope with its parameters.
type slot struct {
	turn    chan struct{} // a lock: its holder requests or confirms the credential
	current atomic.Pointer[held]
	// The holder of turn owns the fields below.
	pending *client.Pending
	key     secret.Text // the key of csr
	csr     string
	denied  error
	until   time.Time
}

// credential returns a credential that is alive, and requests one if the cache has none.
func (p *credentialCache) credential(ctx context.Context, m match) (*held, error) {
	s, err := p.slot(m)
	if err != nil {
		return nil, err
	}
	if h := s.current.Load(); h != nil && h.ready(p.now()) && !h.spent(p.now()) {
		return h, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, &refusal{code: codeUnavailable, cause: ctx.Err()}
	}
	// The request continues if this caller leaves: the response may hold a credential, which the next caller can use.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin)
	defer cancel()
	h := s.current.Load()
	if h == nil || h.spent(p.now()) {
		return p.askStill(ctx, s, m)
	}
	switch err := p.still(ctx, h); {
	case errors.Is(err, errEnded):
		return p.askStill(ctx, s, m)
	case err != nil:
		return nil, err
	}
	return h, nil
}

// askStill is ask, and confirms a credential that took long to get: the exchange of its token at another system can take many
// seconds.
func (p *credentialCache) askStill(ctx context.Context, s *slot, m match) (*held, error) {
	h, err := p.ask(ctx, s, m)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWithin)
	defer cancel()
	return h, p.still(ctx, h)
}

// still returns nil if the credential may be used now, errEnded if it has ended, and an unavailable refusal if Brevet can't
// confirm it.
func (p *credentialCache) still(ctx context.Context, h *held) error {
	var unsure error
	for tries := 0; ; tries++ {
		switch {
		case h.ready(p.now()):
			return nil
		case !h.alive(p.now()):
			return errEnded
		case tries == confirmTries:
			return unavailable(unsure)
		}
		unsure = confirm(ctx, p.broker, p.now, h)
	}
}

func (p *credentialCache) slot(m match) (*slot, error) {
	params, err := json.Marshal(m.route.Params) // sorted by name
	if err != nil {
		return nil, &refusal{code: codeNoRule, cause: err}
	}
	key := m.scope.Name + string(params) + "\n" + m.route.Send.As + "\n" + m.route.Send.Field + "\n" + m.route.Send.User
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released != nil {
		return nil, &refusal{code: codeUnavailable, explanation: "the gateway is shutting down"}
	}
	if s := p.slots[key]; s != nil {
		return s, nil
	}
	if len(p.slots) >= maxSlots {
		p.forget()
	}
	if len(p.slots) >= maxSlots {
		return nil, &refusal{code: codeTooMany, after: time.Minute}
	}
	s := &slot{turn: make(chan struct{}, 1)}
	p.slots[key] = s
	return s, nil
}

// forget drops the slots that hold no credential and that no call uses now. A dropped slot loses its pending request, so the
// next call makes a new request.
func (p *credentialCache) forget() {
	for key, s := range p.slots {
		if h := s.current.Load(); (h == nil || !h.alive(p.now())) && len(s.turn) == 0 {
			delete(p.slots, key)
		}
	}
}

// ask requests a credential from Brevet. The caller must hold the slot's turn.
func (p *credentialCache) ask(ctx context.Context, s *slot, m match) (*held, error) {
	if p.now().Before(s.until) {
		return nil, s.denied
	}
	began := p.now()
	answer, err := p.request(ctx, s, m)
	if err != nil {
		if errors.Is(err, client.ErrDenied) || errors.Is(err, client.ErrInvalid) || errors.Is(err, client.ErrRateLimited) {
			s.denied, s.until = err, p.now().Add(deniedFor)
		}
		return nil, unavailable(err)
	}
	if s.pending = answer.Pending; s.pending != nil {
		return nil, &refusal{code: codePending, pending: s.pending, scopes: []string{m.scope.Name}, after: s.pending.RetryAfter}
	}
	var h *held
	again := deniedFor
	switch {
	case answer.Token.Kind == scopes.KindNone || m.scope.Credential == scopes.KindNone:
		h, err = p.gateway.newPermit(answer.Token, m, began)
	case answer.Token.Exchange.As == "" && m.scope.Exchange.As == "":
		h, err = p.gateway.newHeld(answer.Token, m.route.Send, s.key, began)
	default:
		h, err = p.gateway.newExchanged(ctx, answer.Token, m, began)
		again = exchangeFailedFor
	}
	s.key, s.csr = secret.Text{}, ""
	if err != nil {
		p.release(ctx, answer.Token.ID)
		s.denied, s.until = err, p.now().Add(max(again, refusalOf(err).after))
		return nil, err
	}
	p.mu.Lock()
	closed := p.released != nil
	s.current.Store(h)
	if !closed {
		p.reports.Add(1)
		if p.watched = append(p.watched, h); len(p.watched) == 1 {
			go p.watch(context.WithoutCancel(ctx)) // the other callers need it too
		}
	}
	p.mu.Unlock()
	if !h.renew.IsZero() {
		p.log.InfoContext(ctx, "egress token exchanged", "scope", h.scope, "issuance", h.id, "as", answer.Token.Exchange.As, "renew_at", h.renew)
	}
	if closed {
		h.end(errEnded)
		p.release(ctx, h.id)
		return nil, &refusal{code: codeUnavailable, explanation: "the gateway is shutting down"}
	}
	go func() {
		defer p.reports.Done()
		<-h.life.Done()
		if now := p.now(); h.spent(now) && now.Before(h.ends) { // its result has expired, and its token is of no use
			p.release(context.WithoutCancel(ctx), h.id)
		}
		p.report(h)
	}()
	return h, nil
}

// report sends Brevet the number of uses of a credential that has ended. It reports zero uses too: they show a credential that
// was not needed.
func (p *credentialCache) report(h *held) {
	log := p.log.With("scope", h.scope, "issuance", h.id, "calls", h.calls.Load())
	log.Info("egress credential ended")
	p.mu.Lock()
	released := p.released
	p.mu.Unlock()
	if released != nil {
		<-released // releasing credentials comes first
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportWithin)
	defer cancel()
	said := openapi.UseRequest{Calls: min(h.calls.Load(), maxUses)}
	if last := h.used.Load(); last != nil {
		said.LastUsedAt = last.UTC()
	}
	switch stands, err := p.broker.ReportUses(ctx, h.id, said); {
	case err != nil:
		log.Warn("egress uses not reported", "error", err)
	case stands.Calls != said.Calls: // another client with the sandbox's SVID reported first
		log.Warn("egress uses were already reported by another client", "recorded", stands.Calls)
	}
}

// request makes a new request, or checks the decision on the pending one.
func (p *credentialCache) request(ctx context.Context, s *slot, m match) (client.Answer, error) {
	if m.scope.Csr && s.csr == "" {
		var err error
		if s.key, s.csr, err = newKey(); err != nil {
			return client.Answer{}, err
		}
	}
	ask := client.Ask{Scope: m.scope.Name, Params: m.route.Params, Task: p.task, Reason: p.reason, CSR: s.csr}
	if s.pending == nil {
		return p.broker.Request(ctx, ask)
	}
	state, err := p.broker.State(ctx, s.pending.ID)
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		return client.Answer{}, err
	}
	if err == nil && state.Status == openapi.StatusPending {
		return client.Answer{Pending: s.pending}, nil
	}
	id := s.pending.ID
	s.pending = nil
	if err == nil && (state.Status == openapi.StatusApproved || state.Status == openapi.StatusRejected) {
		return p.broker.Redeem(ctx, id, ask) // for a rejected request, this returns the denial
	}
	return p.broker.Request(ctx, ask) // it ended without a decision, or is gone
}

// close ends the calls in progress, releases every credential, withdraws pending requests, and waits for the reports. A
// credential or request that it can't reach before ctx ends expires by itself.
func (p *credentialCache) close(ctx context.Context) {
	released := make(chan struct{})
	p.mu.Lock()
	p.released = released
	all, watched := slices.Collect(maps.Values(p.slots)), slices.Clone(p.watched)
	p.mu.Unlock()
	var alive []*held
	for _, h := range watched {
		if h.life.Err() == nil {
			h.end(errEnded)
			alive = append(alive, h)
		}
	}
	for _, h := range alive {
		p.release(ctx, h.id)
	}
	close(released)
	for _, s := range all {
		select {
		case s.turn <- struct{}{}:
			if s.pending != nil && !s.pending.Earlier { // other processes may wait for an earlier one
				_ = p.broker.Withdraw(ctx, s.pending.ID)
			}
			<-s.turn
		case <-ctx.Done():
		}
	}
	reported := make(chan struct{})
	go func() {
		p.reports.Wait()
		close(reported)
	}()
	select {
	case <-reported:
	case <-ctx.Done():
	}
}

func (p *credentialCache) release(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, _ = p.broker.Release(ctx, id) // on failure the credential ends with the task, or expires
}
