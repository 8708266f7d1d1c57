package console

import (
	"context"
	"errors"
	"net/http"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/refusal"
)

var (
	errNobody      = errors.New("login required")
	errOldSession  = errors.New("login is too old for a change")
	errOtherPerson = errors.New("form belongs to another person")
	errNotKept     = errors.New("form was not kept")
	errPace        = errors.New("rate limit exceeded")
	errNotAllowed  = errors.New("permission denied")
	errForeignPage = errors.New("cross-origin request refused")
	errForm        = errors.New("invalid form")
	errMethod      = errors.New("method not allowed")
	errLogin       = errors.New("login failed")
	errDeclined    = errors.New("provider declined the login")
	errNotFresh    = errors.New("provider did not confirm a fresh login")
	errSecretText  = errors.New("text appears to contain a secret")
	errCursor      = errors.New("cursor belongs to another listing")
	errSelection   = errors.New("invalid selection")
	errNoReason    = errors.New("reason required")
	errNoDraft     = errors.New("draft has changed")
	errReplaying   = errors.New("replay in progress")
	errExporting   = errors.New("too many concurrent exports")

	errConfirm      = errors.New("confirmation required")       // of a change of the catalogue
	errConfirmation = errors.New("confirmation does not match") // of an order
	errTyped        = errors.New("confirmation does not match") // of the removal of a passkey
)

// trouble describes one kind of failure. The texts are constant: what happened, what it means, and what to do next.
type trouble struct {
	err    error
	code   string // problem code of the API
	status int
	Title  string
	Means  string
	Next   string
}

