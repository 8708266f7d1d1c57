package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/internal/ratelimit"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// answer is how one kind of failure is told. The texts are fixed: they say what happened, what it means and what to
// do next, and hold nothing of the call.
type answer struct {
	err    error
	code   ProblemCode
	status int
	title  string
	detail string
}

// retryAfter is the seconds that a caller is asked to wait when the trouble may pass.
const retryAfter = 5

// ProblemText is what a problem says, always.
type ProblemText struct {
	Code          string
	Status        int
	Title, Detail string
}

// ProblemTexts are all that the API can answer with, for who documents it.
func ProblemTexts() []ProblemText {
	var all []ProblemText
	for _, a := range append(slices.Clone(answers), internal) {
		all = append(all, ProblemText{string(a.code), a.status, a.title, a.detail})
	}
	return all
}

// answers is the one table from errors to problems. The first row that matches answers; internal is for the rest.
var answers = []answer{
	{
		errMalformedBody, CodeMalformedBody, http.StatusBadRequest, "The body cannot be read",
		"The body is not one JSON object with the members that the API describes, each at most once. Nothing was decided. Compare it with /openapi.yaml; names are case-sensitive.",
	},
	{
		errForm, CodeMalformedBody, http.StatusBadRequest, "The form cannot be read",
		"The body is not a form (application/x-www-form-urlencoded in UTF-8) that has each parameter once at most. Nothing was decided. Compare it with /openapi.yaml.",
	},
	{
		errParameter, CodeInvalidParameter, http.StatusBadRequest, "A parameter is not acceptable",
		"A query or header parameter is unknown, repeated, or not of the form that the API describes. Nothing was read. Compare it with /openapi.yaml.",
	},
	{
		errCursor, CodeInvalidCursor, http.StatusBadRequest, "The cursor is not valid",
		"A cursor only continues the listing that it came from, with the same filters and the same caller. Start again without a cursor.",
	},
	{
		errUnauthenticated, CodeUnauthenticated, http.StatusUnauthorized, "Authentication required",
		"The call came without an SVID or ID token that this server accepts, so nothing was decided; reason and explanation name the cause. Fetch a fresh SVID from the Workload API and send it: an X.509-SVID over mutual TLS, or a JWT-SVID whose only audience is this server's issuer. A person logs in again, and sends the ID token without a certificate.",
	},
	{
		errToken, CodeInvalidToken, http.StatusUnauthorized, "The token does not open anything",
		"The call came without an access token, or with one that is not in force for whoever sent it here. The call did not pass. Ask for a new token, and send it with the key that it is bound to.",
	},
	{
		broker.ErrNotOpened, CodeInsufficientScope, http.StatusForbidden, "The token is not for this call",
		"The token is in force, and the egress rules of its scope do not have this call: explanation says how far they go. The call did not pass. Ask for a token of a scope that has it.",
	},
	{
		errUnclear, CodeNotAllowed, http.StatusForbidden, "Which call it is about is not clear",
		"The gateway has to tell of exactly one call, in one of the ways that the documentation of gateways describes. The call did not pass. If you did not send such headers yourself, tell the operator.",
	},
	{
		errProof, CodeInvalidDPoPProof, http.StatusUnauthorized, "The DPoP proof does not prove the key",
		"The call came with a proof (RFC 9449) that is not one for this call, made just now: explanation says what is wrong with it. Nothing was decided. Make a fresh proof for each call, also when you repeat one, for the address that you call.",
	},
	{
		errNonce, CodeUseDPoPNonce, http.StatusUnauthorized, "The DPoP proof needs a nonce",
		"The proof lacks the nonce of this server, or has one that is too old. Nothing was decided. Make another proof with the nonce in DPoP-Nonce and ask again.",
	},
	{
		dpop.ErrCrowded, CodeRateLimited, http.StatusTooManyRequests, "Too many proofs",
		"More DPoP proofs come than this replica can tell apart. Nothing was decided. Ask again after the time in Retry-After, with a fresh proof.",
	},
	{
		errBundle, CodeBundleUnavailable, http.StatusServiceUnavailable, "SVIDs cannot be checked right now",
		"The keys of your trust domain are not known at the moment, so who is calling cannot be proven. Nothing was decided. Ask again after the time in Retry-After.",
	},
	{
		errDenied, CodeDenied, http.StatusForbidden, "Policy does not allow this",
		"The request was understood and refused, and the refusal is recorded. The members of this problem say which policies decided, the narrowest ask that would pass, and who could approve, where there are such.",
	},
	{
		errNotAllowed, CodeNotAllowed, http.StatusForbidden, "This is not for you to do",
		"The call takes a role that the operator has not given to you, or is one for people only, or for sandboxes only. Nothing was done, and the call is recorded. Ask an admin of your trust domain.",
	},
	{
		errForeignPage, CodeNotAllowed, http.StatusForbidden, "A page of another site calls",
		"A browser made this call for a page of another site, or for a frame. Nothing was done, and the call is recorded. Call from a program, or open the address by itself.",
	},
	{
		errNoRoute, CodeNotFound, http.StatusNotFound, "There is no such thing",
		"Nothing is here that you may see. Check the path, and the id if it has one.",
	},
	{
		broker.ErrNotFound, CodeNotFound, http.StatusNotFound, "There is no such thing",
		"Nothing is here that you may see. Check the path, and the id if it has one.",
	},
	{
		errMethod, CodeMethodNotAllowed, http.StatusMethodNotAllowed, "The method is not allowed here",
		"This path does not take that method, and a header cannot change the method. The Allow header lists those it takes.",
	},
	{
		broker.ErrAlreadyIssued, CodeAlreadyIssued, http.StatusConflict, "This key has been answered",
		"The request with this Idempotency-Key was answered before. A credential is not kept, so it cannot be delivered again. If the answer was lost, ask anew with a new key.",
	},
	{
		broker.ErrRevoked, CodeRevoked, http.StatusConflict, "It was revoked at once",
		"While the credential was being made, its task ended or an admin revoked it. It was not delivered, and it is dead. Look at the state of the request before you ask anew.",
	},
	{
		broker.ErrOwnRequest, CodeOwnRequest, http.StatusForbidden, "It is your own request",
		"Nobody decides on what their own sandbox asks for, nor on what is asked on their behalf. Your vote was not counted, and the attempt is recorded. Somebody else of the group has to decide.",
	},
	{
		broker.ErrNotEligible, CodeNotEligible, http.StatusForbidden, "You are not in the group that decides",
		"The request waits for members of the group that approval names, or of the one that may break the glass, and your login does not say that you are one of those who may vote so. Your vote was not counted. If you have joined the group since, log in again.",
	},
	{
		broker.ErrPasskey, CodePasskeyRequired, http.StatusForbidden, "This scope asks for a passkey",
		"A yes to this has to be signed by a passkey of yours, in a browser: approve it in the console, on the page of the request. Your vote was not counted. A no needs no passkey.",
	},
	{
		broker.ErrNoPasskeys, CodePasskeyRequired, http.StatusForbidden, "Nobody can sign this here",
		"A yes to this has to be signed by a passkey, in the console, and the operator has configured no console. Your vote was not counted. Tell the operator, or the admin whose scope it is.",
	},
	{
		broker.ErrDecided, CodeDecided, http.StatusConflict, "It is decided already",
		"The request does not wait for votes any more: it was decided, redeemed, withdrawn or has expired. Your vote was not counted. A no to what was redeemed has revoked it. Read the request to see where it stands.",
	},
	{
		broker.ErrStale, CodeStale, http.StatusConflict, "It is not what was seen",
		"What would be issued is not, byte for byte, what was voted on: the catalogue, the certificate or the request itself differ. Nothing was issued or counted. Read the request and vote again, or ask anew.",
	},
	{
		broker.ErrNotApproved, CodeNotApproved, http.StatusConflict, "There is nothing to redeem",
		"The request was redeemed before, was withdrawn, has expired, or those who approved it may not any more. Nothing was issued. Read its state, and ask anew if you still need it.",
	},
	{
		broker.ErrNotRemembered, CodeInvalidRequest, http.StatusUnprocessableEntity, "It cannot cover the task",
		"The scope lets nobody's yes stand for the same ask again: covers has to be request. Your vote was not counted. Vote on this request alone.",
	},
	{
		broker.ErrNoNote, CodeInvalidRequest, http.StatusUnprocessableEntity, "Say why you break the glass",
		"Who approves in place of the group that was asked has to say why, in note. Your vote was not counted. Vote again with a note.",
	},
	{
		broker.ErrOvertaken, CodeLedgerUnavailable, http.StatusServiceUnavailable, "Too many vote at once",
		"Others moved the request each time that your vote was to be recorded. It was not counted. Ask again after the time in Retry-After.",
	},
	{
		errPace, CodeRateLimited, http.StatusTooManyRequests, "Too many calls",
		"You call more often than a person does, or than what you ask for changes. Nothing was done. Ask again after the time in Retry-After.",
	},
	{
		errProvider, CodeProviderUnavailable, http.StatusServiceUnavailable, "People cannot be recognised right now",
		"The keys of the OpenID provider are not to be had at the moment, so who is calling cannot be proven. Nothing was done. Ask again after the time in Retry-After.",
	},
	{
		errUnconditional, CodePreconditionRequired, http.StatusPreconditionRequired, "Say what it is to change",
		"A change of the catalogue names the one that it is for: the ETag of GET /v1/catalogue, in If-Match. Nothing was changed. Read the catalogue in force, compare, and ask again.",
	},
	{
		broker.ErrOtherCatalogue, CodePreconditionFailed, http.StatusPreconditionFailed, "Another catalogue is in force",
		"The catalogue that If-Match names is not the one in force (any more): somebody has applied another. Nothing was changed. Read the catalogue in force, compare, and ask again.",
	},
	{
		broker.ErrOwnProposal, CodeOwnProposal, http.StatusForbidden, "It is your own proposal",
		"Nobody approves the catalogue that they have proposed. It waits still, and the attempt is recorded. Another admin has to decide.",
	},
	{
		errCatalogue, CodeInvalidCatalogue, http.StatusUnprocessableEntity, "It is not a catalogue",
		"The files are not a catalogue that could be in force; problems lists what is wrong with them. Nothing of them was kept. Correct them and ask again.",
	},
	{
		broker.ErrSuperseded, CodeSuperseded, http.StatusServiceUnavailable, "The catalogue is being changed",
		"Other catalogues were applied each time that the request had been decided. Nothing was issued. Ask again after the time in Retry-After.",
	},
	{
		broker.ErrTooBroad, CodeTooBroad, http.StatusUnprocessableEntity, "The search is too broad",
		"It took longer than a search may, and was given up. Narrow it: by since and until, by the sandbox or the task, or by the scope.",
	},
	{
		errTooLarge, CodeTooLarge, http.StatusRequestEntityTooLarge, "The body is too large",
		"A body may have 65536 bytes, and one with a catalogue 8388608. Nothing was decided. Send a smaller one.",
	},
	{
		errMediaType, CodeUnsupportedMediaType, http.StatusUnsupportedMediaType, "The media type is not accepted",
		"The body must be sent as Content-Type: application/json in UTF-8, without a Content-Encoding. Nothing was decided.",
	},
	{
		errMisdirected, CodeMisdirected, http.StatusMisdirectedRequest, "This is not that host",
		"The call names a host that this server does not answer for. Connect to the host that the operator gave out.",
	},
	{
		errInvalid, CodeInvalidRequest, http.StatusUnprocessableEntity, "The request is not acceptable",
		"The body was read, but a member has a type or value that cannot be decided upon; field names it. Nothing was decided. Correct it and ask again.",
	},
	{
		broker.ErrIdempotencyMismatch, CodeIdempotencyMismatch, http.StatusUnprocessableEntity, "This key belongs to another request",
		"You used this Idempotency-Key before, for a different request. Nothing was decided. Use a new key for a new request.",
	},
	{
		broker.ErrCrowded, CodeRateLimited, http.StatusTooManyRequests, "Too many listen",
		"You listen to events several times already, or too many people do on this replica. Close a connection that you do not need, or list what waits for you now and then.",
	},
	{
		broker.ErrLimited, CodeRateLimited, http.StatusTooManyRequests, "Too many requests",
		"Policy would not have refused this, but a limit of the scope is reached, and the refusal is recorded. Ask again after the time in Retry-After, with the same Idempotency-Key if you sent one.",
	},
	{
		errBusy, CodeOverloaded, http.StatusServiceUnavailable, "Too much is asked at the moment",
		"This replica makes as many credentials at a time as it can. Nothing was decided or recorded. Ask again after the time in Retry-After, with the same Idempotency-Key if you sent one.",
	},
	{
		errTooMany, CodeRateLimited, http.StatusTooManyRequests, "Too many requests at a time",
		"Too many requests of your sandbox are being answered. Nothing was decided or recorded. Wait for their answers, and ask again after the time in Retry-After.",
	},
	{
		broker.ErrLedgerUnavailable, CodeLedgerUnavailable, http.StatusServiceUnavailable, "Records cannot be kept right now",
		"The record of the decision could not be made durable, and without it no credential leaves. None was delivered. Ask again after the time in Retry-After.",
	},
	{
		broker.ErrVaultUnavailable, CodeVaultUnavailable, http.StatusServiceUnavailable, "Credentials cannot be made right now",
		"Vault did not answer, so there is no credential. Ask again after the time in Retry-After, with a new Idempotency-Key if you sent one.",
	},
	{
		broker.ErrNotMounted, CodeVaultRefused, http.StatusServiceUnavailable, "A secrets engine is not mounted in Vault",
		"The scope's credential comes from a secrets engine that is not mounted in Vault; explanation names its mount. Nothing was issued. An admin mounts the engine there and configures it, or corrects the scope.",
	},
	{
		broker.ErrVaultRefused, CodeVaultRefused, http.StatusServiceUnavailable, "Vault refused",
		"Vault refused: its configuration does not match the catalogue. Nothing was issued. An admin should run brevet bootstrap with this catalogue.",
	},
	{
		broker.ErrMintMismatch, CodeMintMismatch, http.StatusServiceUnavailable, "The credential was not what was ordered",
		"What Vault made differs from what was decided, so it was withheld. The operator is told through the log. Ask again after the time in Retry-After, with a new Idempotency-Key if you sent one.",
	},
	{
		audit.ErrNotYet, CodeNotSealed, http.StatusServiceUnavailable, "No checkpoint covers it yet",
		"The log takes a signed checkpoint at least each second while entries arrive; the last one does not reach so far. Ask again after the time in Retry-After. If it stays so, the log cannot be signed: tell the operator.",
	},
	{
		audit.ErrTooLarge, CodeInvalidRequest, http.StatusUnprocessableEntity, "The task is too large for a receipt",
		"A receipt holds 10,000 entries at most, and the task has more. Nothing was proven. Get the receipts of its issuances one by one, or check the whole log.",
	},
	{
		errKeys, CodeVaultUnavailable, http.StatusServiceUnavailable, "The keys are not available right now",
		"The public keys are not known at the moment. Ask again after the time in Retry-After.",
	},
}

