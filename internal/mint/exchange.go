package mint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// bearer says whose token a call carries. That decides what a 403 means.
type bearer int

const (
	ownToken     bearer = iota // the broker's: a 403 means that its login is no longer good
	wrapperToken               // one credential's: a 403 means that its policy is not in Vault
)

// exchange makes one call to Vault within the timeout. Unlike call, it does not record Vault's health: the system behind an
// engine may be down, or a scope misconfigured, while everything else works.
func (m *Minter) exchange(
	ctx context.Context, doing string, whose bearer, do func(context.Context) (*api.Secret, error),
) (*api.Secret, error) {
	login := m.logins.Load()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	answer, err := do(bounded)
	if err == nil {
		return answer, nil
	}
	status := statusOf(err)
	if refuses(status) || (status == http.StatusForbidden && whose == wrapperToken) {
		return nil, refusedBy(doing, err)
	}
	if status == http.StatusForbidden {
		m.loginRefused(login)
	}
	return nil, unavailable(doing, err)
}

// loginRefused makes Run log in again, unless Run has done so since the refused call began.
func (m *Minter) loginRefused(login int64) {
	if login != m.logins.Load() {
		return
	}
	select {
	case m.refused <- struct{}{}:
	default: // already asked for
	}
}

// statusOf returns the status of an error answer, and 0 if the error is not an answer.
func statusOf(err error) int {
	var answer *answerError
	if errors.As(err, &answer) {
		return answer.status
	}
	return 0
}

// refuses reports whether Vault will give the same answer until its configuration changes. It leaves a 403 to the caller. A
// status that means "later" or "elsewhere" is not a refusal.
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

func refusedBy(doing string, err error) error {
	var answer *answerError
	errors.As(err, &answer)
	return fmt.Errorf("%w: %s: %w", broker.ErrVaultRefused, doing, answer)
}

// unmounted reports whether Vault answered that no engine is mounted at the path.
func unmounted(err error) bool { return says(err, "no handler for route") }

// engineOf returns the mount that an intent's credential comes from. For the kinds whose path Brevet builds from mount, verb and
// role, the scope names the mount. For other kinds it returns the whole path, because only Vault knows which part of it is the
// mount.
func engineOf(intent broker.Intent) string {
	switch intent.Kind {
	case scopes.KindDatabase, scopes.KindPKI, scopes.KindSSH:
		return path.Dir(path.Dir(intent.Grant.Path))
	default:
		return intent.Grant.Path
	}
}

// nothingDone reports whether a failed call certainly made nothing: Vault refused it, or was never reached.
func nothingDone(err error) bool {
	var network *net.OpError
	var untrusted *tls.CertificateVerificationError
	return statusOf(err)/100 == 4 || (errors.As(err, &network) && network.Op == "dial") || errors.As(err, &untrusted)
}
