package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/ratelimit"
)

const (
	// inboxEvery is the interval between queries for waiting requests. One query serves all listeners of a replica.
	inboxEvery = 500 * time.Millisecond
	// maxListening limits the listeners on a replica, and maxListeningEach those of one person.
	maxListening, maxListeningEach = 1000, 4
	// maxPending limits the waiting requests that are read per group and reach. One more is read to detect that there are more.
	maxPending = 500
	// backlog is how many unread batches of events a listener may have.
	backlog = 16
)

// EventKind is the kind of an event.
type EventKind string

// The kinds of events.
const (
	EventWaiting EventKind = "waiting" // a request started to wait, or received a break-glass vote while it waits
	EventDecided EventKind = "decided" // a request no longer waits
	EventCurrent EventKind = "current" // the listener now knows all waiting requests; sent again whenever More changes
)

// Event is a change in what waits for a person.
type Event struct {
	Kind EventKind
	// Request is the request, without its votes. Listeners share it, so they must not modify it.
	Request *ApprovalRequest
	// IDs are the waiting requests, for EventCurrent.
	IDs []string
	// More means that more requests wait than were sent. The others may be older.
	More bool
}

// PendingRequest is the short form of a request that waits for approval. Group is the approver group, and BreakGlass the break-glass
// group, if any. Broken is as in View.
type PendingRequest struct {
	ID, SPIFFEID, Group, BreakGlass string
	Broken                          bool
}

func (s PendingRequest) concerns(groups []string) bool {
	return slices.Contains(groups, s.Group) || s.BreakGlass != "" && slices.Contains(groups, s.BreakGlass)
}

// Listener receives what starts to wait for one person, and what stops waiting. The caller must close it.
type Listener struct {
	// Events arrive in order. The channel is closed if the listener falls too far behind.
	Events <-chan []Event

	events chan []Event
	close  func()
	voter  approval.Voter
	after  string
	knows  map[string]bool // requests announced to it as waiting; nil before the first events
	broken map[string]bool // requests announced to it with a break-glass vote
	more   bool            // it was told that there are more
}

// listeners are the listeners on this replica.
type listeners struct {
	places  *ratelimit.Semaphore // by person
	mu      sync.Mutex
	present map[*Listener]bool
	watched bool
	joined  chan struct{} // signals a new listener, so that the next query runs at once
}

// Listen first sends a person the requests that wait for them now, if the ID is greater than the parameter after. Then it sends the
// changes. It reports the same requests as Waiting. It returns ErrCrowded if this replica, or this person, has too many listeners.
func (b *Broker) Listen(ctx context.Context, who people.Person, after string) (*Listener, error) {
	ls := &b.listeners
	leave, err := ls.places.Enter(who.ID())
	if err != nil {
		return nil, ErrCrowded
	}
	voter, err := b.upsertPerson(ctx, who) // by a newer token, the person may have left groups
	if err != nil {
		leave()
		return nil, err
	}
	l := &Listener{events: make(chan []Event, backlog), voter: voter, after: after, broken: map[string]bool{}}
	l.Events = l.events
	l.close = func() {
		defer leave()
		ls.mu.Lock()
		defer ls.mu.Unlock()
		delete(ls.present, l)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.present[l] = true
	select {
	case ls.joined <- struct{}{}:
	default:
	}
	if !ls.watched {
		ls.watched = true
		b.watchers.Go(func() { b.watchInbox(context.WithoutCancel(ctx)) })
	}
	return l, nil
}

// Close makes room for other listeners.
func (l *Listener) Close() { l.close() }

// tell never blocks: it disconnects a listener that does not read its events.
func (ls *listeners) tell(l *Listener, events []Event) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(events) == 0 || !ls.present[l] {
		return
	}
	select {
	case l.events <- events:
	default:
		delete(ls.present, l)
		close(l.events)
	}
}

