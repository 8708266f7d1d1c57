package httpapi

import (
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

// ReadAtOnce sets how many searches of sandboxes, and questions which credentials are in force, are answered at once in total and for
// one sandbox.
func (s *Server) ReadAtOnce(most, each int) {
	s.confirming, s.searching = ratelimit.NewFairSemaphore(most, each), ratelimit.NewFairSemaphore(most, each)
}
