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
	"github.com/brevet-dev/brevet/internal/clientip"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/people"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// Errors of a call that are not the broker's. answers maps each to a problem, except the last two.
var (
	errMalformedBody   = errors.New("invalid JSON body")
	errForm            = errors.New("invalid form")
	errParameter       = errors.New("invalid parameter")
	errCursor          = errors.New("invalid cursor")
	errUnauthenticated = errors.New("authentication required")
	errProof           = errors.New("invalid DPoP proof")
	errNonce           = errors.New("DPoP proof has no valid nonce")
	errBundle          = errors.New("trust bundle is unavailable")
	errPace            = errors.New("rate limit exceeded")
	errBusy            = errors.New("replica is overloaded")
	errTooMany         = errors.New("too many concurrent requests")
	errProvider        = errors.New("OpenID provider is unavailable")
	errDenied          = errors.New("denied by policy")
	errNotAllowed      = errors.New("permission denied")
	errForeignPage     = errors.New("cross-origin request refused")
	errToken           = errors.New("invalid access token")
	errUnclear         = errors.New("ambiguous forwarded request")
	errMethod          = errors.New("method not allowed")
	errTooLarge        = errors.New("body is too large")
	errMediaType       = errors.New("unsupported media type")
	errMisdirected     = errors.New("unknown host")
	errInvalid         = errors.New("invalid request")
	errCatalogue       = errors.New("invalid catalogue")
	errUnconditional   = errors.New("If-Match is required")
	errKeys            = errors.New("key set is unavailable")
	errFault           = errors.New("internal error")
	errCutOff          = errors.New("response was cut off")            // the response with a credential was not written completely
	errSlow            = errors.New("client does not read its events") // of an event stream
)

// requestError is a failure with what may be said about it. field goes to the caller and never contains input. why goes to the
// caller and is a fixed text or a text of the catalogue. detail is the fixed code for the record.
type requestError struct {
	kind               error
	field, why, detail string
	oauth              OAuthErrorCode // the OAuth error code, if it differs from that of kind
	unsigned           bool           // no token signed by Brevet was found, or the call was refused before Brevet looked for one
	tell               func(*Problem) // adds to the problem what else the caller learns, or nil
}

func (f *requestError) Error() string { return f.kind.Error() + ": " + f.detail }

func (f *requestError) Unwrap() error { return f.kind }

// requestErrorOf returns what may be said about err.
func requestErrorOf(err error) requestError {
	if f, ok := errors.AsType[*requestError](err); ok {
		return *f
	}
	if ask, ok := errors.AsType[*scopes.InvalidAsk](err); ok {
		return requestError{kind: errInvalid, field: ask.Field, why: ask.Why, detail: ask.Field}
	}
	return requestError{}
}

// answer describes one kind of failure. The texts are constant: they say what happened, what it means for the caller and
// what to do next, and contain nothing from the request.
type answer struct {
	err    error
	code   ProblemCode
	status int
	title  string
	detail string
}

// retryAfter is the delay in seconds before a retry when the failure may be transient.
const retryAfter = 5

// ProblemText is the constant part of a problem.
type ProblemText struct {
	Code          string
	Status        int
	Title, Detail string
}

// ProblemTexts returns every problem that the API can return, for documentation.
func ProblemTexts() []ProblemText {
	var all []ProblemText
	for _, a := range append(slices.Clone(answers), internal) {
		all = append(all, ProblemText{string(a.code), a.status, a.title, a.detail})
	}
	return all
}