var internal = answer{
	code: CodeInternal, status: http.StatusInternalServerError, title: "Something went wrong here",
	detail: "The server met a fault of its own, and delivered no credential. Tell the operator the Request-Id of this answer.",
}

func answerTo(err error) answer {
	var ask *scopes.InvalidAsk
	if errors.As(err, &ask) {
		err = errInvalid
	}
	for _, a := range answers {
		if errors.Is(err, a.err) {
			return a
		}
	}
	return internal
}

// nobody is the caller whose identity is not proven.
var nobody attest.Identity

// fail answers err as a problem, and first records it when it is a refusal. who is nobody until attested.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, who caller, err error) {
	writeProblem(w, s.refused(w.Header(), r, who, err))
}

// refused describes err as a problem, counts it, and records it when it is a refusal.
func (s *Server) refused(h http.Header, r *http.Request, who caller, err error) Problem {
	a, f, c := answerTo(err), requestErrorOf(err), callOf(r)
	c.code = a.code
	if a.code == CodeUnauthenticated && outlived(r, f.detail) {
		h.Set("Connection", "close") // over HTTP/2, GOAWAY
	}
	p := Problem{
		Type: a.code.Type(), Title: a.title, Status: a.status, Detail: a.detail, Code: a.code,
		Instance: "urn:uuid:" + c.id, Field: f.field, Explanation: f.why,
	}
	if a.code == CodeUnauthenticated {
		p.Reason = causeOf(f.detail)
		p.Explanation = causes[p.Reason]
	}
	var denied *denial
	if errors.As(err, &denied) {
		denied.tell(&p)
	}
	var catalogue *badCatalogue
	if errors.As(err, &catalogue) {
		catalogue.tell(&p)
	}
	var missing *broker.NotMounted
	if errors.As(err, &missing) {
		p.Explanation = fmt.Sprintf("no secrets engine is mounted at %q", missing.Mount)
	}
	var limited *broker.Limited
	if errors.As(err, &limited) {
		tellLimit(h, &p, limited)
		s.metrics.decisions.WithLabelValues(string(scopes.Deny), authorityOf(limited.Record.Decision)).Inc()
	}
	s.metrics.refusals.WithLabelValues(string(a.code)).Inc()
	if a.code == CodeOverloaded || a.err == errTooMany { //nolint:errorlint // of the table
		// Counted: a record or a line of the log for each would add to what is too much. They come back one after the other.
		h.Set("Retry-After", strconv.Itoa(1+rand.IntN(3))) //nolint:gosec // nobody gains by guessing it
		return p
	}
	if a.status >= http.StatusInternalServerError {
		s.cfg.Log.ErrorContext(r.Context(), "call failed", "request_id", c.id, "operation", c.operation, "code", string(a.code), "error", err)
	}
	if a.status < http.StatusInternalServerError && !recorded(a) && underAPI(r) {
		s.refuse(r, who, a.code, f)
	}
	return p
}

