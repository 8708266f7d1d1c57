package broker

import (
	"context"
	"time"
)

// NoticeKind tells what a notice is of.
type NoticeKind string

// The kinds of notices.
const (
	NoticeWaiting   NoticeKind = "approval.waiting"     // a request waits for people
	NoticeDecided   NoticeKind = "approval.decided"     // it was approved, rejected, withdrawn, or has expired
	NoticeBroken    NoticeKind = "approval.break_glass" // somebody approves it in place of the group that was asked
	NoticeUnrevoked NoticeKind = "credential.unrevoked" // a credential should be dead, and is not known to be
)

// NoticeLease is for how long nobody else tells a subscriber anything, once somebody does.
const NoticeLease = 30 * time.Second

// Notice is what a system of others is told. It has no free text of a sandbox in it, and no secret.
type Notice struct {
	ID       string // the same at each attempt, and for each subscriber
	Kind     NoticeKind
	Time     time.Time // of what it tells
	Request  string    // or the issuance
	Status   Status    // that it has come to
	SPIFFEID string
	Scope    string
	// Authority, Resource and Task are as in View.
	Authority, Resource, Task string
	Group                     string // empty for NoticeUnrevoked, and who stands in for NoticeBroken; as is Quorum
	Quorum                    int
	Expires                   time.Time
	Attempts                  int   // with this one
	Index                     int64 // of the entry that caused it
}

// Subscription says who is told what. Its name stands for it in the store, for good.
type Subscription struct {
	Name  string
	Kinds []NoticeKind
	// Within are SPIFFE IDs, paths and trust domains, or people.Everywhere.
	Within []string
}

// Outbox is what others have yet to be told. It loses nothing that is in the ledger. All methods are safe for concurrent
// use, across replicas too; errors are as for Ledger.
type Outbox interface {
	// Subscribe begins a subscription now, unless it has begun before.
	Subscribe(ctx context.Context, name string) error
	// Next returns the oldest notice that is due, and puts it off for NoticeLease. Nil when there is none, or when
	// another Outbox tells this subscriber; it does until NoticeLease after its last call.
	Next(ctx context.Context, sub Subscription) (*Notice, error)
	// Told ends a notice.
	Told(ctx context.Context, name string, n Notice) error
	// PutOff makes a notice due again after some time.
	PutOff(ctx context.Context, name string, n Notice, after time.Duration) error
	// Release lets others tell this subscriber at once.
	Release(ctx context.Context, name string) error
}
