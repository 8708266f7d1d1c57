package githubapi

import (
	"net/http"
	"time"
)

// Behaviour says how the double differs from a GitHub that works. The zero value is a GitHub that works.
type Behaviour struct {
	// For says which requests the behaviour is for. Nil means all. Unreachable does not ask it.
	For func(*http.Request) bool
	// Times bounds how many requests the behaviour is for; later ones find a GitHub that works. 0 means no bound.
	Times int

	// Unreachable cuts all connections, also each new one before TLS.
	Unreachable bool
	// Status is an answer such as 500 or 503, before anything is done.
	Status int
	// Delay is how long the double waits before it does anything.
	Delay time.Duration
	// LoseAnswer cuts the connection instead of an answer, after everything is done: a token is made, and nobody knows it.
	LoseAnswer bool
	// CutAnswer sends the half of an answer, after everything is done, and cuts the connection.
	CutAnswer bool
	// Limit makes GitHub limit the rate of calls.
	Limit Limit
	// RetryAfter is what a limit says about the next call. 0 means a limit that does not say it.
	RetryAfter time.Duration
	// OtherGrant changes what a new token may do.
	OtherGrant func(*Grant)
	// UnknownFields adds fields that GitHub's description does not have to all objects.
	UnknownFields bool
	// Stateless makes tokens of the format ghs_APPID_JWT, of some hundred characters.
	Stateless bool
	// Settling is how long GitHub answers 401 to a new token, because not all of its servers know it yet.
	Settling time.Duration
}

// Limit is a kind of rate limit of GitHub.
type Limit string

// The kinds of limits. GitHub says that either can answer 403 or 429.
const (
	NoLimit Limit = ""
	// Primary is the number of calls per hour: 403 with x-ratelimit-remaining: 0 and x-ratelimit-reset.
	Primary Limit = "primary"
	// Secondary is a limit on bursts: 403 with retry-after.
	Secondary Limit = "secondary"
	// TooMany is a secondary limit that answers 429.
	TooMany Limit = "429"
)

// Grant is what a token may do.
type Grant struct {
	Installation int64
	// Selection is all or selected.
	Selection string
	// Repositories are full names.
	Repositories []string
	Permissions  map[string]string
	Life         time.Duration
}

// Behave sets the behaviour from now on.
func (s *Server) Behave(b Behaviour) {
	s.mu.Lock()
	s.behaviour = b
	if b.Times > 0 && b.For == nil {
		s.behaviour.For = func(*http.Request) bool { return true }
	}
	s.mu.Unlock()
	s.listener.cut(b.Unreachable)
}

// behaviourFor returns the behaviour for a request. The caller holds the lock.
func (s *Server) behaviourFor(r *http.Request) Behaviour {
	b := s.behaviour
	if b.For != nil && !b.For(r) {
		return Behaviour{}
	}
	if b.Times > 0 {
		if s.behaviour.Times--; s.behaviour.Times == 0 {
			s.behaviour = Behaviour{}
		}
	}
	return b
}

// CreatesToken reports whether a request makes an installation token, for Behaviour.For.
func CreatesToken(r *http.Request) bool {
	return r.Method == http.MethodPost && tokenPath.MatchString(r.URL.Path)
}

// DeletesToken reports whether a request ends an installation token, for Behaviour.For.
func DeletesToken(r *http.Request) bool {
	return r.Method == http.MethodDelete && (r.URL.Path == "/installation/token" || r.URL.Path == "/api/v3/installation/token")
}