// watchInbox polls the inbox while there are listeners. After an error, the next poll sends what this one could not.
func (b *Broker) watchInbox(ctx context.Context) {
	tick := time.NewTicker(inboxEvery)
	defer tick.Stop()
	for ls := &b.listeners; ; {
		ls.mu.Lock()
		present := slices.Collect(maps.Keys(ls.present))
		ls.watched = len(present) > 0
		ls.mu.Unlock()
		if len(present) == 0 {
			return
		}
		if err := b.tellAll(ctx, present); err != nil {
			b.cfg.Log.DebugContext(ctx, "approvers not notified", "error", err)
		}
		select {
		case <-tick.C:
		case <-ls.joined:
		}
	}
}

func (b *Broker) tellAll(ctx context.Context, listeners []*Listener) error {
	// One query for each group and reach, since many listeners share them.
	queries := map[string]WaitingQuery{}
	for _, l := range listeners {
		within := b.cfg.ApprovalPolicy.Rules.Within(l.voter.Groups, people.RoleApprover)
		for _, group := range l.voter.Groups {
			queries[fmt.Sprintf("%q", append(within, group))] = WaitingQuery{Groups: []string{group}, Within: within, Limit: maxPending + 1}
		}
	}
	pending, err := b.cfg.Approvals.PendingRequests(ctx, slices.Collect(maps.Values(queries)))
	if err != nil {
		return fmt.Errorf("listing pending requests: %w", err)
	}
	all, wanted := make([]change, len(listeners)), map[string]bool{}
	for i, l := range listeners {
		all[i] = l.compare(b.cfg.ApprovalPolicy.Rules, pending)
		for _, id := range slices.Concat(all[i].come, all[i].gone) {
			wanted[id] = true
		}
	}
	cases, err := b.requestsOf(ctx, slices.Sorted(maps.Keys(wanted)))
	if err != nil {
		return err
	}
	for i, l := range listeners {
		b.listeners.tell(l, l.notify(all[i], cases))
	}
	return nil
}

// requestsOf reads requests by ID. It leaves out those that do not exist.
func (b *Broker) requestsOf(ctx context.Context, ids []string) (map[string]*ApprovalRequest, error) {
	cases := map[string]*ApprovalRequest{}
	for len(ids) > 0 {
		views, err := b.cfg.Approvals.Views(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("reading pending requests: %w", err)
		}
		if len(views) == 0 {
			break
		}
		for _, v := range views {
			cases[v.ID] = &ApprovalRequest{View: v}
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return cases[id] != nil })
	}
	return cases, nil
}

// change lists what a listener does not know yet, by request ID.
type change struct {
	waiting, come, gone []string
	more                bool // more requests wait than were read
}

// compare finds what is new to a listener, among the waiting requests that it may see.
func (l *Listener) compare(rules people.Rules, pending []PendingRequest) change {
	var c change
	visible, each := map[string]bool{}, map[string]int{}
	for _, s := range pending {
		if !s.concerns(l.voter.Groups) || !rules.May(l.voter.Groups, people.RoleApprover, s.SPIFFEID) {
			continue
		}
		visible[s.ID] = true
		for _, group := range l.voter.Groups {
			if s.concerns([]string{group}) {
				each[group]++
			}
			c.more = c.more || each[group] > maxPending
		}
		c.waiting = append(c.waiting, s.ID)
		news := l.knows == nil && s.ID > l.after || l.knows != nil && !l.knows[s.ID]
		if news || s.Broken && !l.broken[s.ID] {
			c.come = append(c.come, s.ID)
		}
	}
	for id := range l.knows {
		if !visible[id] {
			c.gone = append(c.gone, id)
		}
	}
	slices.Sort(c.gone)
	return c
}

// notify turns a change into events. A request that could not be read is sent later.
func (l *Listener) notify(c change, cases map[string]*ApprovalRequest) []Event {
	var events []Event
	first := l.knows == nil
	if first {
		l.knows = map[string]bool{}
		for _, id := range c.waiting {
			l.knows[id] = id <= l.after
		}
	}
	for _, id := range c.come {
		delete(l.knows, id)
		if cases[id] != nil {
			l.knows[id], l.broken[id] = true, cases[id].Broken
			events = append(events, Event{Kind: EventWaiting, Request: cases[id], More: c.more})
		}
	}
	for _, id := range c.gone {
		if cases[id] == nil || c.more && cases[id].Status == StatusPending {
			continue // it may still wait, hidden by other requests
		}
		delete(l.knows, id)
		delete(l.broken, id)
		events = append(events, Event{Kind: EventDecided, Request: cases[id], More: c.more})
	}
	if first || c.more != l.more {
		l.more = c.more
		events = append(events, Event{Kind: EventCurrent, IDs: c.waiting, More: c.more})
	}
	return events
}

