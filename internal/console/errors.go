package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	"github.com/brevet-dev/brevet/internal/refusal"
)

var (
	errNobody      = errors.New("nobody is logged in")
	errPace        = errors.New("too many calls of one person")
	errNotAllowed  = errors.New("the role is missing")
	errForeignPage = errors.New("a page of another site calls")
	errForm        = errors.New("the form cannot be read")
	errMethod      = errors.New("the method is not allowed here")
)

// trouble is how one kind of failure is told. The texts are fixed: what happened, what it means, and what to do next.
type trouble struct {
	err    error
	code   string // as the API has it
	status int
	Title  string
	Means  string
	Next   string
}

// troubles is the one table from errors to pages. The first row that matches answers; mishap is for the rest.
var troubles = []trouble{
	{errNobody, "unauthenticated", http.StatusUnauthorized, "You are not logged in", "Your login has ended, so nothing was done.", "Log in, and do it again."},
	{errLogin, "unauthenticated", http.StatusBadRequest, "The login did not come to its end", "It took too long, was begun in another window, or was not begun here. You are not logged in.", "Log in again."},
	{errDeclined, "unauthenticated", http.StatusForbidden, "The provider did not log you in", "It was cancelled, or you may not use this console. You are not logged in.", "Log in again, or ask whoever runs the provider."},
	{people.ErrToken, "unauthenticated", http.StatusUnauthorized, "The login proves nobody", "What the provider sent is not accepted. You are not logged in.", "Log in again. If it stays so, tell the operator."},
	{people.ErrProviderUnavailable, "provider_unavailable", http.StatusServiceUnavailable, "The provider does not answer", "Who you are cannot be told without it. Nothing was done.", "Try again in some seconds."},
	{errPace, "rate_limited", http.StatusTooManyRequests, "Too many calls", "More calls come by your login than a person makes. Nothing was done.", "Wait some seconds. If these are not your calls, log out and tell the operator."},
	{errForeignPage, "not_allowed", http.StatusForbidden, "Another site called", "Your browser made this call for a page of another site. Nothing was done, and the call is recorded.", "Open the console by itself."},
	{errNotAllowed, "not_allowed", http.StatusForbidden, "This is not for you to see or to do", "It takes a role that your groups do not have. Nothing was done, and the call is recorded.", "Ask an admin which group it takes."},
	{errForm, "invalid_request", http.StatusUnprocessableEntity, "The form is not complete", "Something that is needed is missing or too long. Nothing was done.", "Go back, and look at it again."},
	{errSecretText, "invalid_request", http.StatusUnprocessableEntity, "The text holds what looks like a secret", "Records are kept for good, so it was not kept. Nothing was done.", "Go back, and say it without. If it was a secret, change it."},
	{broker.ErrStale, "stale", http.StatusConflict, "It is not what you looked at", "What would be issued is not, byte for byte, what your page showed. Your vote was not counted.", "Look at it again, and decide on what is there."},
	{broker.ErrDecided, "decided", http.StatusConflict, "It is decided already", "The request does not wait for votes any more: it was decided, redeemed, withdrawn or has expired. Your vote was not counted.", "Look at what became of it."},
	{broker.ErrOwnRequest, "own_request", http.StatusForbidden, "It is your own request", "Nobody decides on what their own sandbox asks for, nor on what is asked on their behalf.", "Ask somebody else of the group. A try is recorded."},
	{broker.ErrNotEligible, "not_eligible", http.StatusForbidden, "You are not in the group that decides", "It waits for a group that your login does not say you are in.", "If you have joined the group since, log out and in again. A try is recorded."},
	{broker.ErrNotRemembered, "invalid_request", http.StatusUnprocessableEntity, "It cannot cover the task", "The scope lets nobody's yes stand for the same ask again. Your vote was not counted.", "Vote on this request alone."},
	{broker.ErrNoNote, "invalid_request", http.StatusUnprocessableEntity, "Say why you break the glass", "Who approves in place of the group that was asked has to say why. Your vote was not counted.", "Go back, and say it in the note."},
	{broker.ErrOvertaken, "ledger_unavailable", http.StatusServiceUnavailable, "Too many vote at once", "Others moved the request each time that your vote was to be recorded. It was not counted.", "Look at it again in some seconds."},
	{broker.ErrCrowded, "rate_limited", http.StatusTooManyRequests, "Too many listen", "So many pages of yours, or of everybody, are live that this one is not.", "Close the others, and load this one again."},
	{errTyped, "invalid_request", http.StatusUnprocessableEntity, "That is not what was to be typed", "To confirm it you type the name that the page shows, letter by letter. Nothing was done.", "Look at the name again."},
	{broker.ErrNoPasskeys, "passkeys_not_configured", http.StatusForbidden, "There are no passkeys here", "It takes a passkey, and this Brevet has no console whose address passkeys could be for.", "Tell the operator."},
	{broker.ErrPasskey, "passkey_required", http.StatusForbidden, "It is not signed by your passkey", "A yes to this has to be signed by a passkey of yours, and was not, or by one that is not yours any more. Your vote was not counted.", "Look at it again, and approve it with your passkey. If you have none, add one."},
	{broker.ErrNotRegistered, "not_registered", http.StatusUnprocessableEntity, "The passkey was not added", "What your device has answered is not what was asked for, came too late, or the passkey was somebody's before.", "Try again."},
	{broker.ErrNotVouched, "passkey_required", http.StatusForbidden, "Another passkey of yours has to say so", "You have a passkey already, and whoever finds your session open has not: one of yours has to sign that you add another. Nothing was added, and the try is recorded.", "Try again, with a passkey that you have at hand."},
	{broker.ErrOldLogin, "old_login", http.StatusForbidden, "You logged in too long ago", "A first passkey is added within five minutes of a login, since whoever finds your session open is not you. Nothing was added, and the try is recorded.", "Log in anew at /login?return=/you/passkeys, and add it at once."},
	{broker.ErrPasskeyName, "invalid_request", http.StatusUnprocessableEntity, "The passkey has no name", "A name is one line of visible text, of 64 characters at most. Nothing was added.", "Try again, with a name."},
	{broker.ErrTooManyPasskeys, "too_many", http.StatusConflict, "You have too many passkeys", "You have as many as you can. Nothing was added.", "Remove one first."},
	{errConfirm, "invalid_request", http.StatusUnprocessableEntity, "You did not type the word", "What cannot be taken back lightly asks for a word to be typed. Nothing was done.", "Go back, and type it as it is written there."},
	{errNoReason, "invalid_request", http.StatusUnprocessableEntity, "Say why", "The record keeps why the catalogue changes, for whoever asks later. Nothing was done.", "Go back, and give a reason."},
	{errNoDraft, "invalid_catalogue", http.StatusUnprocessableEntity, "The draft is not what was shown", "What came is no catalogue, or not the one that you looked at. Nothing was done.", "Check the draft again, and look at what it would do."},
	{broker.ErrOtherCatalogue, "precondition_failed", http.StatusPreconditionFailed, "Another catalogue is in force by now", "Somebody has changed it since you looked. Nothing was done.", "Look at what is in force, and begin from there."},
	{broker.ErrOwnProposal, "own_proposal", http.StatusForbidden, "You have proposed it yourself", "Nobody approves the catalogue that they have proposed. It stays proposed, and the try is recorded.", "Ask another admin. You can reject it."},
	{errReplaying, "rate_limited", http.StatusTooManyRequests, "A replay is under way", "This replica does one at a time, for the sake of everybody else. Nothing was done.", "Try again in half a minute, or use brevet catalog replay."},
	{errExporting, "rate_limited", http.StatusTooManyRequests, "You are saving two files already", "One person saves two at a time. Nothing was saved.", "Wait until one of them is there, and save this one then."},
	{errMethod, "method_not_allowed", http.StatusMethodNotAllowed, "That is not how this page is used", "Nothing was done.", "Begin with the page itself."},
	{errConfirmation, "invalid_request", http.StatusUnprocessableEntity, "It was not confirmed", "What you typed is not what the form asks for. Nothing was done.", "Look again at what it is about, and type what is asked for exactly."},
	{errSelection, "invalid_request", http.StatusUnprocessableEntity, "It is not clear what this is about", "Nothing is selected, or something that is no name. Nothing was done.", "SPIFFE IDs begin with spiffe://, and a task goes with its sandbox."},
	{errCursor, "invalid_cursor", http.StatusBadRequest, "The list has no such place", "The address belongs to another search, to somebody else, or to what you could see before.", "Search again."},
	{broker.ErrTooBroad, "too_broad", http.StatusUnprocessableEntity, "That took too long", "The search was given up after two seconds, so that others do not wait for it.", "Narrow it by a time, a scope or a sandbox."},
	{broker.ErrNotFound, "not_found", http.StatusNotFound, "There is no such thing", "Nothing is here that you may see.", "Check the address, or begin with one of the pages above."},
	{audit.ErrNotYet, "not_sealed", http.StatusServiceUnavailable, "It is not signed yet", "No checkpoint covers it at the moment.", "Try again in some seconds."},
	{broker.ErrLedgerUnavailable, "ledger_unavailable", http.StatusServiceUnavailable, "The record does not answer", "PostgreSQL cannot be asked at the moment, and without it nothing is shown or done.", "Try again in some seconds."},
	{broker.ErrVaultUnavailable, "vault_unavailable", http.StatusServiceUnavailable, "Vault does not answer", "What takes Vault is not done. What was ordered is recorded, and is carried out when Vault is back.", "Look again in some seconds."},
}

