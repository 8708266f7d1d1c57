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

// bearer is whose token a call carries, which decides what a 403 means.
type bearer int

const (
	ownToken     bearer = iota // the broker's: its login is no longer good
	wrapperToken               // of one credential: its policy is not in Vault
)

// exchange makes one call to Vault within the timeout. Unlike call it says nothing about Vault's health: what lies
// behind an engine may be down, or a scope badly set up, while everything else works.
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

// loginRefused has Run log in again, unless it has since the refused call began.
func (m *Minter) loginRefused(login int64) {
	if login != m.logins.Load() {
		return
	}
	select {
	case m.refused <- struct{}{}:
	default: // already asked for
	}
}

// statusOf is the status of an answer that is an error, and 0 for what is no answer.
func statusOf(err error) int {
	var answer *answerError
	if errors.As(err, &answer) {
		return answer.status
	}
	return 0
}

// refuses tells whether Vault will say the same again until somebody changes its configuration. A 403 is not for
// here to judge, and what says "later" or "elsewhere" is none.
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

// unmounted tells whether Vault answered that no engine is mounted where it was asked.
func unmounted(err error) bool { return says(err, "no handler for route") }

// engineOf is the mount that an intent's credential comes from. The scope names one for the kinds whose path Brevet makes of mount, verb
// and role; for others only Vault knows which part of the path is the mount.
func engineOf(intent broker.Intent) string {
	switch intent.Kind {
	case scopes.KindDatabase, scopes.KindPKI, scopes.KindSSH:
		return path.Dir(path.Dir(intent.Grant.Path))
	default:
		return intent.Grant.Path
	}
}

// nothingDone tells whether a failed call certainly made nothing: Vault refused it, or was not reached.
func nothingDone(err error) bool {
	var network *net.OpError
	var untrusted *tls.CertificateVerificationError
	return statusOf(err)/100 == 4 || (errors.As(err, &network) && network.Op == "dial") || errors.As(err, &untrusted)
}
