package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/openapi"
)

// The codes of the gateway's own refusals. A refusal by Brevet keeps Brevet's code.
const (
	codeNoRule      openapi.ProblemCode = "egress_no_rule"
	codeHeader      openapi.ProblemCode = "egress_header"
	codePending     openapi.ProblemCode = "egress_pending"
	codePlaintext   openapi.ProblemCode = "egress_plaintext"
	codeMisdirected openapi.ProblemCode = "egress_misdirected"
	codeAddress     openapi.ProblemCode = "egress_address"
	codeUpgrade     openapi.ProblemCode = "egress_upgrade"
	codeTooMany     openapi.ProblemCode = "egress_too_many"
	codeTooLarge    openapi.ProblemCode = "egress_too_large"
	codeCaller      openapi.ProblemCode = "egress_caller"
	codeUnavailable openapi.ProblemCode = "egress_unavailable"
	codeUnfit       openapi.ProblemCode = "egress_unfit"
	codeUpstream    openapi.ProblemCode = "egress_upstream"
	codeEnded       openapi.ProblemCode = "egress_ended"
	codeSigned      openapi.ProblemCode = "egress_signed"
	codeExchange    openapi.ProblemCode = "egress_exchange"
	codeQuery       openapi.ProblemCode = "egress_query"
)

// words holds the status, title and detail of each code.
var words = map[openapi.ProblemCode]struct {
	status        int
	title, detail string
}{
	codeNoRule:      {http.StatusForbidden, "No egress rule allows this call", "No scope that this sandbox may request has an egress rule for this host, method and path. The call was not sent. The member 'explanation' says what the rules cover."},
	codeHeader:      {http.StatusForbidden, "Request header not allowed", "The call has a request header that the gateway does not forward with a credential. Without the header, the call could do something else, so the call was not sent. The member 'explanation' names the header and says what to do."},
	codePending:     {http.StatusForbidden, "Approval required", "The call needs a credential that people must approve. The call was not sent. Retry the call after the approval; the member 'waiting' describes the pending request."},
	codePlaintext:   {http.StatusForbidden, "TLS required", "The gateway sends credentials only over TLS. The call was not sent. Use https."},
	codeMisdirected: {http.StatusMisdirectedRequest, "Wrong host for this connection", "The host of the call differs from the host that the connection was opened for. The call was not sent."},
	codeAddress:     {http.StatusForbidden, "Address not allowed", "The host has a non-public address, and the operator of the gateway has not allowed it. The call was not sent."},
	codeUpgrade:     {http.StatusForbidden, "Protocol not supported", "The gateway supports no protocol upgrade except to WebSocket. The call was not sent."},
	codeTooMany:     {http.StatusTooManyRequests, "Too many calls", "This sandbox makes more calls than the gateway allows. Slow down."},
	codeTooLarge:    {http.StatusRequestEntityTooLarge, "Body too large", "The body is larger than the gateway allows."},
	codeCaller:      {http.StatusForbidden, "Unknown sandbox", "The gateway cannot identify the calling sandbox, or does not serve it. The call was not sent."},
	codeUnavailable: {http.StatusServiceUnavailable, "Brevet unavailable", "The gateway cannot check now whether the call is allowed. The call was not sent. Try again."},
	codeUnfit:       {http.StatusBadGateway, "Unsuitable credential", "The gateway cannot send this credential as the egress rule says: a member of the credential is missing or has an unsuitable value, or the host does not ask for a client certificate. The call was not sent. An admin must correct the catalogue."},
	codeUpstream:    {http.StatusBadGateway, "No response from the host", "The gateway received no response from the host, or none that it can pass on. The member 'explanation' names the cause if the gateway knows it."},
	codeEnded:       {http.StatusForbidden, "Credential ended", "The task ended, or the credential was revoked or expired, during the call."},
	codeExchange:    {http.StatusBadGateway, "No exchange of the token", "The call needs what another system gives for a token of Brevet, and the gateway got nothing there that it can use. The call was not sent. The member 'explanation' names the system and the kind of error; the log of the gateway has the rest."},
	codeQuery:       {http.StatusForbidden, "Credential in the query", "The query of the call has a key that usually carries a credential, and the gateway adds the only credential of a call. The call was not sent. The member 'explanation' names the key."},
	codeSigned:      {http.StatusBadRequest, "Call signed by the sandbox", "The sandbox itself signed a part of the call, and the gateway cannot replace that signature. The call was not sent. The member 'explanation' says what to change."},
}