var mishap = trouble{
	nil, "internal", http.StatusInternalServerError, "Something went wrong here", "The console met a fault of its own. It is in the log.", "Try again. If it stays so, tell the operator.",
}

// returning is a failure after which somebody best goes on at a page of the console.
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

// complaintsEvery is how often the log says that a provider does not answer: anybody can have it asked.
const complaintsEvery = 5 * time.Second

// fail shows what went wrong, and records it when it is a refusal. who is nil until somebody is logged in.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, who *visitor, err error) {
	t := troubleOf(err)
	switch {
	case who == nil && errors.Is(err, people.ErrProviderUnavailable):
		c.complaints.Do(func() { c.cfg.Log.ErrorContext(r.Context(), "people cannot log in", "code", t.code, "error", err) })
	case t.status >= http.StatusInternalServerError:
		c.cfg.Log.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "code", t.code, "error", err)
	case t.status == http.StatusForbidden || errors.Is(err, people.ErrToken) || errors.Is(err, errPace) || errors.Is(err, broker.ErrNotRegistered):
		c.refuse(r, who, t, err)
	}
	if t.status == http.StatusServiceUnavailable || t.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	data := struct {
		trouble
		Back string
	}{trouble: t}
	if back := (*returning)(nil); errors.As(err, &back) {
		data.Back = back.to
	}
	c.show(w, r, who, view{page: "trouble", title: t.Title, data: data, status: t.status})
}

// refuse records a call that was turned away. The answer is a refusal with or without it.
func (c *Console) refuse(r *http.Request, who *visitor, t trouble, cause error) {
	ref := broker.Refusal{Code: t.code, Detail: refusal.Reason(cause), Remote: ratelimit.RemoteIP(r), Operation: "console"}
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
