package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

// maxAsks is how many requests a page lists. An approver with more pending requests decides these first.
const maxAsks = 50

// ask is an approval request as one reader sees it.
type ask struct {
	*broker.ApprovalRequest
	// Agreed is what a vote approves. It is decoded from the text whose hash the vote contains.
	Agreed             approval.Shown
	Title, Owner, Hash string
	// Alike is the number of similar requests that follow. It is set on the first of a group only.
	Alike int
	// Approve, Break and Deny report which votes the reader may cast now. Bar says why, if there is none.
	Approve, Break, Deny bool
	Bar                  string
	// Like lists the similar requests, on the request's own page.
	Like []ask
	// Signing is set on the request's own page if an approval must be signed.
	Signing *signing
}

func (c *Console) askOf(one *broker.ApprovalRequest, who *visitor) (ask, error) {
	hash := one.Hash()
	shown, err := approval.Canonical(one.Canonical).Shown()
	if err != nil {
		return ask{}, err
	}
	a := ask{
		ApprovalRequest: one, Agreed: shown, Title: c.cfg.Broker.Title(one.Scope, one.Catalogue), Hash: hex.EncodeToString(hash[:]),
	}
	a.Owner = c.cfg.Broker.Owner(a.Agreed.SPIFFEID)
	a.Title = cmp.Or(a.Title, a.Agreed.Scope)

	// The page offers only votes that the broker would accept. The broker checks again when the reader votes.
	open, approved, denied := a.Open(), false, false
	for _, v := range a.VotesCast {
		if v.Voter.ID == who.ID() {
			approved = approved || v.Verdict == approval.Approve || v.Verdict == approval.BreakGlass
			denied = denied || v.Verdict == approval.Deny
		}
	}
	a.Approve = open && !approved && c.cfg.Broker.Entitled(who.Person, approval.Approve, one) == nil
	a.Break = open && !approved && c.cfg.Broker.Entitled(who.Person, approval.BreakGlass, one) == nil
	no := c.cfg.Broker.Entitled(who.Person, approval.Deny, one)
	a.Deny = no == nil && !denied && (open || a.Status == broker.StatusApproved || a.Status == broker.StatusRedeemed)
	switch {
	case a.Approve, a.Break, a.Deny && !open:
	case a.Status == broker.StatusVoid:
		a.Bar = fmt.Sprintf("This request is void: the catalogue changed at %s (version %d), so the credential would differ from what this page shows. "+
			"The sandbox has to send the request again; then vote on the new request.", a.StatusTime.UTC().Format("2006-01-02 15:04:05 UTC"), a.VoidedBy)
	case !open:
		a.Bar = "This request is already decided."
	case approved:
		a.Bar = "You have already approved this request."
	case no != nil:
		a.Bar = troubleOf(no).Means
	}
	return a, nil
}

// MayApprove and MayBreak report whether the page has a form for the vote: a vote that requires a passkey needs one.
func (a *ask) MayApprove() bool { return a.Approve && (a.Signing == nil || a.Signing.Keys > 0) }
func (a *ask) MayBreak() bool   { return a.Break && (a.Signing == nil || a.Signing.Keys > 0) }

// Left returns the time at which the request expires.
func (a *ask) Left() time.Time { return time.Unix(a.Agreed.Expires, 0) }

// Life returns the longest lifetime of the credential, as text.
func (a *ask) Life() string { return lasting(time.Duration(a.Agreed.TTL) * time.Second) }

// Open reports whether the request is pending.
func (a *ask) Open() bool { return a.Status == broker.StatusPending }

// Signed reports whether an approval must be signed with a passkey.
func (a *ask) Signed() bool { return a.Agreed.Passkey == scopes.PasskeyRequired }

// Remembers reports whether an approval may cover the whole task.
func (a *ask) Remembers() bool { return a.Agreed.Remember == scopes.RememberTask }

