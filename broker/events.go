package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/people"
)

const (
	// inboxEvery is how often what waits is looked up, for all of a replica's listeners with one query.
	inboxEvery = 500 * time.Millisecond
	// mostListening bounds who listens on a replica, and mostListeningEach how often one person does.
	mostListening, mostListeningEach = 1000, 4
	// mostStanding bounds what is looked up of each group, in each reach. One more tells that there are more.
	mostStanding = 500
	// backlog is how many times a listener may be told something before it hears any of it.
	backlog = 16
)

// EventKind tells what an event is of.
type EventKind string

// The kinds of events.
const (
	EventWaiting EventKind = "waiting" // a request has come to wait, or its glass was broken while it does
	EventDecided EventKind = "decided" // a request does not wait any more
	EventCurrent EventKind = "current" // what waited has been told; again when that begins, or ceases, to be less than all
)

// Event is a change of what waits for a person.
type Event struct {
	Kind EventKind
	// Request is the request, without its votes. Others are told of it too, so it is only read.
	Request *ApprovalRequest
	// IDs are the requests that wait, of EventCurrent.
	IDs []string
	// More tells that others wait which were not told, and may be older.
	More bool
}

// Standing is a request that waits for people, in short. Group is asked and BreakGlass may stand in, if any; Broken is as
// in View.
type Standing struct {
	ID, SPIFFEID, Group, BreakGlass string
	Broken                          bool
}

func (s Standing) concerns(groups []string) bool {
	return slices.Contains(groups, s.Group) || s.BreakGlass != "" && slices.Contains(groups, s.BreakGlass)
}

// Listener hears what comes to wait for one person, and what stops waiting. It has to be closed.
type Listener struct {
	// Events come in order. The channel is closed when nobody has heard them for too long.
	Events <-chan []Event

	all    *listeners
	events chan []Event
	voter  Voter
	after  string
	knows  map[string]bool // what it was told waits; nil until it was told anything
	broken map[string]bool // what it was told waits with the glass broken
	more   bool            // it was told that more waits
}

// listeners is who listens on this replica.
type listeners struct {
	mu        sync.Mutex
	listeners map[*Listener]bool
	byPerson  map[string]int
	all       int
	watched   bool
	joined    chan struct{} // somebody has, and need not wait for the next look
}

// Listen tells a person what waits for them now, as far as its id is after the given one, and from then on what changes.
// It says the same as Waiting. ErrCrowded when too many listen here, or too often the same person.
func (b *Broker) Listen(ctx context.Context, who people.Person, after string) (*Listener, error) {
	l := &Listener{all: &b.listeners, events: make(chan []Event, backlog), voter: voterOf(who), after: after, broken: map[string]bool{}}
	l.Events = l.events
	watch, err := b.listeners.join(l)
	if err != nil {
		return nil, err
	}
	if watch {
		b.watchers.Go(func() { b.watchInbox(context.WithoutCancel(ctx)) })
	}
	return l, nil
}

// Close makes room for others. It is called once.
func (l *Listener) Close() {
	bd := l.all
	bd.mu.Lock()
	defer bd.mu.Unlock()
	delete(bd.listeners, l)
	if bd.byPerson[l.voter.ID]--; bd.byPerson[l.voter.ID] == 0 {
		delete(bd.byPerson, l.voter.ID)
	}
	bd.all--
}

// join tells whether nobody looks for the listeners yet, and the caller has to.
func (bd *listeners) join(l *Listener) (watch bool, err error) {
	bd.mu.Lock()
	defer bd.mu.Unlock()
	if bd.all >= mostListening || bd.byPerson[l.voter.ID] >= mostListeningEach {
		return false, ErrCrowded
	}
	if bd.listeners == nil {
		bd.listeners, bd.byPerson, bd.joined = map[*Listener]bool{}, map[string]int{}, make(chan struct{}, 1)
	}
	bd.listeners[l] = true
	bd.byPerson[l.voter.ID]++
	bd.all++
	select {
	case bd.joined <- struct{}{}:
	default:
	}
	watch, bd.watched = !bd.watched, true
	return watch, nil
}

// present lists who listens. When that is nobody, nobody watches any more.
func (bd *listeners) present() []*Listener {
	bd.mu.Lock()
	defer bd.mu.Unlock()
	bd.watched = len(bd.listeners) > 0
	return slices.Collect(maps.Keys(bd.listeners))
}

// tell never waits: who does not listen is cut off.
func (bd *listeners) tell(l *Listener, events []Event) {
	bd.mu.Lock()
	defer bd.mu.Unlock()
	if len(events) == 0 || !bd.listeners[l] {
		return
	}
	select {
	case l.events <- events:
	default:
		delete(bd.listeners, l)
		close(l.events)
	}
}

// watchInbox looks what waits as long as anybody listens. What cannot be looked up is told later.
func (b *Broker) watchInbox(ctx context.Context) {
	tick := time.NewTicker(inboxEvery)
	defer tick.Stop()
	for listeners := b.listeners.present(); len(listeners) > 0; listeners = b.listeners.present() {
		if err := b.tellAll(ctx, listeners); err != nil {
			b.cfg.Log.DebugContext(ctx, "approvers not told", "error", err)
		}
		select {
		case <-tick.C:
		case <-b.listeners.joined:
		}
	}
}

func (b *Broker) tellAll(ctx context.Context, listeners []*Listener) error {
	standing, err := b.cfg.Approvals.Standing(ctx, b.cfg.ApprovalPolicy.queriesOf(listeners))
	if err != nil {
		return fmt.Errorf("looking for what waits: %w", err)
	}
	all, wanted := make([]change, len(listeners)), map[string]bool{}
	for i, l := range listeners {
		all[i] = l.compare(b.cfg.ApprovalPolicy, standing)
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

// queriesOf asks once for each group and where people may decide for it, since many are in the same.
func (e ApprovalPolicy) queriesOf(listeners []*Listener) []WaitingQuery {
	queries := map[string]WaitingQuery{}
	for _, l := range listeners {
		within := e.Rules.Within(l.voter.Groups, people.RoleApprover)
		for _, group := range l.voter.Groups {
			queries[fmt.Sprintf("%q", append(within, group))] = WaitingQuery{Groups: []string{group}, Within: within, Limit: mostStanding + 1}
		}
	}
	return slices.Collect(maps.Values(queries))
}

// requestsOf reads requests, as far as there are such.
func (b *Broker) requestsOf(ctx context.Context, ids []string) (map[string]*ApprovalRequest, error) {
	cases := map[string]*ApprovalRequest{}
	for len(ids) > 0 {
		views, err := b.cfg.Approvals.Views(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("reading what waits: %w", err)
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

// change is what a listener has not been told, by the ids of requests.
type change struct {
	waiting, come, gone []string
	more                bool // waits than was looked up
}

// compare finds what is new to a listener among what waits, as far as it may know of it.
func (l *Listener) compare(e ApprovalPolicy, standing []Standing) change {
	var c change
	visible, each := map[string]bool{}, map[string]int{}
	for _, s := range standing {
		if !s.concerns(l.voter.Groups) || !e.Rules.May(l.voter.Groups, people.RoleApprover, s.SPIFFEID) {
			continue
		}
		visible[s.ID] = true
		for _, group := range l.voter.Groups {
			if s.concerns([]string{group}) {
				each[group]++
			}
			c.more = c.more || each[group] > mostStanding
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

// notify returns a change as events. What could not be read is told another time.
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
			continue // it may only have made room for others
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
