package github

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
)

var (
	// ErrInvalid means that the call asks for what must not be asked of GitHub, such as a token for all repositories. Nothing was
	// sent.
	ErrInvalid = errors.New("the grant cannot be asked of GitHub")

	errCutOff        = errors.New("the answer was cut off")
	errTooLarge      = errors.New("the answer is too large")
	errNotUnderstood = errors.New("the answer was not understood")
	errNoAnswer      = errors.New("no answer in time")
	errFailed        = errors.New("the connection failed")
	errYoung         = errors.New("GitHub does not know the token yet")
)

// RefusedError means that GitHub refuses the call, so it has made or ended nothing. A retry does not help until somebody changes
// the App, its installation, its key, the scope or the clock.
type RefusedError struct {
	Status int
	// Message is GitHub's own, clipped. It is empty if the answer has none.
	Message string
	// Advice says what the refusal means and what to do about it.
	Advice string
}

func (e *RefusedError) Error() string {
	text := "GitHub refuses: " + status(e.Status, e.Message)
	if e.Advice != "" {
		text += ": " + e.Advice
	}
	return text
}

// LimitedError means that GitHub limits the rate of calls. It has made or ended nothing.
type LimitedError struct {
	Status  int
	Message string
	// RetryAfter says how long to wait before the next call: a second at least, an hour at most.
	RetryAfter time.Duration
}

func (e *LimitedError) Error() string {
	return fmt.Sprintf("GitHub limits the rate of calls: %s: the next call may be made in %s",
		status(e.Status, e.Message), e.RetryAfter.Round(time.Second))
}

// UnreachableError means that nothing was sent to GitHub.
type UnreachableError struct{ cause error }

func (e *UnreachableError) Error() string { return "GitHub cannot be reached: " + e.cause.Error() }

func (e *UnreachableError) Unwrap() error { return e.cause }

// LostError means that the call was sent and its outcome is unknown. A call that makes a token may have made one, which lives for
// MaxLife at most. A call that ends a token may not have ended it.
type LostError struct {
	// Status is 0 if there was no answer.
	Status  int
	Message string
	cause   error
}

func (e *LostError) Error() string {
	text := "the outcome at GitHub is unknown"
	if e.Status != 0 {
		text += ": " + status(e.Status, e.Message)
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *LostError) Unwrap() error { return e.cause }

// GrantError means that GitHub made a token that is not the one that was asked for. The token is alive: the caller has to delete it.
type GrantError struct {
	Token Token
	// Difference says in what the token differs.
	Difference string
}

func (e *GrantError) Error() string {
	return "GitHub made another token than the one that was asked for: " + e.Difference
}

// advise says what a refusal of a call means.
func advise(call string, code int) string {
	if code >= 300 && code <= 399 {
		return "the App's url is not that of GitHub's REST API: it redirects"
	}
	if call == deleting {
		return ""
	}
	switch code {
	case http.StatusUnauthorized:
		return "check that client_id is that of the App, that the key in Vault is a current key of the App, and that the clock of this machine is right"
	case http.StatusForbidden:
		return "the App or its installation is suspended, or an IP allow list of the owner excludes Brevet"
	case http.StatusNotFound:
		return "there is no such App, or it has no such installation: check client_id, the App's url, and the scope's app and installation"
	case http.StatusUnprocessableEntity:
		return "a repository is not in the installation, or the installation lacks a permission: check the scope's repositories and " +
			"permissions, and what the owner has granted to the App"
	default:
		return "GitHub answers with a status that its API does not define for this call: the log of the server has GitHub's message"
	}
}

func status(code int, message string) string {
	if message == "" {
		return fmt.Sprintf("status %d", code)
	}
	return fmt.Sprintf("status %d (%s)", code, message)
}

// cause returns an error that says why a call failed, without any text of the server that is not clipped. Errors end up in logs.
func cause(err error) error {
	var network *net.OpError
	var late net.Error
	var name *net.DNSError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.As(err, &untrusted):
		return errors.New("its certificate is not trusted: " + clip(untrusted.Err.Error()))
	case errors.As(err, &name):
		return name
	case errors.As(err, &network) && network.Op != "remote error": // a TLS alert has no address to show
		return network
	case errors.As(err, &late) && late.Timeout():
		return errNoAnswer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errCutOff
	case errors.Is(err, errTooLarge):
		return errTooLarge
	}
	return errFailed
}

// clip shortens a text of GitHub, and hides what could be a token in it.
func clip(text string) string { return safetext.Clip(text, longestMessage) }

// longestMessage is how much of a message of GitHub is kept, in bytes.
const longestMessage = 200

// clipName shows the name of a repository or a permission. GitHub's repositories have up to 140 characters with their owner.
// secret.Shaped finds the tokens among them.
func clipName(name string) string {
	if secret.Shaped(name) {
		return "[...]"
	}
	return safetext.Text(safetext.Shorten(name, 140))
}