// StandIns returns the number of votes that a break-glass approval requires.
func (a *ask) StandIns() int { return scopes.BreakGlassQuorum }

// Deed returns a short phrase for the access that an approval grants.
func (a *ask) Deed() string {
	doing := map[string]string{
		"read": "read", "draft": "draft on", "write": "write to", "delete": "delete", "payment": "make a payment on", "permission": "change permissions on",
	}[a.Agreed.Authority]
	if doing == "" {
		doing = "use"
	}
	return doing + " " + short(a.Agreed.Resource, 80) + " for " + a.Life()
}

// inbox contains the requests that wait for one approver.
type inbox struct {
	Asks  []ask
	More  bool
	State string // changes when the list changes
}

// inbox lists the requests that wait for the visitor. Similar requests are next to each other.
func (c *Console) inbox(r *http.Request, who *visitor) (view, error) {
	asks, more, err := c.waiting(r, who)
	if err != nil {
		return view{}, err
	}
	broken := map[string]bool{}
	for i := range asks {
		broken[asks[i].ID] = asks[i].Broken
	}
	list := inbox{More: more, State: digestOf(broken)}
	for _, alike := range families(asks) {
		alike[0].Alike = len(alike) - 1
		list.Asks = append(list.Asks, alike...)
	}
	return pageApprovals.view("Approvals", list), nil
}

func (c *Console) waiting(r *http.Request, who *visitor) ([]ask, bool, error) {
	cases, more, err := c.cfg.Broker.Waiting(r.Context(), who.Person, maxAsks)
	if err != nil {
		return nil, false, err
	}
	asks := make([]ask, len(cases))
	for i := range cases {
		if asks[i], err = c.askOf(&cases[i], who); err != nil {
			return nil, false, err
		}
	}
	return asks, more, nil
}

// families groups similar requests, in the order of the first request of each group. Groups with a break-glass vote come
// first.
func families(asks []ask) [][]ask {
	var order []string
	of := map[string][]ask{}
	for _, broken := range []bool{true, false} {
		for _, a := range asks {
			if a.Broken != broken {
				continue
			}
			like := fmt.Sprintf("%s %t", a.GroupKey(), a.Broken)
			if of[like] == nil {
				order = append(order, like)
			}
			of[like] = append(of[like], a)
		}
	}
	var all [][]ask
	for _, like := range order {
		all = append(all, of[like])
	}
	return all
}

// digestOf returns a digest of pending requests. The value of an id is true if the request has a break-glass vote.
func digestOf(broken map[string]bool) string {
	var text strings.Builder
	for _, id := range sortedKeys(broken) {
		fmt.Fprintf(&text, "%s %t\n", id, broken[id])
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:8])
}

// caseID returns the id in the path. It returns broker.ErrNotFound if that is not a UUID in canonical form.
func caseID(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
		return "", broker.ErrNotFound
	}
	return id, nil
}

// approval shows one request with its votes, and the similar requests that are pending.
func (c *Console) approval(r *http.Request, who *visitor) (view, error) {
	id, err := caseID(r)
	if err != nil {
		return view{}, err
	}
	one, err := c.cfg.Broker.ApprovalRequest(r.Context(), who.Person, id)
	if err != nil {
		return view{}, err
	}
	a, err := c.askOf(one, who)
	if err != nil {
		return view{}, err
	}
	if a.Open() && !a.Signed() {
		asks, _, err := c.waiting(r, who)
		if err != nil {
			return view{}, err
		}
		like := a.GroupKey()
		a.Like = slices.DeleteFunc(asks, func(b ask) bool { return b.ID == a.ID || b.GroupKey() != like })
	}
	if err := c.sign(r.Context(), who, &a); err != nil {
		return view{}, err
	}
	return pageApproval.view(short(a.Title, 80), &a), nil
}

