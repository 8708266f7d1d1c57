package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
)

// mostAsks is how many requests are listed. Who has so many before them decides on these first.
const mostAsks = 50

func (c *Console) approvalsRoutes(mux chi.Router) {
	mux.Get("/approvals", c.visit(c.inbox))
	mux.Get("/approvals/events", c.tellApprovals)
	mux.Get("/approvals/{id}", c.visit(c.approval))
	mux.Post("/approvals/{id}/vote", c.act(c.vote))
}

// agreed is what a vote agrees to. It is read from the very bytes whose hash the vote names.
type agreed struct {
	TrustDomain string         `json:"trust_domain"`
	SPIFFEID    string         `json:"spiffe_id"`
	OnBehalfOf  string         `json:"on_behalf_of"`
	Thumbprint  string         `json:"thumbprint"`
	JKT         string         `json:"jkt"`
	Scope       string         `json:"scope"`
	Authority   string         `json:"authority"`
	Resource    string         `json:"resource"`
	Params      map[string]any `json:"params"`
	TTL         int64          `json:"ttl"`
	Task        string         `json:"task"`
	Key         string         `json:"key"`
	Audience    string         `json:"audience"`
	Catalogue   string         `json:"catalogue"`
	Group       string         `json:"group"`
	Quorum      int            `json:"quorum"`
	BreakGlass  string         `json:"break_glass"`
	Remember    string         `json:"remember"`
	Passkey     string         `json:"passkey"`
	Expires     int64          `json:"expires"`
}

// ask is a request as one reader is asked about it.
type ask struct {
	*broker.ApprovalRequest
	Agreed             agreed
	Title, Owner, Hash string
	// Alike is how many requests like it follow, for the first of them.
	Alike int
	// Approve, Break and Deny tell what the reader may say now; Bar says why not, when that is nothing.
	Approve, Break, Deny bool
	Bar                  string
	// Like are others that are alike, on the request's own page.
	Like []ask
	// Signing is set on the request's own page where a yes has to be signed.
	Signing *signing
}

func (c *Console) askOf(one *broker.ApprovalRequest, who *visitor) (ask, error) {
	hash := one.Hash()
	a := ask{ApprovalRequest: one, Title: c.cfg.Broker.Title(one.Scope, one.Catalogue), Hash: hex.EncodeToString(hash[:])}
	if err := json.Unmarshal([]byte(one.Canonical), &a.Agreed); err != nil {
		return ask{}, fmt.Errorf("reading what a request asks for: %w", err)
	}
	a.Owner = c.cfg.Broker.Owner(a.Agreed.SPIFFEID)
	if a.Title == "" {
		a.Title = a.Agreed.Scope
	}
	c.offer(&a, who)
	return a, nil
}

// offer works out what a reader may say to a request. It is asked again of whoever says it.
func (c *Console) offer(a *ask, who *visitor) {
	open := a.Status == broker.StatusPending
	said := func(verdicts ...broker.Verdict) bool {
		return slices.ContainsFunc(a.VotesCast, func(v broker.Vote) bool { return v.Voter.ID == who.ID() && slices.Contains(verdicts, v.Verdict) })
	}
	yes, stand, no := c.cfg.Broker.Entitled(who.Person, broker.Approve, a.ApprovalRequest), c.cfg.Broker.Entitled(who.Person, broker.BreakGlass, a.ApprovalRequest),
		c.cfg.Broker.Entitled(who.Person, broker.Deny, a.ApprovalRequest)
	heard := said(broker.Approve, broker.BreakGlass)
	a.Approve, a.Break = open && yes == nil && !heard, open && stand == nil && !heard
	a.Deny = no == nil && !said(broker.Deny) && slices.Contains([]broker.Status{broker.StatusPending, broker.StatusApproved, broker.StatusRedeemed}, a.Status)
	switch {
	case a.Approve, a.Break, a.Deny && !open:
	case !open:
		a.Bar = "This request is already decided."
	case heard:
		a.Bar = "You have already approved this request."
	case no != nil:
		a.Bar = troubleOf(no).Means
	}
}

// MayApprove and MayBreak tell what the reader is offered: not what takes a passkey that they do not have.
func (a *ask) MayApprove() bool { return a.Approve && (a.Signing == nil || a.Signing.Keys > 0) }
func (a *ask) MayBreak() bool   { return a.Break && (a.Signing == nil || a.Signing.Keys > 0) }

