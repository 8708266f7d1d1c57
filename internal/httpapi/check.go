package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/refusal"
	"github.com/brevet-dev/brevet/internal/token"
	"github.com/brevet-dev/brevet/scopes/egressrule"
)

// checkTimeout bounds a check, because the forwarded call waits for it.
const checkTimeout = 3 * time.Second

// CheckCall tells a gateway whether the call that it holds may pass. Gateways use any method, and may append the path of that
// call to the path of the check, so the generated router has no route to this handler.
func (s *Server) CheckCall(w http.ResponseWriter, r *http.Request) {
	s.begin(r, "checkCall")
	gateway, err := s.gateway(r)
	if err != nil {
		s.metrics.checks.WithLabelValues("gateway").Inc()
		s.fail(w, r, gateway, err)
		return
	}
	callOf(r).relayed = true
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	h := w.Header()
	granted, err := s.pass(ctx, r, gateway)
	if err != nil { // the caller of the forwarded call receives this problem
		if c := challenge(r, err); c != "" {
			h.Set("WWW-Authenticate", c)
		}
		p := s.refused(h, r, gateway, err)
		s.metrics.checks.WithLabelValues(string(p.Code)).Inc()
		writeProblem(w, p)
		return
	}
	s.metrics.checks.WithLabelValues("allowed").Inc()
	h.Set("X-Brevet-Subject", granted.Subject)
	h.Set("X-Brevet-Actor", granted.Holder())
	h.Set("X-Brevet-Task", granted.Task)
	h.Set("X-Brevet-Scope", granted.Scope)
	h.Set("X-Brevet-Issuance", granted.ID)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}

// gateway authenticates the gateway by its certificate alone, because the Authorization header belongs to the forwarded call. An
// unknown gateway never gets 401: gateways pass 401 on to the caller, as the answer to an invalid token.
func (s *Server) gateway(r *http.Request) (attest.Identity, error) {
	who, err := s.cfg.Attestor.Identify(r.TLS, "")
	switch {
	case errors.Is(err, attest.ErrBundleUnavailable):
		return nobody, &requestError{kind: errBundle, detail: refusal.Reason(err)}
	case err != nil:
		return nobody, &requestError{kind: errNotAllowed, detail: refusal.Reason(err)}
	}
	if len(s.audiences[who.ID()]) == 0 {
		return who, errNoRole
	}
	return who, nil
}

// pass returns the claims of the forwarded call's token if the call may pass.
func (s *Server) pass(ctx context.Context, r *http.Request, gateway attest.Identity) (token.Claims, error) {
	call, err := forwardedRequestOf(r)
	if err != nil {
		return token.Claims{}, err
	}
	scheme, raw, err := presented(r)
	if err != nil {
		return token.Claims{}, err
	}
	t, err := s.presented(raw)
	if err == nil && !slices.Contains(s.audiences[gateway.ID()], t.Token.Audience) {
		err = token.ErrAudience
	}
	if err != nil {
		return token.Claims{}, badToken(err)
	}
	var proof dpop.Proof
	if scheme == dpopScheme {
		proof, err = dpop.Check(r.Header.Values(dpop.Header), dpop.Expected{
			Method: call.Method, URLs: []string{"https://" + call.Host + call.Path}, Now: s.cfg.Now(), Token: raw,
		})
		if err != nil {
			return token.Claims{}, badProof(err)
		}
	}
	if err := t.Token.Bound(token.Presented{X5T: call.x5t, JKT: proof.Thumbprint}); err != nil {
		return token.Claims{}, badToken(err)
	}
	err = s.cfg.Broker.Check(ctx, broker.ForwardedCall{PresentedToken: t, Call: call.Call, Proof: proof, By: gateway})
	if closed, ok := errors.AsType[*broker.CallNotAllowedError](err); ok {
		return t.Token, &requestError{kind: broker.ErrCallNotAllowed, detail: "egress", why: closed.Why}
	}
	switch {
	case errors.Is(err, broker.ErrInactive):
		return t.Token, &requestError{kind: errToken, detail: "token_inactive", why: "The token is no longer valid."}
	case errors.Is(err, dpop.ErrReplayed):
		return t.Token, badProof(err)
	}
	return t.Token, err
}