const (
	// tellEvery is the longest pause before a stream sends a keep-alive comment.
	tellEvery = 15 * time.Second
	// tellTimeout bounds one write to a stream. A client that does not read is disconnected.
	tellTimeout = 5 * time.Second
	// afterAll sorts after every request id. The page already contains the pending requests, so the stream does not send them.
	afterAll = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// errSlow means that a client requested events and does not read them.
var errSlow = errors.New("client does not read its events")

// tellApprovals streams server-sent events to a page that lists pending requests. An event says only that the list has
// changed; the page then fetches the list.
func (c *Console) tellApprovals(w http.ResponseWriter, r *http.Request, who *visitor) error {
	listener, err := c.cfg.Broker.Listen(r.Context(), who.Person, afterAll)
	if err != nil {
		return err
	}
	defer listener.Close()
	out := &stream{w: w, control: http.NewResponseController(w), now: c.cfg.Now}
	if err := c.tell(r.Context(), who, listener, out); err != nil {
		// The page reconnects, and the first event shows it whether the list has changed.
		c.cfg.Log.DebugContext(r.Context(), "events cut off", "error", err)
	}
	return nil
}

// tell writes events until the session ends, this replica stops, or the client disconnects.
func (c *Console) tell(ctx context.Context, who *visitor, listener *broker.Listener, out *stream) error {
	// The request is read completely, and the server's read timeout must not end the stream.
	if err := out.control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("beginning a stream: %w", err)
	}
	h := out.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	out.w.WriteHeader(http.StatusOK)
	if err := out.write(": hello\n\n"); err != nil {
		return err
	}
	alive := time.NewTicker(tellEvery)
	defer alive.Stop()
	over := time.NewTimer(who.Idle.Sub(c.cfg.Now()))
	defer over.Stop()
	waits := waits{broken: map[string]bool{}}
	for {
		select {
		case events, ok := <-listener.Events:
			if !ok {
				return errSlow
			}
			if err := out.write(waits.hear(events)); err != nil {
				return err
			}
		case <-alive.C:
			if err := out.write(": alive\n\n"); err != nil {
				return err
			}
		case <-over.C:
			return out.write(": your session has ended\n\n")
		case <-c.closed:
			return out.write(": this replica is shutting down\n\n")
		case <-ctx.Done():
			return nil
		}
	}
}

// waits tracks the requests that wait for one person. The value is true if the request has a break-glass vote.
type waits struct {
	broken map[string]bool
	told   bool // set after the first event: the page already contains what that event covers
}

// hear applies events and returns the message for the page. The message has only counts and a digest, and no text from the
// requests.
func (w *waits) hear(events []broker.Event) string {
	come, gone := 0, 0
	for _, e := range events {
		switch e.Kind {
		case broker.EventWaiting:
			if broken, known := w.broken[e.Request.ID]; !known || broken != e.Request.Broken {
				come++
			}
			w.broken[e.Request.ID] = e.Request.Broken
		case broker.EventDecided:
			gone++
			delete(w.broken, e.Request.ID)
		case broker.EventCurrent: // these, and no others, are pending now
			now := map[string]bool{}
			for _, id := range e.IDs {
				now[id] = w.broken[id]
			}
			w.broken = now
		}
	}
	if !w.told {
		w.told, come, gone = true, 0, 0
	}
	return fmt.Sprintf("event: changed\ndata: {\"state\":%q,\"waiting\":%d,\"come\":%d,\"gone\":%d}\n\n", digestOf(w.broken), len(w.broken), come, gone)
}

// stream is a response of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
}

// write sends text at once. It returns an error if the client does not read it in time.
func (o *stream) write(text string) error {
	err := o.control.SetWriteDeadline(o.now().Add(tellTimeout))
	if err == nil {
		_, err = io.WriteString(o.w, text)
	}
	if err == nil {
		err = o.control.Flush()
	}
	if err == nil { // HTTP/2 would end the stream at the deadline even if there is nothing to write
		err = o.control.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	return nil
}
