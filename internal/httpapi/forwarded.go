package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/url"
	"strings"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/scopes/egressrule"
)

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

type forwardedKey struct{}

// keepForwarded saves X-Forwarded-Host of a check before unforwarded deletes it. It ignores other calls.
func keepForwarded(r *http.Request) *http.Request {
	if _, ok := checked(r); !ok {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), forwardedKey{}, r.Header.Values(forwardedHost)))
}

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
	switch len(used) {
	case 0:
		return forwardedRequest{}, unclear("The gateway headers do not describe a call.")
	case 1:
		return used[0].read(r, target)
	default:
		return forwardedRequest{}, unclear("The headers describe the call in two ways at once.")
	}
}

func (m gateway) read(r *http.Request, target string) (forwardedRequest, error) {
	o := forwardedRequest{Call: egressrule.Call{Method: r.Method, Host: r.Host, Path: target}}
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