// answers maps errors to problems. The first row that matches applies; internal is for all other errors.
var answers = []answer{
	problem(errMalformedBody, CodeMalformedBody, http.StatusBadRequest, "Invalid request body",
		"The body must be one JSON object with the members that the API defines, each at most once. No decision was made. Compare the body with /openapi.yaml; names are case-sensitive."),
	problem(errForm, CodeMalformedBody, http.StatusBadRequest, "Invalid form",
		"The body must be a form (application/x-www-form-urlencoded in UTF-8) with each parameter at most once. No decision was made. Compare the form with /openapi.yaml."),
	problem(errParameter, CodeInvalidParameter, http.StatusBadRequest, "Invalid parameter",
		"A query or header parameter is unknown, repeated or malformed. The request was not processed. Compare it with /openapi.yaml."),
	problem(errCursor, CodeInvalidCursor, http.StatusBadRequest, "Invalid cursor",
		"A cursor continues only the listing that returned it, with the same filters and the same caller. Start again without a cursor."),
	problem(errUnauthenticated, CodeUnauthenticated, http.StatusUnauthorized, "Authentication required",
		"The request has no SVID or ID token that this server accepts; the members 'reason' and 'explanation' name the cause. No decision was made. If you are a sandbox, fetch a fresh SVID from the Workload API. Send it as an X.509-SVID over mutual TLS, or as a JWT-SVID whose only audience is this server's issuer. If you are a person, log in again and send the ID token without a client certificate."),
	problem(errToken, CodeInvalidToken, http.StatusUnauthorized, "Invalid access token",
		"The request has no access token, or one that is not valid for this caller. The call was refused. Request a new token. If the token is bound to a key, make the call with that key."),
	problem(broker.ErrCallNotAllowed, CodeInsufficientScope, http.StatusForbidden, "Insufficient scope",
		"The token is valid, but the egress rules of its scope do not allow this call; the member 'explanation' gives the limits. The call was refused. Request a token for a scope that allows the call."),
	problem(errUnclear, CodeNotAllowed, http.StatusForbidden, "Ambiguous forwarded request",
		"Brevet cannot tell which call the gateway forwarded: the headers of the request describe no call, or more than one. The call was refused. Remove any forwarding headers that you set yourself. If you set none, ask the operator to check the gateway against the gateway documentation."),
	problem(errProof, CodeInvalidDPoPProof, http.StatusUnauthorized, "Invalid DPoP proof",
		"The DPoP proof (RFC 9449) is not valid for this call; the member 'explanation' names the cause. No decision was made. Create a new proof for each call, including retries, for the URL that you call."),
	problem(errNonce, CodeUseDPoPNonce, http.StatusUnauthorized, "DPoP nonce required",
		"The DPoP proof has no nonce of this server, or an expired one. No decision was made. Create a new proof with the nonce from the header DPoP-Nonce and retry."),
	problem(dpop.ErrCrowded, CodeRateLimited, http.StatusTooManyRequests, "Too many DPoP proofs",
		"This replica receives more DPoP proofs than it can check for replay. No decision was made. Retry after the time in Retry-After, with a new proof."),
	problem(errBundle, CodeBundleUnavailable, http.StatusServiceUnavailable, "Trust bundle unavailable",
		"The keys of your trust domain are not available, so the server cannot authenticate you. No decision was made. Retry after the time in Retry-After."),
	problem(errDenied, CodeDenied, http.StatusForbidden, "Denied by policy",
		"Policy denied the request, and the denial is recorded. The members of this problem name the policies that decided. They also name the nearest request that would pass, and the group that can approve, if there is one. Send the nearest request, or ask an admin to change the policy."),
	problem(errNotAllowed, CodeNotAllowed, http.StatusForbidden, "Permission denied",
		"You do not have the role that this call requires, or the call is not for your kind of caller (person or sandbox). Nothing was changed, and the attempt is recorded. If you need the role, ask an admin of your trust domain."),
	problem(errForeignPage, CodeNotAllowed, http.StatusForbidden, "Cross-origin request refused",
		"A browser sent this request on behalf of a page of another site, or from a frame. Nothing was changed, and the attempt is recorded. Call the API from a program, or open the address directly."),
	problem(broker.ErrNotFound, CodeNotFound, http.StatusNotFound, "Not found",
		"The resource does not exist, or you may not see it. Check the path, and the id if the path contains one."),
	problem(errMethod, CodeMethodNotAllowed, http.StatusMethodNotAllowed, "Method not allowed",
		"This path does not support the method, and a header cannot override it. The Allow header lists the supported methods."),
	problem(broker.ErrAlreadyIssued, CodeAlreadyIssued, http.StatusConflict, "Credential already issued",
		"A request with this Idempotency-Key has already returned a credential. Brevet does not store credentials, so it cannot deliver this one again. If you lost the response, send a new request with a new key."),
	problem(broker.ErrRevoked, CodeRevoked, http.StatusConflict, "Revoked before delivery",
		"The task ended, or an admin revoked the credential, while it was being created. It was not delivered, and it is revoked. Check the state of the request before you send a new one."),
	problem(broker.ErrOwnRequest, CodeOwnRequest, http.StatusForbidden, "You cannot vote on your own request",
		"You may not vote on a request that your own sandbox sent, or that a sandbox sent on your behalf. Your vote was not counted, and the attempt is recorded. Another member of the group must vote."),
	problem(broker.ErrNotEligible, CodeNotEligible, http.StatusForbidden, "Not eligible to vote",
		"Only the approver group may approve this request, only the break-glass group may break glass, and both may deny. Your login does not show the membership that your vote needs. Your vote was not counted. If you joined the group recently, log in again."),
	problem(broker.ErrPasskey, CodePasskeyRequired, http.StatusForbidden, "Passkey required",
		"An approval of this request must be signed by one of your passkeys, in a browser. Your vote was not counted. Open the request in the console and approve it there. A denial needs no passkey."),
	problem(broker.ErrNoPasskeys, CodePasskeyRequired, http.StatusForbidden, "Passkeys not configured",
		"An approval of this request must be signed by a passkey in the console, and the operator has configured no console. Your vote was not counted. Contact the operator, or the admin who owns the scope."),
	problem(broker.ErrDecided, CodeDecided, http.StatusConflict, "Already decided",
		"The request no longer waits for votes: it was approved, rejected, redeemed or withdrawn, or it has expired. If you approved it, your vote was not counted. If you denied a redeemed request, the denial is recorded and the credential is revoked. Read the request to see its state."),
	problem(broker.ErrVoid, CodeStale, http.StatusConflict, "Request is void",
		"Another catalogue came into force after the request was made; the member 'explanation' says when. The request can no longer be approved or redeemed: no vote was counted, and no credential was issued. If you are its sandbox, send the same request again, with a new Idempotency-Key if it had one. If you vote, wait for that request."),
	problem(broker.ErrStale, CodeStale, http.StatusConflict, "Request has changed",
		"The credential would differ from the one that the votes are for: the catalogue, the certificate or the request has changed. No credential was issued and no vote was counted. Read the request and vote again, or send a new request."),
	problem(broker.ErrNotApproved, CodeNotApproved, http.StatusConflict, "Nothing to redeem",
		"The request was already redeemed or withdrawn, has expired, or its approvers have lost their eligibility. No credential was issued. Read its state, and send a new request if you still need the credential."),
	problem(broker.ErrNotRemembered, CodeInvalidRequest, http.StatusUnprocessableEntity, "Approval cannot cover the task",
		"The scope does not allow an approval to cover later requests of the task, so 'covers' must be 'request'. Your vote was not counted. Vote on this request alone."),
	problem(broker.ErrNoNote, CodeInvalidRequest, http.StatusUnprocessableEntity, "Note required",
		"A break-glass approval requires a reason in the member 'note'. Your vote was not counted. Vote again with a note."),
	problem(broker.ErrConcurrentChange, CodeLedgerUnavailable, http.StatusServiceUnavailable, "Concurrent changes",
		"Other calls changed the request each time your call was about to be recorded. Your call was not recorded, and a vote in it was not counted. The ledger itself is healthy. Retry after the time in Retry-After."),
	problem(errPace, CodeRateLimited, http.StatusTooManyRequests, "Rate limit exceeded",
		"You call more often than the limit for one caller allows. Nothing was changed. Retry after the time in Retry-After."),
	problem(errProvider, CodeProviderUnavailable, http.StatusServiceUnavailable, "OpenID provider unavailable",
		"The keys of the OpenID provider are not available, so the server cannot authenticate you. Nothing was changed. Retry after the time in Retry-After."),
	problem(errUnconditional, CodePreconditionRequired, http.StatusPreconditionRequired, "If-Match required",
		"A change to the catalogue must name the catalogue that it replaces: send the ETag of GET /v1/catalogue in If-Match. Nothing was changed. Read the catalogue in force, compare, and retry."),
	problem(broker.ErrOtherCatalogue, CodePreconditionFailed, http.StatusPreconditionFailed, "Catalogue has changed",
		"The catalogue in If-Match is not the one in force: somebody has applied another. Nothing was changed. Read the catalogue in force, compare, and retry."),
	problem(broker.ErrOwnProposal, CodeOwnProposal, http.StatusForbidden, "You cannot approve your own proposal",
		"Nobody may approve a catalogue that they proposed. The proposal is still pending, and the attempt is recorded. Another admin must decide."),
	problem(errCatalogue, CodeInvalidCatalogue, http.StatusUnprocessableEntity, "Invalid catalogue",
		"The files are not a valid catalogue; the member 'problems' lists the errors. Nothing was stored. Correct the files and retry."),
	problem(broker.ErrVaultNotPrepared, CodeVaultNotPrepared, http.StatusConflict, "Vault is not prepared",
		"Vault has no policies for new scopes of the catalogue, or the broker's token role does not allow them; the member 'problems' names them. Requests for these scopes would fail, so the catalogue in force is unchanged. Run brevet bootstrap with --catalogue on the new catalogue, then retry. To apply the catalogue all the same, set 'force' (--force on the command line)."),
	problem(broker.ErrVaultNotChecked, CodeVaultUnavailable, http.StatusServiceUnavailable, "Vault did not answer",
		"Vault did not say whether it has the policies of the catalogue's new scopes, so the catalogue in force is unchanged. Retry after the time in Retry-After. To apply the catalogue without this check, set 'force' (--force on the command line)."),
	problem(broker.ErrSuperseded, CodeSuperseded, http.StatusServiceUnavailable, "Catalogue is changing",
		"The catalogue changed again each time that Brevet decided the request. No credential was issued. Retry after the time in Retry-After."),
	problem(broker.ErrTooBroad, CodeTooBroad, http.StatusUnprocessableEntity, "Search too broad",
		"The search exceeded its time limit and was cancelled. Narrow it by the parameters 'since' and 'until', by sandbox or task, or by scope."),
	problem(errTooLarge, CodeTooLarge, http.StatusRequestEntityTooLarge, "Request body too large",
		"A body may have at most 65536 bytes, or 8388608 bytes if it contains a catalogue. No decision was made. Send a smaller body."),
	problem(errMediaType, CodeUnsupportedMediaType, http.StatusUnsupportedMediaType, "Unsupported media type",
		"The body must be sent as Content-Type: application/json in UTF-8, without Content-Encoding. No decision was made. Correct the headers and retry."),
	problem(errMisdirected, CodeMisdirected, http.StatusMisdirectedRequest, "Unknown host",
		"The request names a host that this server does not serve. Connect to the host name that the operator published."),
	problem(errInvalid, CodeInvalidRequest, http.StatusUnprocessableEntity, "Invalid request",
		"A member or parameter of the request has an invalid type or value; the member 'field' of this problem names it. No decision was made. Correct it and retry."),
	problem(broker.ErrIdempotencyMismatch, CodeIdempotencyMismatch, http.StatusUnprocessableEntity, "Idempotency key already used",
		"You used this Idempotency-Key before, for a different request. No decision was made. Use a new key for each new request."),
	problem(broker.ErrAlreadyReported, CodeAlreadyReported, http.StatusConflict, "Another report already recorded",
		"The session already has a report with this sequence number, and that report differs from yours. Yours was not recorded. Send it with the next sequence number, or in a new session."),
	problem(broker.ErrCrowded, CodeRateLimited, http.StatusTooManyRequests, "Too many event streams",
		"You have too many open event streams, or this replica serves as many as it can. Close a stream that you do not need, or poll the list instead."),
	problem(broker.ErrLimited, CodeRateLimited, http.StatusTooManyRequests, "Scope limit reached",
		"Policy allows the request, but a limit of the scope is reached. The denial is recorded. Retry after the time in Retry-After, with the same Idempotency-Key if you sent one."),
	problem(errBusy, CodeOverloaded, http.StatusServiceUnavailable, "Server overloaded",
		"This replica already handles as many such calls as it can at one time. Brevet did nothing and recorded nothing. Retry after the time in Retry-After, with the same Idempotency-Key if you sent one."),
	problem(errTooMany, CodeRateLimited, http.StatusTooManyRequests, "Too many concurrent requests",
		"Your sandbox, or its trust domain, has too many requests in progress. Brevet did nothing and recorded nothing. Wait for their responses, then retry after the time in Retry-After."),
	problem(broker.ErrLedgerFull, CodeLedgerFull, http.StatusServiceUnavailable, "Ledger disk full",
		"The disk of the server's database is full, so the server could not record the call. Without a record it delivers no credential and confirms no revocation. Retry after the time in Retry-After; no change is needed. If the problem persists, tell the operator."),
	problem(broker.ErrLedgerUnavailable, CodeLedgerUnavailable, http.StatusServiceUnavailable, "Ledger unavailable",
		"The server could not store the record of the decision, and it releases no credential without one. No credential was delivered. Retry after the time in Retry-After."),
	problem(broker.ErrVaultUnavailable, CodeVaultUnavailable, http.StatusServiceUnavailable, "Vault unavailable",
		"Vault did not respond. No credential was issued. Retry after the time in Retry-After, with a new Idempotency-Key if you sent one."),
	problem(broker.ErrNotMounted, CodeVaultRefused, http.StatusServiceUnavailable, "Secrets engine not mounted",
		"The secrets engine of the scope is not mounted in Vault; the member 'explanation' names the mount. No credential was issued. An admin must mount and configure the engine, or correct the scope."),
	problem(broker.ErrVaultRefused, CodeVaultRefused, http.StatusServiceUnavailable, "Refused by Vault",
		"Vault refused the request because its configuration does not match the catalogue. No credential was issued. An admin must run brevet bootstrap with this catalogue."),
	problem(broker.ErrGitHubLimited, CodeGitHubUnavailable, http.StatusServiceUnavailable, "GitHub limits calls",
		"GitHub accepts no more calls of this App for now. No credential was issued. Retry after the time in Retry-After, with a new Idempotency-Key if you sent one."),
	problem(broker.ErrGitHubUnavailable, CodeGitHubUnavailable, http.StatusServiceUnavailable, "GitHub unavailable",
		"GitHub did not respond as its API defines. No credential was delivered. Retry after the time in Retry-After, with a new Idempotency-Key if you sent one."),
	problem(broker.ErrGitHubRefused, CodeGitHubRefused, http.StatusServiceUnavailable, "Refused by GitHub",
		"GitHub refused to issue a token for the scope; the member 'explanation' says why. No credential was issued. An admin must change the scope, the App or its installation."),
	problem(broker.ErrMintMismatch, CodeMintMismatch, http.StatusServiceUnavailable, "Credential mismatch",
		"Vault or GitHub returned a credential that differs from the decision, so the server did not deliver it. The server has logged the mismatch for the operator. Retry after the time in Retry-After, with a new Idempotency-Key if you sent one."),
	problem(audit.ErrNotYet, CodeNotSealed, http.StatusServiceUnavailable, "No checkpoint yet",
		"No signed checkpoint covers the entry yet. The log signs a checkpoint at least once per second while entries arrive. Retry after the time in Retry-After. If the problem persists, the log cannot be signed: contact the operator."),
	problem(audit.ErrTooLarge, CodeInvalidRequest, http.StatusUnprocessableEntity, "Receipt too large",
		"The task has more than 10,000 entries, the maximum of one receipt. No receipt was created. Request the receipts of its issuances one by one, or verify the whole log."),
	problem(errKeys, CodeVaultUnavailable, http.StatusServiceUnavailable, "Keys unavailable",
		"This server's public signing keys (JWKS) are not available. Retry after the time in Retry-After."),
}

