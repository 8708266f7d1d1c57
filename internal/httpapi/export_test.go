package httpapi

import (
	"github.com/brevet-dev/brevet/internal/ratelimit"
	. "github.com/brevet-dev/brevet/openapi"
)

// What the tests of this package see of its inside.
var (
	CheckObject  = checkObject
	NewCursors   = newCursors
	ListingOf    = listingOf
	CursorSeal   = (*cursors).seal
	CursorOpen   = (*cursors).open
	ErrCursor    = errCursor
	ErrMalformed = errMalformedBody
)

// ReadDetails is the type that authorization_details name.
func ReadDetails(text string) (string, error) {
	d, err := readDetails(form{"authorization_details": text})
	return d.Type, err
}

// Causes are the fixed texts of why a caller was not authenticated.
var Causes = causes

// DetailOf is the fixed code that would be recorded of err.
func DetailOf(err error) string { return requestErrorOf(err).detail }

// ProblemCodes lists the code and status of every row of the table, and of the fallback.
func ProblemCodes() map[ProblemCode]int {
	all := map[ProblemCode]int{internal.code: internal.status}
	for _, a := range answers {
		all[a.code] = a.status
	}
	return all
}

// Operations lists "METHOD /path" of every operation in the description.
func Operations() ([]string, error) {
	ru, err := sharedRules()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, route := range ru.routes {
		all = append(all, route.Method+" "+route.Path)
	}
	return all, nil
}

// MakeAtOnce sets how many credentials are made at a time, and how many for one sandbox.
func (s *Server) MakeAtOnce(most, each int) { s.issuing = ratelimit.NewSemaphore(most, each) }