// Authorization schemes of access tokens.
const bearerScheme, dpopScheme = "Bearer", "DPoP"

// presented returns the token of a forwarded call, and its authorization scheme.
func presented(r *http.Request) (scheme, raw string, err error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", "", &requestError{kind: errToken, detail: "token_missing", unsigned: true}
	}
	scheme, raw, ok := strings.Cut(values[0], " ")
	for _, known := range []string{bearerScheme, dpopScheme} {
		if len(values) == 1 && ok && strings.EqualFold(scheme, known) {
			return known, raw, nil
		}
	}
	return "", "", &requestError{
		kind: errToken, detail: "authorization_malformed", unsigned: true,
		why: "The Authorization header must be Bearer or DPoP, followed by one token.",
	}
}

func badProof(err error) error {
	why := "The DPoP proof is not valid: " + strings.TrimPrefix(err.Error(), "dpop: ") + "."
	return &requestError{kind: errProof, detail: refusal.Reason(err), why: why}
}

// badToken returns an error that tells the holder of a token what is wrong with it.
func badToken(err error) error {
	if errors.Is(err, errKeys) {
		return err
	}
	is := func(target error) bool { return errors.Is(err, target) }
	bad := &requestError{kind: errToken, detail: refusal.Reason(err)}
	switch {
	case is(token.ErrExpired):
		bad.why = "The token has expired."
	case is(token.ErrAudience):
		bad.why = "The token is for another audience."
	case is(token.ErrNotYetValid):
		bad.why = "The token is not valid yet."
	case is(token.ErrBinding):
		bad.why = "The token is bound to a key that the caller did not prove."
	default:
		bad.why = "The token is not an access token of this issuer."
		forgeable := []error{token.ErrMalformed, token.ErrTooLarge, token.ErrAlgorithm, token.ErrKey, token.ErrSignature}
		bad.unsigned = slices.ContainsFunc(forgeable, is)
	}
	return bad
}

// challenge returns the WWW-Authenticate value for an invalid token or DPoP proof (RFC 6750, section 3, and RFC 9449, section
// 7.1). It returns "" for any other error.
func challenge(r *http.Request, err error) string {
	const algorithms = `algs="` + dpop.Algorithms + `"`
	f, name := requestErrorOf(err), answerTo(err).code
	if !errors.Is(err, errToken) && !errors.Is(err, errProof) && !errors.Is(err, broker.ErrCallNotAllowed) {
		return ""
	}
	if f.detail == "token_missing" {
		return bearerScheme + ", " + dpopScheme + " " + algorithms
	}
	told := fmt.Sprintf(`error="%s", error_description="%s"`, name, f.why)
	if scheme, _, _ := presented(r); scheme == dpopScheme {
		return dpopScheme + " " + told + ", " + algorithms
	}
	if errors.Is(err, errToken) {
		return bearerScheme + " " + told + ", " + dpopScheme + " " + algorithms
	}
	return bearerScheme + " " + told
}

// checkPath is the path of the check endpoint. Envoy appends the path of the forwarded call to it.
const checkPath = "/v1/check"

// forwardedRequest is the call that a gateway holds while it asks Brevet.
type forwardedRequest struct {
	egressrule.Call
	// x5t is the base64url SHA-256 of the certificate that the caller has proved to the gateway, or "" if there is none.
	x5t string
}

// gateway describes how one kind of gateway passes on the call.
type gateway struct {
	name string
	// method, target and host are the headers for these. If they are empty, the gateway sends the call's own method, target and
	// host, as Envoy does.
	method, target, host string
	// certificate is the header with the caller's certificate, and thumbprint computes its thumbprint.
	certificate string
	thumbprint  func(string) (string, bool)
}

// gateways lists the supported gateways. Each uses its own certificate header: a gateway that passes on all headers of a caller
// also passes on what the caller forged for another gateway.
var gateways = []gateway{
	{"nginx", "X-Original-Method", "X-Original-Uri", "X-Original-Host", "X-Client-Cert", ofEscapedPEM},
	{"traefik", "X-Forwarded-Method", "X-Forwarded-Uri", forwardedHost, "X-Forwarded-Tls-Client-Cert", ofBareDER},
	{"envoy", "", "", "", "X-Forwarded-Client-Cert", ofXFCC},
}