// problem is a row of answers.
func problem(err error, code ProblemCode, status int, title, detail string) answer {
	return answer{err, code, status, title, detail}
}

var internal = problem(errFault, CodeInternal, http.StatusInternalServerError, "Internal server error",
	"The server failed with an internal error. No credential was delivered. Report the Request-Id of this response to the operator.")

func answerTo(err error) answer {
	if _, ok := errors.AsType[*scopes.InvalidAsk](err); ok {
		err = errInvalid
	}
	for _, a := range answers {
		if errors.Is(err, a.err) {
			return a
		}
	}
	return internal
}

// nobody is the caller that is not authenticated.
var nobody attest.Identity

// fail answers an error with its problem, and records it first if it is a refusal. who is nobody until the caller is
// authenticated. After errCutOff, fail writes nothing.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, who caller, err error) {
	if errors.Is(err, errCutOff) {
		return
	}
	writeProblem(w, s.refused(w.Header(), r, who, err))
}

// refused returns the problem for err, counts it, and records it if it is a refusal.
func (s *Server) refused(h http.Header, r *http.Request, who caller, err error) Problem {
	a, f, c := answerTo(err), requestErrorOf(err), callOf(r)
	c.code = a.code
	p := Problem{
		Type: a.code.Type(), Title: a.title, Status: a.status, Detail: a.detail, Code: a.code,
		Instance: "urn:uuid:" + c.id, Field: f.field, Explanation: f.why,
	}
	if a.code == CodeUnauthenticated {
		// The client certificate may have been valid when the connection began. Then the client needs a new connection.
		outlived := slices.Contains([]string{"svid_expired", "svid_authority", "svid_signature"}, f.detail)
		if outlived && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			h.Set("Connection", "close") // sends GOAWAY over HTTP/2
		}
		p.Reason = causeOf(f.detail)
		p.Explanation = causes[p.Reason]
	}
	if f.tell != nil {
		f.tell(&p)
	}
	if unprepared, ok := errors.AsType[*broker.VaultNotPreparedError](err); ok {
		for _, line := range unprepared.Lines()[:min(len(unprepared.Missing), maxProblems)] {
			p.Problems = append(p.Problems, CatalogueProblem{What: line})
		}
	}
	if missing, ok := errors.AsType[*broker.NotMountedError](err); ok {
		p.Explanation = fmt.Sprintf("no secrets engine is mounted at %q", missing.Mount)
	}
	if void, ok := errors.AsType[*broker.VoidError](err); ok {
		p.Explanation = fmt.Sprintf("catalogue version %d was applied at %s", void.Version, void.Since.UTC().Format(time.RFC3339))
	}
	if refused, ok := errors.AsType[*broker.GitHubRefusedError](err); ok {
		p.Explanation = refused.Why
	}
	if limited, ok := errors.AsType[*broker.GitHubLimitedError](err); ok {
		h.Set("Retry-After", strconv.FormatInt(seconds(limited.RetryAfter), 10))
	}
	if l, ok := errors.AsType[*broker.Limited](err); ok { // the headers are those of draft-ietf-httpapi-ratelimit-headers-10
		d := l.Record.Decision
		p.ID, p.Reason, p.Explanation, p.Catalogue = l.Record.ID, d.Reason, d.Explanation, d.Catalogue
		h.Set("Retry-After", strconv.FormatInt(l.Seconds(), 10))
		policy := fmt.Sprintf("%q;q=%d;w=%d", l.Limit.Per, l.Limit.Count, seconds(l.Limit.Window))
		if l.Limit.Live > 0 {
			policy = fmt.Sprintf("%q;q=%d", l.Limit.Per, l.Limit.Live)
		}
		h.Set("RateLimit-Policy", policy)
		h.Set("RateLimit", fmt.Sprintf("%q;r=0;t=%d", l.Limit.Per, l.Seconds()))
		s.metrics.decisions.WithLabelValues(string(scopes.Deny), authorityOf(d)).Inc()
	}
	s.metrics.refusals.WithLabelValues(string(a.code)).Inc()
	if a.code == CodeOverloaded || a.err == errTooMany { //nolint:errorlint // of the table
		// These are only counted: a record or a log line for each would add to the overload. The random delay spreads the
		// retries.
		h.Set("Retry-After", strconv.Itoa(1+rand.IntN(3))) //nolint:gosec // nobody gains by guessing it
		return p
	}
	if a.status >= http.StatusInternalServerError {
		s.cfg.Log.ErrorContext(r.Context(), "call failed", "request_id", c.id, "operation", c.operation, "code", string(a.code), "error", err)
		return p
	}
	// The ledger already has the first three. The last is a protocol step that every caller takes.
	unrecorded := []error{errDenied, broker.ErrRevoked, broker.ErrLimited, errNonce}
	if !slices.Contains(unrecorded, a.err) && underAPI(r) {
		s.refuse(r, who, a.code, f)
	}
	return p
}