// refusal is the error for a call that is not forwarded. The sandbox sees it as a problem document.
type refusal struct {
	code        openapi.ProblemCode
	explanation string
	scopes      []string        // the scopes that have a rule for the host
	pending     *client.Pending // the request that waits for approval
	after       time.Duration   // when to retry
	cause       error           // for the log; never for the sandbox
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return string(r.code) + ": " + r.cause.Error()
	}
	return string(r.code) + ": " + r.explanation
}

func (r *refusal) Unwrap() error { return r.cause }

// unavailable returns a refusal that says that Brevet did not respond. If err is Brevet's own refusal, it returns err.
func unavailable(err error) error {
	if is[*client.Problem](err) {
		return err
	}
	return &refusal{code: codeUnavailable, cause: err, after: time.Second}
}

// problem is the response body of a refusal (RFC 9457).
type problem struct {
	openapi.Problem
	// Scopes are the scopes that have a rule for the host.
	Scopes []string `json:"scopes,omitempty"`
	// Waiting is the request that waits for approval.
	Waiting *waiting `json:"waiting,omitempty"`
}

type waiting struct {
	ID      string    `json:"id"`
	Group   string    `json:"group"`
	Quorum  int       `json:"quorum"`
	Expires time.Time `json:"expires_at"`
}

// problemOf returns the problem document for an error, and how long to wait before a retry.
func problemOf(err error) (problem, time.Duration) {
	if theirs, ok := errors.AsType[*client.Problem](err); ok {
		p := problem{Problem: theirs.Problem}
		p.Instance = ""
		if p.Status == http.StatusUnauthorized || p.Status == http.StatusConflict {
			p.Status = http.StatusForbidden // Brevet refused the gateway, and the sandbox can't log in for it
		}
		return p, theirs.RetryAfter
	}
	r := refusalOf(err)
	w := words[r.code]
	p := problem{Scopes: r.scopes, Problem: openapi.Problem{
		Type: r.code.Type(), Code: r.code, Status: w.status, Title: w.title, Detail: w.detail, Explanation: r.explanation,
	}}
	if r.pending != nil {
		p.Waiting = &waiting{r.pending.ID, r.pending.Group, r.pending.Quorum, r.pending.Expires}
	}
	return p, r.after
}

func refusalOf(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	theirs, ok := errors.AsType[*net.OpError](err)
	switch {
	case is[*http.MaxBytesError](err):
		return &refusal{code: codeTooLarge, cause: err}
	case errors.Is(err, safehttp.ErrAddress):
		return &refusal{code: codeAddress, cause: err}
	case errors.Is(err, errEnded):
		return &refusal{code: codeEnded, cause: err}
	case ok && theirs.Op == "remote error": // a TLS alert, whose texts are fixed
		return &refusal{code: codeUpstream, explanation: "the host ended the connection: " + theirs.Err.Error(), cause: err}
	default:
		return &refusal{code: codeUpstream, explanation: upstreamError(err), cause: err}
	}
}

// refuse sends the sandbox a refusal instead of the host's response.
func refuse(w http.ResponseWriter, err error) {
	p, after := problemOf(err)
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if after > 0 {
		h.Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the sandbox may have left
}

// upstreamError returns a fixed text for a kind of error of a host. The error's own text can quote certificates and responses, so
// a host could use it to talk to an agent. The first kind that matches applies. Another error, such as a broken connection, has no
// text, since it may come from the sandbox's own connection.
func upstreamError(err error) string {
	dns, inDNS := errors.AsType[*net.DNSError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	timeout, isTimeout := errors.AsType[net.Error](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case inDNS && dns.IsNotFound:
		return "the host name does not exist in DNS"
	case inDNS:
		return "DNS returned no address for the host name"
	case isInvalid && invalid.Reason == x509.Expired:
		return "the host's certificate has expired, or is not valid yet, by the gateway's clock"
	case is[x509.HostnameError](err):
		return "the host's certificate is for another host name"
	case is[x509.UnknownAuthorityError](err):
		return "the host's certificate is from an authority that the gateway does not trust; the gateway's option --host-ca names the trusted authorities"
	case is[*tls.CertificateVerificationError](err):
		return "the host's certificate cannot be verified"
	case errors.Is(err, http.ErrSchemeMismatch) || is[tls.RecordHeaderError](err):
		return "the host does not speak TLS at this port"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the host refuses the connection: nothing listens at this port, or a firewall rejects it"
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return "the host cannot be reached: there is no route to it"
	case errors.Is(err, context.DeadlineExceeded), isTimeout && timeout.Timeout() && (!isOp || op.Op == "dial"):
		return "the host did not answer in time" // a timeout after connecting may be due to the sandbox's own body
	}
	return ""
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