const forwardedHost = "X-Forwarded-Host"

// forwardedKey is the key of a check's X-Forwarded-Host in its context.
type forwardedKey struct{}

// checked returns what follows checkPath in the request target, byte for byte, and whether the call is a check.
func checked(r *http.Request) (target string, ok bool) {
	target, ok = strings.CutPrefix(r.RequestURI, checkPath)
	return target, ok && (target == "" || target[0] == '/' || target[0] == '?')
}

// unclear returns the error for a forwarded call that is not described beyond doubt.
func unclear(why string) error {
	return &requestError{kind: errUnclear, detail: "call_unclear", why: why, unsigned: true}
}

// forwardedRequestOf reads the description of the forwarded call. It refuses a call that is described in two ways, even if they
// agree: the caller itself sent one of them.
func forwardedRequestOf(r *http.Request) (forwardedRequest, error) {
	target, _ := checked(r)
	var used []gateway
	for _, m := range gateways[:2] {
		if len(fieldOf(r, m.method))+len(fieldOf(r, m.target)) > 0 {
			used = append(used, m)
		}
	}
	if strings.HasPrefix(target, "/") {
		used = append(used, gateways[2])
	} else if target != "" {
		return forwardedRequest{}, unclear("The check request itself must have no query.")
	}
	if len(used) == 0 {
		return forwardedRequest{}, unclear("The gateway headers do not describe a call.")
	}
	if len(used) > 1 {
		return forwardedRequest{}, unclear("The headers describe the call in two ways at once.")
	}
	m, o := used[0], forwardedRequest{Call: egressrule.Call{Method: r.Method, Host: r.Host, Path: target}}
	if m.method != "" {
		var ok [3]bool
		o.Method, ok[0] = sole(r, m.method)
		o.Path, ok[1] = sole(r, m.target)
		o.Host, ok[2] = sole(r, m.host)
		if ok != [3]bool{true, true, true} {
			return forwardedRequest{}, unclear("The gateway must send the method, target and host of the call, each once.")
		}
	}
	if len(r.Header.Values(m.certificate)) == 0 {
		return o, nil
	}
	value, ok := sole(r, m.certificate)
	if ok {
		o.x5t, ok = m.thumbprint(value)
	}
	if !ok {
		return forwardedRequest{}, unclear("The forwarded client certificate is malformed, or there is more than one.")
	}
	return o, nil
}

func sole(r *http.Request, field string) (string, bool) {
	values := fieldOf(r, field)
	if len(values) != 1 || values[0] == "" {
		return "", false
	}
	return values[0], true
}

func fieldOf(r *http.Request, name string) []string {
	if name == forwardedHost {
		kept, _ := r.Context().Value(forwardedKey{}).([]string)
		return kept
	}
	return r.Header.Values(name)
}

// ofEscapedPEM reads nginx's $ssl_client_escaped_cert.
func ofEscapedPEM(value string) (string, bool) {
	text, err := url.PathUnescape(value)
	if err != nil {
		return "", false
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 || strings.TrimSpace(string(rest)) != "" {
		return "", false
	}
	return jws.CertificateThumbprint(block.Bytes), true
}

// ofBareDER reads the header of Traefik's passTLSClientCert: each certificate in base64, the caller's own first.
func ofBareDER(value string) (string, bool) {
	own, _, _ := strings.Cut(value, ",")
	der, err := base64.StdEncoding.Strict().DecodeString(own)
	if err != nil || len(der) == 0 {
		return "", false
	}
	return jws.CertificateThumbprint(der), true
}

// ofXFCC reads Envoy's x-forwarded-client-cert. It accepts only one element, without characters that could begin another element.
func ofXFCC(value string) (string, bool) {
	var hashes []string
	for pair := range strings.SplitSeq(value, ";") {
		if key, hash, _ := strings.Cut(pair, "="); strings.EqualFold(key, "Hash") {
			hashes = append(hashes, hash)
		}
	}
	if strings.ContainsAny(value, `,"`) || len(hashes) != 1 {
		return "", false
	}
	sum, err := hex.DecodeString(hashes[0])
	if err != nil || len(sum) != sha256.Size {
		return "", false
	}
	return base64.RawURLEncoding.EncodeToString(sum), true
}