// recorded tells whether a problem is the answer to a request whose end is in the ledger already, or a step of a protocol
// that every caller takes.
func recorded(a answer) bool {
	return a.code == CodeUseDPoPNonce || a.code == CodeDenied || a.code == CodeRateLimited && a.err == broker.ErrLimited || a.code == CodeRevoked //nolint:errorlint // of the table
}

// tellLimit says which limit was reached, in the header fields of draft-ietf-httpapi-ratelimit-headers-10 too.
func tellLimit(h http.Header, p *Problem, l *broker.Limited) {
	d := l.Record.Decision
	p.ID, p.Reason, p.Explanation, p.Catalogue = l.Record.ID, d.Reason, d.Explanation, d.Catalogue
	h.Set("Retry-After", strconv.FormatInt(l.Seconds(), 10))
	policy := fmt.Sprintf("%q;q=%d;w=%d", l.Limit.Per, l.Limit.Count, seconds(l.Limit.Window))
	if l.Limit.Live > 0 {
		policy = fmt.Sprintf("%q;q=%d", l.Limit.Per, l.Limit.Live)
	}
	h.Set("RateLimit-Policy", policy)
	h.Set("RateLimit", fmt.Sprintf("%q;r=0;t=%d", l.Limit.Per, l.Seconds()))
}

