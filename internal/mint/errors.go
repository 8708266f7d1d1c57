package mint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safetext"
)

var (
	// ErrConfig means that the configuration is wrong. A retry does not help.
	ErrConfig = errors.New("mint configuration")
	// ErrKeyUnfit means that Vault has the signing key but Brevet must not or cannot use it: it has another type, is derived, or
	// can leave Vault.
	ErrKeyUnfit = errors.New("signing key is unfit")

	errTooLarge      = errors.New("answer is too large")
	errNoAnswer      = errors.New("no answer in time")
	errCutOff        = errors.New("answer was cut off")
	errNotUnderstood = errors.New("answer was not understood")
	errStillThere    = errors.New("the revoked token or lease still exists")
)

// answerError is an error status in an answer of Vault.
type answerError struct {
	status   int
	messages []string // Vault's messages, clipped
	listed   bool     // the answer has a list of messages, even an empty one, as every error answer of Vault
}

func (e *answerError) Error() string {
	if len(e.messages) == 0 {
		return fmt.Sprintf("status %d", e.status)
	}
	return fmt.Sprintf("status %d (%s)", e.status, strings.Join(e.messages, "; "))
}

// unavailable builds the error that callers see when a call to Vault fails. It drops every cause that may hold unclipped text of
// the server. Error texts end up in logs, and a hostile server may repeat the token in any part of its answer.
func unavailable(doing string, err error) error {
	var answer *answerError
	var network *net.OpError
	var late net.Error
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &answer):
		err = answer
	case errors.Is(err, errTooLarge):
		err = errTooLarge
	case errors.Is(err, context.Canceled):
		err = context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		err = context.DeadlineExceeded
	case errors.As(err, &untrusted):
		err = errors.New("certificate of Vault is not trusted: " + clip(untrusted.Err.Error()))
	case errors.As(err, &network):
		err = network
	case errors.As(err, &late) && late.Timeout():
		err = errNoAnswer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errCutOff
	default:
		err = errNotUnderstood
	}
	return fmt.Errorf("%w: %s: %w", broker.ErrVaultUnavailable, doing, err)
}

// clip shortens a text of Vault, and hides what could be a secret in it.
func clip(text string) string { return safetext.Clip(text, longestMessage) }

// longestMessage is how much of a message of Vault is kept, in bytes.
const longestMessage = 160

// statusOf returns the status of an error answer, and 0 if the error is not an answer.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.status
	}
	return 0
}

// refuses reports whether Vault will give the same answer until its configuration changes. It returns false for a 403, whose
// meaning depends on the caller, and for a status that means "later" or "elsewhere".
func refuses(status int) bool {
	switch status {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusPreconditionFailed:
		return false
	case 472, 473: // standbys of Vault Enterprise
		return false
	default:
		return status/100 == 4
	}
}

// NoActiveNode reports whether an error is an answer of a Vault that is sealed, or whose nodes have not agreed on an active one.
func NoActiveNode(err error) bool {
	status := statusOf(err)
	return status >= 300 && !refuses(status) && status != http.StatusForbidden
}

// says reports whether an error answer of Vault contains these words.
func says(err error, words string) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && slices.ContainsFunc(answer.messages, func(message string) bool { return strings.Contains(message, words) })
}

// unmounted reports whether Vault answered that no engine is mounted at the path.
func unmounted(err error) bool { return says(err, "no handler for route") }

// missing reports whether Vault itself says that there is nothing at a path. The status alone is not enough: a load balancer in front of
// Vault also answers 404.
func missing(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && answer.status == http.StatusNotFound && answer.listed && len(answer.messages) == 0
}

// gone reports whether Vault says that the token or lease does not exist, by both the status and the words of its answer. The
// status alone is not enough: a 404 can mean an unknown path, and a 403 can be about our own login.
func gone(err error, words []string) bool {
	return slices.Contains([]int{http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound}, statusOf(err)) &&
		slices.ContainsFunc(words, func(word string) bool { return says(err, word) })
}
