package httpapi

import (
	"errors"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/ratelimit"
)

const (
	// issuedAtOnce is how many credentials a replica issues at once for each processor, and for one sandbox. With more, each
	// would wait longer and none would be ready sooner (about 32 keep a processor busy), so a request beyond the limit is refused
	// before any decision. Revocations, votes, introspection and checks do not count, so that no number of requests can keep a
	// credential alive.
	issuedAtOnce = 64
	// A person makes a few calls for each page, and more at once to decide on many requests. A caller beyond these limits is a
	// program (H95).
	callsPerSecond, callsAtOnce = 20, 200
	// pollsPerSecond is one poll every pollAfter seconds, with a second of tolerance for the network.
	pollsPerSecond = 1.0 / (pollAfter - 1)
	// A sandbox lists its scopes once, and again after a change. Each call evaluates all policies for all scopes.
	offersPerSecond, offersAtOnce = 1, 10
	// A gateway reports the uses of each credential once, and of all its credentials when it stops.
	reportsPerSecond, reportsAtOnce = 20, 1000
)

// enter takes a place among the credentials that are issued at once. The caller must call leave to free it; more calls of leave
// do nothing.
func (s *Server) enter(who attest.Identity) (leave func(), err error) {
	leave, err = s.issuing.Enter(who.ID().String())
	switch {
	case errors.Is(err, ratelimit.ErrKeyBusy):
		return nil, &requestError{kind: errTooMany, detail: "lane"}
	case err != nil:
		return nil, &requestError{kind: errBusy, detail: "lane"}
	}
	return leave, nil
}