// refuseTimeout bounds the record of a refusal, which goes on when the caller hangs up.
const refuseTimeout = 3 * time.Second

func (s *Server) refuse(r *http.Request, who caller, code ProblemCode, f requestError) {
	c := callOf(r)
	ref := broker.Refusal{
		ID: c.id, Code: string(code), Detail: f.detail, Remote: ratelimit.RemoteIP(r), Operation: c.operation, Relayed: c.relayed, Unsigned: f.unsigned,
	}
	switch who := who.(type) {
	case attest.Identity:
		if !who.IsZero() {
			subject := actorOf(who).Workload
			ref.Subject = &subject
		}
	case people.Person:
		ref.Person = who.ID()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refuseTimeout)
	defer cancel()
	// The answer is a refusal with or without its record, so the caller learns nothing from this failure.
	if err := s.cfg.Broker.Refuse(ctx, ref); err != nil {
		s.cfg.Log.ErrorContext(ctx, "refusal not recorded", "request_id", c.id, "code", string(code), "error", err)
	}
}

func writeProblem(w http.ResponseWriter, p Problem) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	if p.Status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", "Bearer")
	}
	setProblemHeaders(h, p.Status)
	writeBody(w, p.Status, p)
}

func setProblemHeaders(h http.Header, status int) {
	h.Set("Cache-Control", "no-store")
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", strconv.Itoa(retryAfter))
		}
	case http.StatusRequestEntityTooLarge:
		h.Set("Connection", "close")
	}
}

// writeBody writes the whole answer. An error means that the caller has gone, or a value of ours that does not
// encode; neither can be told to the caller any more.
func writeBody(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
