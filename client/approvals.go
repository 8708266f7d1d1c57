package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/brevet-dev/brevet/openapi"
)

// Approvals lists the requests that wait for the calling person's vote. It takes one request from each trust domain in turn,
// and within a trust domain one from each sandbox in turn, oldest first. It checks every request against its hash.
func (c *Client) Approvals(ctx context.Context, limit int) (openapi.ApprovalList, error) {
	list, err := fetch[openapi.ApprovalList](ctx, c, call{path: "/v1/approvals", query: url.Values{"limit": {strconv.Itoa(limit)}}})
	if err != nil {
		return list, err
	}
	for _, one := range list.Approvals {
		if err := checkHash(one); err != nil {
			return openapi.ApprovalList{}, err
		}
	}
	return list, nil
}

// Approval reads one request that waits for approval or did, with its votes. It checks the request against its hash.
func (c *Client) Approval(ctx context.Context, id string) (openapi.ApprovalCase, error) {
	one, err := fetch[openapi.ApprovalCase](ctx, c, call{path: "/v1/approvals/%s", name: id})
	if err != nil {
		return one, err
	}
	return one, checkHash(one)
}

// Vote votes on a request in the form that the calling person was shown: it approves, rejects, or breaks the glass. Break-glass
// requires a note.
func (c *Client) Vote(ctx context.Context, shown openapi.ApprovalCase, verdict openapi.Verdict, note string) (openapi.ApprovalCase, error) {
	return c.vote(ctx, shown.ID, openapi.VoteRequest{Verdict: verdict, Hash: shown.Hash, Note: note})
}

// VoteForTask approves a request, and equal requests of the same task until the task ends. The scope must allow this.
func (c *Client) VoteForTask(ctx context.Context, shown openapi.ApprovalCase, note string) (openapi.ApprovalCase, error) {
	return c.vote(ctx, shown.ID, openapi.VoteRequest{
		Verdict: openapi.VerdictApprove, Covers: openapi.CoverTask, Hash: shown.Hash, Note: note,
	})
}

func (c *Client) vote(ctx context.Context, id string, vote openapi.VoteRequest) (openapi.ApprovalCase, error) {
	return fetch[openapi.ApprovalCase](ctx, c, call{method: http.MethodPost, path: "/v1/approvals/%s/votes", name: id, body: vote})
}

// checkHash checks that the hash that a vote names is the hash of what the person is shown.
func checkHash(one openapi.ApprovalCase) error {
	hash := sha256.Sum256([]byte(one.Canonical))
	if hex.EncodeToString(hash[:]) != one.Hash {
		return fmt.Errorf("%w: the hash of request %q is not that of what it shows", ErrAnswer, one.ID)
	}
	return nil
}

// ApprovalEvent is a change in the list of requests that wait for a person's vote. One of the three fields is set.
type ApprovalEvent struct {
	Waiting *openapi.ApprovalCase    // began to wait, or became break-glass; checked against its hash
	Decided *openapi.ApprovalDecided // no longer waits
	More    bool                     // more requests wait than are listed, and may be older
}

// ApprovalWatch follows the requests that wait for the calling person's vote. It is not safe for concurrent use.
type ApprovalWatch struct {
	stream
	knows map[string]bool // waiting requests, and whether each was reported as break-glass
	more  bool            // more requests wait than are listed
}

// WatchApprovals returns a watch that has not reported any request yet.
func (c *Client) WatchApprovals() *ApprovalWatch {
	return &ApprovalWatch{stream: c.stream("/v1/approvals/events"), knows: map[string]bool{}}
}

// Follow calls on for each request that waits, and then for each change. It returns nil if the server ends the stream, which it
// does when the person's ID token expires. It returns an error if the connection is lost (ErrCutOff), if on returns one, or if
// ctx ends. A later call continues from there. A request is reported as waiting twice only if it was decided in between, or
// became break-glass.
func (w *ApprovalWatch) Follow(ctx context.Context, on func(ApprovalEvent) error) error {
	return w.stream.follow(ctx, func(ctx context.Context, kind string, data []byte) error { return w.take(ctx, kind, data, on) })
}

// take reports one event. It ignores unknown kinds, which are for newer clients.
func (w *ApprovalWatch) take(ctx context.Context, kind string, data []byte, on func(ApprovalEvent) error) error {
	switch kind {
	case "waiting":
		one, err := event[openapi.ApprovalCase](data)
		if err != nil {
			return err
		}
		return w.waits(one, on)
	case "decided":
		one, err := event[openapi.ApprovalDecided](data)
		if err != nil {
			return err
		}
		return w.decided(one, on)
	case "current":
		now, err := event[openapi.ApprovalsCurrent](data)
		if err != nil {
			return err
		}
		return w.catchUp(ctx, now, on)
	}
	return nil
}

func (w *ApprovalWatch) waits(one openapi.ApprovalCase, on func(ApprovalEvent) error) error {
	if err := checkHash(one); err != nil {
		return err
	}
	if broken, known := w.knows[one.ID]; known && (broken || !one.Approval.Broken) {
		return nil
	}
	w.knows[one.ID] = one.Approval.Broken
	return on(ApprovalEvent{Waiting: &one})
}

func (w *ApprovalWatch) decided(one openapi.ApprovalDecided, on func(ApprovalEvent) error) error {
	if _, known := w.knows[one.ID]; !known {
		return nil
	}
	delete(w.knows, one.ID)
	return on(ApprovalEvent{Decided: &one})
}

// catchUp reports the changes that happened while there was no connection.
func (w *ApprovalWatch) catchUp(ctx context.Context, now openapi.ApprovalsCurrent, on func(ApprovalEvent) error) error {
	waits := map[string]bool{}
	for _, id := range now.Ids {
		waits[id] = true
	}
	for id := range w.knows {
		if waits[id] {
			continue
		}
		one, err := w.client.Approval(ctx, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if now.More && one.Status == openapi.StatusPending {
			continue // it may still wait
		}
		// A person who may no longer see the request learns only that it no longer waits.
		if err := w.decided(openapi.ApprovalDecided{ID: id, Status: one.Status, StatusAt: one.StatusAt}, on); err != nil {
			return err
		}
	}
	for _, id := range now.Ids {
		if _, known := w.knows[id]; known {
			continue
		}
		one, err := w.client.Approval(ctx, id)
		if err != nil {
			return err
		}
		if err := w.waits(one, on); err != nil {
			return err
		}
	}
	before := w.more
	if w.more = now.More; w.more && !before {
		return on(ApprovalEvent{More: true})
	}
	return nil
}