// troubles maps errors to pages. The first matching row applies; mishap is the default.
var troubles = []trouble{
	{errNobody, "unauthenticated", http.StatusUnauthorized, "Login required", "Your session has ended. Nothing was changed.", "Log in and send the form again."},
	{errOldSession, "unauthenticated", http.StatusUnauthorized, "Log in again to continue", "Before a change, Brevet asks your provider again who you are and which groups you have. Your session goes on. Nothing was changed.", "Log in again and send the form once more."},
	{errOtherPerson, "conflict", http.StatusConflict, "Form of another person", "Somebody else was logged in when this page was opened. Nothing was changed.", "Open the page again and fill in the form yourself."},
	{errNotKept, "invalid_request", http.StatusUnprocessableEntity, "Form was not kept", "The form is too old, or it cannot be kept. Nothing was changed.", "Open the page again and fill in the form."},
	{errLogin, "unauthenticated", http.StatusBadRequest, "Login failed", "The login timed out, or it was started in another window or on another site. You are not logged in.", "Log in again."},
	{errDeclined, "unauthenticated", http.StatusForbidden, "Login declined", "You cancelled the login, or the provider does not let you use this console. You are not logged in.", "Log in again, or ask the administrator of the provider."},
	{errNotFresh, "old_login", http.StatusForbidden, "Recent login not confirmed", "The provider did not confirm that you logged in within the last five minutes. Your session has not changed.", "Log out at the provider and try again. If the problem persists, ask the operator: the provider must support max_age and auth_time."},
	{people.ErrToken, "unauthenticated", http.StatusUnauthorized, "ID token rejected", "The console did not accept the ID token of the provider. You are not logged in.", "Log in again. If the problem persists, contact the operator."},
	{people.ErrProviderUnavailable, "provider_unavailable", http.StatusServiceUnavailable, "OpenID provider unavailable", "The console cannot verify your identity without the provider. Nothing was changed.", "Try again in a few seconds."},
	{errPace, "rate_limited", http.StatusTooManyRequests, "Rate limit exceeded", "Your login sends more requests than the limit for one person allows. Nothing was changed.", "Wait a few seconds. If these are not your requests, log out and contact the operator."},
	{errForeignPage, "not_allowed", http.StatusForbidden, "Cross-origin request refused", "Your browser sent this request on behalf of a page of another site. Nothing was changed, and the attempt is recorded.", "Open the console directly."},
	{errNotAllowed, "not_allowed", http.StatusForbidden, "Permission denied", "This page requires a role that your groups do not have. Nothing was changed, and the attempt is recorded.", "Ask an admin which group has the role."},
	{errForm, "invalid_request", http.StatusUnprocessableEntity, "Incomplete form", "A required field is missing, or a value is too long. Nothing was changed.", "Go back and check the form."},
	{errSecretText, "invalid_request", http.StatusUnprocessableEntity, "Text appears to contain a secret", "The text looks like it contains a secret, and records are permanent. Nothing was changed, and the text was not stored.", "Go back and remove the secret. If it is a real secret, rotate it."},
	{broker.ErrVoid, "stale", http.StatusConflict, "Request is void", "The catalogue changed after the request was made, so nobody can approve it any more. Your vote was not counted.", "Wait for the sandbox: it has to send the request again."},
	{broker.ErrStale, "stale", http.StatusConflict, "Request has changed", "The credential would differ from what this page showed. Your vote was not counted.", "Reload the request and vote again."},
	{broker.ErrDecided, "decided", http.StatusConflict, "Already decided", "The request no longer waits for votes: it was approved, denied, redeemed or withdrawn, or it has expired. Your vote was not counted.", "Open the request to see its state."},
	{broker.ErrOwnRequest, "own_request", http.StatusForbidden, "Own request", "You cannot vote on a request that your own sandbox sent, or that a sandbox sent on your behalf. Your vote was not counted, and the attempt is recorded.", "Ask another member of the group."},
	{broker.ErrNotEligible, "not_eligible", http.StatusForbidden, "Not eligible to vote", "Your login does not show that you are a member of a group that may cast this vote. Your vote was not counted, and the attempt is recorded.", "If you joined the group recently, log out and log in again."},
	{broker.ErrNotRemembered, "invalid_request", http.StatusUnprocessableEntity, "Approval cannot cover the task", "The scope does not allow an approval to cover later requests of the task. Your vote was not counted.", "Vote on this request alone."},
	{broker.ErrNoNote, "invalid_request", http.StatusUnprocessableEntity, "Note required", "A break-glass approval requires a reason. Your vote was not counted.", "Go back and write the reason in the note."},
	{broker.ErrConcurrentChange, "ledger_unavailable", http.StatusServiceUnavailable, "Concurrent votes", "Other votes changed the request each time your vote was about to be recorded. Your vote was not counted.", "Try again in a few seconds."},
	{broker.ErrCrowded, "rate_limited", http.StatusTooManyRequests, "Too many live pages", "You, or all users of this replica together, have too many pages with live updates open.", "Close other pages and reload this one."},
	{errTyped, "invalid_request", http.StatusUnprocessableEntity, "Confirmation does not match", "The name that you typed differs from the name on the page. Nothing was changed.", "Check the name and type it again."},
	{broker.ErrNoPasskeys, "passkeys_not_configured", http.StatusForbidden, "Passkeys not configured", "This action requires a passkey, and the operator has not configured an address for passkeys.", "Contact the operator."},
	{broker.ErrPasskey, "passkey_required", http.StatusForbidden, "Passkey signature required", "The approval must be signed by one of your current passkeys, and it was not. Your vote was not counted.", "Reload the request and approve it with your passkey. If you have none, add one."},
	{broker.ErrNotRegistered, "not_registered", http.StatusUnprocessableEntity, "Passkey was not added", "The response of your device is invalid or too late, or the passkey is already registered.", "Try again."},
	{broker.ErrNotVouched, "passkey_required", http.StatusForbidden, "Existing passkey required", "You already have a passkey, so one of your passkeys must sign the new one. Nothing was added, and the attempt is recorded.", "Try again with a passkey that you have at hand."},
	{broker.ErrOldLogin, "old_login", http.StatusForbidden, "Recent login required", "You can add your first passkey only within five minutes of a login. Nothing was added, and the attempt is recorded.", "Log in again at /login?fresh&return=/you/passkeys and add the passkey."},
	{broker.ErrPasskeyName, "invalid_request", http.StatusUnprocessableEntity, "Invalid passkey name", "A name is one line of visible text, at most 64 characters. Nothing was added.", "Try again with another name."},
	{broker.ErrTooManyPasskeys, "too_many", http.StatusConflict, "Too many passkeys", "You have reached the maximum number of passkeys. Nothing was added.", "Remove a passkey first."},
	{errConfirm, "invalid_request", http.StatusUnprocessableEntity, "Confirmation required", "You did not type the confirmation word. Nothing was changed.", "Go back and type the word exactly as shown."},
	{errNoReason, "invalid_request", http.StatusUnprocessableEntity, "Reason required", "The record keeps the reason for each change to the catalogue. Nothing was changed.", "Go back and give a reason."},
	{errNoDraft, "invalid_catalogue", http.StatusUnprocessableEntity, "Draft has changed", "The draft is invalid, or differs from the one that you reviewed. Nothing was changed.", "Check the draft again and review its effect."},
	{broker.ErrOtherCatalogue, "precondition_failed", http.StatusPreconditionFailed, "Catalogue has changed", "Somebody has changed the catalogue since you opened it. Nothing was changed.", "Review the catalogue in force and start again."},
	{broker.ErrOwnProposal, "own_proposal", http.StatusForbidden, "Own proposal", "You cannot approve a catalogue that you proposed. It is still pending, and the attempt is recorded.", "Ask another admin. You can reject the proposal."},
	{broker.ErrVaultNotPrepared, "vault_not_prepared", http.StatusConflict, "Vault is not prepared", "Vault has no policies for new scopes of the catalogue, or the broker's token role does not allow them. Requests for these scopes would fail. The catalogue in force is unchanged.", "Ask the operator to run brevet bootstrap with --catalogue on the new catalogue, then go back and try again. Or go back and tick the box to apply it all the same."},
	{broker.ErrVaultNotChecked, "vault_unavailable", http.StatusServiceUnavailable, "Vault did not answer", "Vault did not say whether it has the policies of the catalogue's new scopes. The catalogue in force is unchanged.", "Go back and try again in a few seconds. Or go back and tick the box to apply the catalogue without this check."},
	{errReplaying, "rate_limited", http.StatusTooManyRequests, "Replay in progress", "This replica runs one replay at a time. Nothing was changed.", "Try again in 30 seconds, or use brevet catalog replay."},
	{errExporting, "rate_limited", http.StatusTooManyRequests, "Too many exports", "You can run two exports at a time. Nothing was exported.", "Wait until one export finishes."},
	{errMethod, "method_not_allowed", http.StatusMethodNotAllowed, "Method not allowed", "This address does not support the request method. Nothing was changed.", "Open the page from the menu or by its link."},
	{errConfirmation, "invalid_request", http.StatusUnprocessableEntity, "Confirmation does not match", "The text that you typed differs from the text that the form asks for. Nothing was changed.", "Review the target and type the confirmation exactly."},
	{errSelection, "invalid_request", http.StatusUnprocessableEntity, "Invalid selection", "The selection is empty or contains an invalid name. Nothing was changed.", "A SPIFFE ID begins with spiffe://. A task needs the SPIFFE ID of its sandbox."},
	{errCursor, "invalid_cursor", http.StatusBadRequest, "Invalid cursor", "The address of this page of results belongs to another search or to another person, or your access has changed.", "Search again."},
	{broker.ErrTooBroad, "too_broad", http.StatusUnprocessableEntity, "Search too broad", "The search exceeded its limit of two seconds and was cancelled.", "Narrow it by a time, a scope or a sandbox."},
	{broker.ErrNotFound, "not_found", http.StatusNotFound, "Not found", "The page does not exist, or you may not see it.", "Check the address, or open one of the pages above."},
	{audit.ErrNotYet, "not_sealed", http.StatusServiceUnavailable, "No checkpoint yet", "No signed checkpoint covers the entry yet.", "Try again in a few seconds."},
	{broker.ErrLedgerFull, "ledger_full", http.StatusServiceUnavailable, "Database disk full", "The disk of PostgreSQL is full, so Brevet could not record the call. What was not recorded was not done.", "Ask the operator to free space. Brevet continues by itself within seconds."},
	{broker.ErrLedgerUnavailable, "ledger_unavailable", http.StatusServiceUnavailable, "Ledger unavailable", "PostgreSQL does not respond. The console can show and change nothing without it.", "Try again in a few seconds."},
	{broker.ErrVaultUnavailable, "vault_unavailable", http.StatusServiceUnavailable, "Vault unavailable", "Vault does not respond. If you ended a task or revoked credentials, Brevet has recorded the order and completes it when Vault responds again.", "Check again in a few seconds."},
}