// refuseTimeout bounds the recording of a refusal, which continues if the caller disconnects.
const refuseTimeout = 3 * time.Second

func (s *Server) refuse(r *http.Request, who caller, code ProblemCode, f requestError) {
	c := callOf(r)
	ref := broker.Refusal{
		ID: c.id, Code: string(code), Detail: f.detail, Remote: clientip.RemoteIP(r), Operation: c.operation, Relayed: c.relayed, Unsigned: f.unsigned,
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
	// The caller gets the refusal with or without the record, so it is not told about this failure.
	if err := s.cfg.Broker.Refuse(ctx, ref); err != nil {
		s.cfg.Log.ErrorContext(ctx, "refusal not recorded", "request_id", c.id, "code", string(code), "error", err)
	}
}

// causes explains why a caller was not authenticated, by the code in the record. Each text is fixed. It says what is wrong with
// the proof, which the caller can check too, and nothing about what the server trusts.
var causes = map[string]string{ //nolint:gosec // the texts are about credentials, and contain none
	"no_identity":             "The request has neither a client certificate nor a bearer token.",
	"authorization_malformed": "The Authorization header must hold exactly one bearer token.",
	"svid_malformed":          "The SVID cannot be parsed.",
	"svid_too_large":          "The SVID is too large.",
	"svid_profile":            "The certificate is not an X.509-SVID.",
	"spiffe_id_invalid":       "The SPIFFE ID is not valid.",
	"svid_algorithm":          "This server does not accept the SVID's signature algorithm.",
	"svid_weak_key":           "The key of the SVID is too weak.",
	"svid_signature":          "The signature of the SVID cannot be verified: no trust bundle of this server contains the signing key.",
	"svid_expired":            "The SVID has expired.",
	"svid_not_yet_valid":      "The SVID is not valid yet. Check the clocks of both machines.",
	"svid_lifetime":           "The JWT-SVID is valid for longer than this server accepts.",
	"svid_audience":           "The audience of the JWT-SVID must be exactly this server's issuer.",
	"client_method":           "Clients authenticate with an X.509-SVID over mutual TLS, or with a JWT-SVID as client_assertion. Client secrets are not supported.",
	"client_assertion_type":   "client_assertion_type is not supported. Send urn:ietf:params:oauth:client-assertion-type:jwt-spiffe or urn:ietf:params:oauth:client-assertion-type:jwt-bearer.",
	"client_id":               "client_id differs from the SPIFFE ID of the SVID. Send that SPIFFE ID, or omit client_id.",
	"tls_resumed":             "The TLS session was resumed. Open a new connection with a full handshake.",
	"identity_mismatch":       "The client certificate and the token have different identities.",
	"id_token_key":            "The OpenID provider has no key with the key id of the ID token.",
	"id_token_malformed":      "The ID token cannot be parsed.",
	"id_token_expired":        "The ID token has expired.",
	"id_token_audience":       "This server does not accept the audience of the ID token.",
	"id_token_issuer":         "This server does not accept the issuer of the ID token.",
	"id_token_lifetime":       "The ID token is valid for longer than this server accepts.",
	"id_token_signature":      "The signature of the ID token does not match the keys of the OpenID provider.",
}

// causeOf returns the cause that the response gives for a recorded code. It returns "" if the response gives no cause. Only the
// record distinguishes unknown trust domains from unknown keys: otherwise strangers, who can put any name into a token, could
// find out which trust domains are accepted.
func causeOf(detail string) string {
	switch detail {
	case "unknown_trust_domain", "svid_authority":
		return "svid_signature"
	}
	if _, known := causes[detail]; known {
		return detail
	}
	return ""
}

// cached is the Cache-Control of a response that anybody may store for that long.
func cached(life time.Duration) string {
	return "public, max-age=" + strconv.FormatInt(seconds(life), 10)
}

func writeBytes(w http.ResponseWriter, mediaType, cacheControl string, body []byte) {
	w.Header().Set("Cache-Control", cacheControl)
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// writeNoContent answers that an order was executed.
func writeNoContent(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// writeJSON writes a response that caches must not store.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	writeBody(w, status, v)
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

// writeBody writes the whole response. It ignores errors: either the caller has disconnected, or v cannot be encoded, and neither
// can be reported to the caller any more.
func writeBody(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