const (
	// awaitEvery is the interval between queries for decisions. One query serves all waiters of a replica.
	awaitEvery = 250 * time.Millisecond
	// maxWaiting limits the waiters on a replica, half of them of one trust domain that is alone, and maxWaitingEach those of one
	// sandbox.
	maxWaiting, maxWaitingEach = 20_000, 16
)

// waiters are the callers on this replica that wait for decisions.
type waiters struct {
	places    *ratelimit.FairSemaphore
	mu        sync.Mutex
	byRequest map[string]*waiter
	watched   bool
}

type waiter struct {
	callers int
	decided chan struct{} // closed when the request is decided
}

// Await waits for a decision. It returns true once the request is no longer pending, and false if ctx ends first or too many
// callers wait already. self is the caller.
func (b *Broker) Await(ctx context.Context, request, self string) bool {
	ws := &b.waiters
	leave, err := ws.places.Enter(tenantOf(self), self)
	if err != nil {
		return false
	}
	defer leave()

	ws.mu.Lock()
	w := ws.byRequest[request]
	if w == nil {
		w = &waiter{decided: make(chan struct{})}
		ws.byRequest[request] = w
	}
	w.callers++
	if !ws.watched {
		ws.watched = true
		b.watchers.Go(func() { b.watch(context.WithoutCancel(ctx)) })
	}
	ws.mu.Unlock()
	defer func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.callers--; w.callers == 0 && ws.byRequest[request] == w {
			delete(ws.byRequest, request)
		}
	}()

	select {
	case <-w.decided:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch polls for decisions while there are waiters. After an error, it tries again at the next tick.
func (b *Broker) watch(ctx context.Context) {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for ws := &b.waiters; ; <-tick.C {
		ws.mu.Lock()
		requests := slices.Collect(maps.Keys(ws.byRequest))
		ws.watched = len(requests) > 0
		ws.mu.Unlock()
		if len(requests) == 0 {
			return
		}
		decided, err := b.cfg.Approvals.Decided(ctx, requests)
		if err != nil {
			continue
		}
		ws.mu.Lock()
		for _, request := range decided {
			if w := ws.byRequest[request]; w != nil {
				close(w.decided)
				delete(ws.byRequest, request)
			}
		}
		ws.mu.Unlock()
	}
}

// maxFollowing is how many sandboxes follow their own records on a replica at most, half of them of one trust domain that is alone, and
// maxListeningEach how many of them may be the same caller. maxAuditing is the same for auditors: a follower keeps its place for as long
// as it likes, so sandboxes of a few trust domains could lock out the auditors if they shared places. Each follower queries the store
// about once a second.
const maxFollowing, maxAuditing = 200, 100

// Changes are records that have begun or changed, in the order of their latest change. Each appears once, in its current state.
type Changes struct {
	Records []View
	// Next is the index to continue from. Further means that more changes are already available.
	Next    int64
	Further bool
}

// Follow reserves a place for a caller that polls Changes within reach, until it calls leave. It returns ErrCrowded if there are too
// many followers, or too many by this caller.
func (b *Broker) Follow(who string, reach Reach) (leave func(), err error) {
	places := b.auditors
	if reach.Subject != "" {
		places = b.followers
	}
	if leave, err = places.Enter(tenantOf(who), who); err != nil {
		return nil, ErrCrowded
	}
	return leave, nil
}

// Changes returns the matching records within reach that have changed since an index. A negative index starts at the end of the
// ledger.
func (b *Broker) Changes(ctx context.Context, q Query, reach Reach, from int64) (Changes, error) {
	return b.cfg.Feed.Changes(ctx, q, reach, from)
}