// Left is when the request expires.
func (a *ask) Left() time.Time { return time.Unix(a.Agreed.Expires, 0) }

// Life is how long the credential lives at most.
func (a *ask) Life() string { return lasting(time.Duration(a.Agreed.TTL) * time.Second) }

// Open tells whether it waits still.
func (a *ask) Open() bool { return a.Status == broker.StatusPending }

// Signed tells whether a yes has to be signed by a passkey.
func (a *ask) Signed() bool { return a.Agreed.Passkey == scopes.PasskeyRequired }

// Remembers tells whether a yes may cover the task.
func (a *ask) Remembers() bool { return a.Agreed.Remember == scopes.RememberTask }

// Yes and Broke count who has said so, as far as the votes are known.
func (a *ask) Yes() int   { return a.saying(broker.Approve) }
func (a *ask) Broke() int { return a.saying(broker.BreakGlass) }

func (a *ask) saying(verdict broker.Verdict) int {
	n := 0
	for _, v := range a.VotesCast {
		if v.Verdict == verdict {
			n++
		}
	}
	return n
}

// StandIns is how many it takes to break the glass.
func (a *ask) StandIns() int { return scopes.BreakGlassQuorum }

// Deed says in a few words what a yes lets somebody do.
func (a *ask) Deed() string {
	doing := map[string]string{
		"read": "read", "draft": "draft on", "write": "write to", "delete": "delete", "payment": "pay by", "permission": "change permissions by",
	}[a.Agreed.Authority]
	if doing == "" {
		doing = "use"
	}
	return doing + " " + short(a.Agreed.Resource, 80) + " for " + a.Life()
}

// inbox is what waits for somebody.
type inbox struct {
	Asks  []ask
	More  bool
	State string // changes with what is listed
}

// inbox lists what waits for a person. What is alike stands together.
func (c *Console) inbox(r *http.Request, who *visitor) (view, error) {
	if !who.Approves() {
		return view{}, errNotAllowed
	}
	asks, more, err := c.waiting(r, who)
	if err != nil {
		return view{}, err
	}
	list := inbox{More: more, State: stateOf(asks)}
	for _, alike := range families(asks) {
		alike[0].Alike = len(alike) - 1
		list.Asks = append(list.Asks, alike...)
	}
	return view{page: "approvals", title: "Pending approvals", data: list}, nil
}

func (c *Console) waiting(r *http.Request, who *visitor) ([]ask, bool, error) {
	cases, more, err := c.cfg.Broker.Waiting(r.Context(), who.Person, mostAsks)
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

// families puts what is alike together, in the order of the first of each; those whose glass is broken come before all others.
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

// stateOf changes when what waits does, whatever its order.
func stateOf(asks []ask) string {
	broken := map[string]bool{}
	for i := range asks {
		broken[asks[i].ID] = asks[i].Broken
	}
	return digestOf(broken)
}

func digestOf(broken map[string]bool) string {
	var text strings.Builder
	for _, id := range sortedKeys(broken) {
		fmt.Fprintf(&text, "%s %t\n", id, broken[id])
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:8])
}

// caseID is the id in a path. What is none is nothing's.
func caseID(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
		return "", broker.ErrNotFound
	}
	return id, nil
}

// approval shows one request with the votes on it, and what of the same kind waits beside it.
func (c *Console) approval(r *http.Request, who *visitor) (view, error) {
	if !who.Approves() {
		return view{}, errNotAllowed
	}
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
		if a.Like, err = c.alike(r, who, &a); err != nil {
			return view{}, err
		}
	}
	if err := c.sign(r.Context(), who, &a); err != nil {
		return view{}, err
	}
	return view{page: "approval", title: short(a.Title, 80), data: &a}, nil
}

// alike lists what else waits of the same kind.
func (c *Console) alike(r *http.Request, who *visitor, a *ask) ([]ask, error) {
	asks, _, err := c.waiting(r, who)
	if err != nil {
		return nil, err
	}
	like := a.GroupKey()
	return slices.DeleteFunc(asks, func(b ask) bool { return b.ID == a.ID || b.GroupKey() != like }), nil
}