var mishap = trouble{
	nil, "internal", http.StatusInternalServerError, "Internal server error", "The console failed with an internal error. The log contains the error.", "Try again. If the problem persists, contact the operator.",
}

// returning is a failure with the page on which the visitor can continue.
type returning struct {
	error

	to string
}

func (r *returning) Unwrap() error { return r.error }

func troubleOf(err error) trouble {
	for _, t := range troubles {
		if errors.Is(err, t.err) {
			return t
		}
	}
	return mishap
}

// troublePage is an error page. Back is the page on which the visitor can continue; empty for the dashboard.
type troublePage struct {
	trouble

	Details []string
	Back    string
	Unsent  *keptForm // the form that the visitor can send again after a login
}

// Code returns the problem code, which is the same as at the API.
func (p troublePage) Code() string { return p.code }

// fail shows the error page for err, and records err if it is a refusal. who is nil until the visitor is authenticated.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, who *visitor, err error) {
	t := troubleOf(err)
	switch {
	case who == nil && errors.Is(err, people.ErrProviderUnavailable):
		c.complaints.Do(func() { c.cfg.Log.ErrorContext(r.Context(), "login unavailable", "code", t.code, "error", err) })
	case t.status >= http.StatusInternalServerError:
		c.cfg.Log.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "code", t.code, "error", err)
	case t.status == http.StatusForbidden || errors.Is(err, people.ErrToken) || errors.Is(err, errPace) || errors.Is(err, broker.ErrNotRegistered):
		c.refuse(r, who, t, err)
	}
	if t.status == http.StatusServiceUnavailable || t.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	data := troublePage{trouble: t}
	if back, ok := errors.AsType[*returning](err); ok {
		data.Back = back.to
	}
	if unprepared, ok := errors.AsType[*broker.VaultNotPreparedError](err); ok {
		data.Details = unprepared.Lines()[:min(len(unprepared.Missing), maxProblems)]
	}
	if form, ok := errors.AsType[*unsent](err); ok {
		data.Unsent = &form.form
	}
	c.show(w, r, who, pageTrouble.view(t.Title, data).withStatus(t.status))
}

// refuse records a refused request. If recording fails, the request is still refused.
func (c *Console) refuse(r *http.Request, who *visitor, t trouble, cause error) {
	ref := broker.Refusal{Code: t.code, Detail: refusal.Reason(cause), Remote: clientip.RemoteIP(r), Operation: "console"}
	if !errors.Is(cause, people.ErrToken) {
		ref.Detail = "console"
	}
	if who != nil {
		ref.Person = who.ID()
	}
	ctx := context.WithoutCancel(r.Context())
	if err := c.cfg.Broker.Refuse(ctx, ref); err != nil {
		c.cfg.Log.ErrorContext(ctx, "refusal not recorded", "code", t.code, "error", err)
	}
}
