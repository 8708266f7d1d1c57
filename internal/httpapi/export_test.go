package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/ratelimit"
	. "github.com/brevet-dev/brevet/openapi"
)

// Internals that the tests of this package use.
var (
	ParseObject  = parseObject
	NewCursors   = newCursors
	ListingOf    = listingOf
	CursorSeal   = (*cursors).seal
	CursorOpen   = (*cursors).open
	ErrCursor    = errCursor
	ErrMalformed = errMalformedBody
)

// ReadDetails returns the type in authorization_details.
func ReadDetails(text string) (string, error) {
	d, err := readDetails(form{"authorization_details": text})
	return d.Type, err
}

// Causes maps the causes of failed authentication to their fixed texts.
var Causes = causes

// DetailOf returns the fixed code that the record would have for err.
func DetailOf(err error) string { return requestErrorOf(err).detail }

// ProblemCodes returns the code and status of every row of the table, and of the fallback.
func ProblemCodes() map[ProblemCode]int {
	all := map[ProblemCode]int{internal.code: internal.status}
	for _, a := range answers {
		all[a.code] = a.status
	}
	return all
}

// Operations returns "METHOD /path" of every operation in the description.
func Operations() ([]string, error) {
	ru, err := sharedRules()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, rule := range ru {
		all = append(all, rule.Method+" "+rule.Path)
	}
	return all, nil
}

// MakeAtOnce sets how many credentials are issued at once in total and for one sandbox.
func (s *Server) MakeAtOnce(most, each int) { s.issuing = ratelimit.NewFairSemaphore(most, each) }

// EndAtOnce sets how many calls of workloads end something at once in total and for one sandbox.
func (s *Server) EndAtOnce(most, each int) { s.ending = ratelimit.NewFairSemaphore(most, each) }

// OrderAtOnce sets how many orders of workloads are carried out at once in total and for one workload.
func (s *Server) OrderAtOnce(most, each int) { s.ordering = ratelimit.NewFairSemaphore(most, each) }

// ConfirmAtOnce sets how many questions which credentials are in force are answered at once in total and for one sandbox.
func (s *Server) ConfirmAtOnce(most, each int) { s.confirming = ratelimit.NewFairSemaphore(most, each) }

// HoldIntrospections takes all places for introspection that a caller can have, until release is called.
func (s *Server) HoldIntrospections(trustDomain, caller string) (release func()) {
	var leaves []func()
	for {
		leave, err := s.introspecting.Enter(trustDomain, caller)
		if err != nil {
			break
		}
		leaves = append(leaves, leave)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// HoldReads fills the queues for reads with as many entries of a caller as there can be, until release is called and they have left.
func (s *Server) HoldReads(ctx context.Context, trustDomain, caller string) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, queue := range []*ratelimit.FairQueue{s.reading, s.auditing} {
		for range maxReadingEach {
			all.Go(func() {
				for ctx.Err() == nil {
					if leave, err := queue.Enter(ctx, trustDomain, caller); err == nil {
						<-ctx.Done()
						leave()
					}
					select { // a request of the test has the place for now
					case <-ctx.Done():
					case <-time.After(time.Millisecond):
					}
				}
			})
		}
	}
	return func() { cancel(); all.Wait() }
}

// MaxTokens is the usual limit of a body.
const MaxTokens = maxTokens
