package broker

import (
	"context"
	"time"
)

// NoticeKind is the kind of a notice.
type NoticeKind string

// The kinds of notices.
const (
	NoticeWaiting   NoticeKind = "approval.waiting"     // a request waits for approval
	NoticeDecided   NoticeKind = "approval.decided"     // it was approved, rejected, withdrawn, or has expired
	NoticeBroken    NoticeKind = "approval.break_glass" // somebody approved it in place of the group that was asked
	NoticeUnrevoked NoticeKind = "credential.unrevoked" // a credential should be dead, but may not be
)

// NoticeLease is how long an Outbox serves a subscriber alone, counted from the last call of that Outbox.
const NoticeLease = 30 * time.Second

// Notice is a message to an external system. It contains no secret, and no free text of a sandbox.
type Notice struct {
	ID       string // the same for each attempt and each subscriber
	Kind     NoticeKind
	Time     time.Time // of the event
	Request  string    // the ID of the request or the issuance
	Status   Status    // after the event
	SPIFFEID string
	Scope    string
	// Authority, Resource and Task are as in View.
	Authority, Resource, Task string
	Group                     string // empty for NoticeUnrevoked; the break-glass group for NoticeBroken, with its quorum in Quorum
	Quorum                    int
	Expires                   time.Time
	Attempts                  int   // including this one
	Index                     int64 // of the entry that caused it
}

// Subscription selects the notices for one subscriber. The store identifies the subscriber by Name, permanently.
type Subscription struct {
	Name  string
	Kinds []NoticeKind
	// Within are SPIFFE IDs, paths and trust domains, or people.Everywhere.
	Within []string
}

// Outbox queues the notices that subscribers have not received yet. It loses no event that is in the ledger. All methods are safe
// for concurrent use, also across replicas. Errors are as for Ledger.
type Outbox interface {
	// Subscribe starts a subscription at the end of the ledger, unless it already exists.
	Subscribe(ctx context.Context, name string) error
	// Next returns the oldest notice that is due, and postpones it by NoticeLease. It returns nil if there is none, or if another
	// Outbox serves this subscriber. That one keeps the subscriber until NoticeLease after its last call.
	Next(ctx context.Context, sub Subscription) (*Notice, error)
	// MarkDelivered removes a notice after its delivery.
	MarkDelivered(ctx context.Context, name string, n Notice) error
	// PutOff makes a notice due again after a delay.
	PutOff(ctx context.Context, name string, n Notice, after time.Duration) error
	// Release lets another Outbox serve this subscriber at once.
	Release(ctx context.Context, name string) error
}
