package egress

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// maxSigned is the largest body, in bytes, that a signature may cover: the gateway reads such a body whole first.
	// maxSignedAtOnce is how many bytes of such bodies one sandbox may have in memory. A body takes room until its call is over.
	maxSigned       = 10 << 20
	maxSignedAtOnce = 64 << 20

	payloadHeader = "X-Amz-Content-Sha256"
	unsigned      = "UNSIGNED-PAYLOAD"
	// unsignedChunks marks a body in chunks with a checksum at the end and no signatures.
	unsignedChunks = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// streaming are the services that accept a body without its hash, and sign the path as it is sent.
var streaming = []string{"s3", "s3-object-lambda", "s3-outposts"}

// signable refuses a call whose own signatures the gateway can't replace, or whose body is too large to sign.
func signable(r *http.Request, service string) error {
	streams, payload := slices.Contains(streaming, service), r.Header.Get(payloadHeader)
	encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ","))
	switch {
	case (strings.HasPrefix(payload, "STREAMING-") || strings.Contains(encoding, "aws-chunked")) && (payload != unsignedChunks || !streams):
		return &refusal{code: codeSigned, explanation: "the sandbox signed each chunk of the body: send the body whole, or in unsigned chunks, as " +
			"SDKs do over HTTPS (through the proxy, not by the base URL) with payload_signing_enabled = false, or chunkedEncodingEnabled(false) in Java"}
	case streams && r.Method == http.MethodPost && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/form-data"):
		return &refusal{code: codeSigned, explanation: "a form contains its own signature in the body: send the object with PUT"}
	case len(r.Header.Values("Content-Type")) > 1:
		return &refusal{code: codeSigned, explanation: "the call has several Content-Type headers, and a signature covers one: send one"}
	case !streams && r.ContentLength > maxSigned:
		return tooLargeToSign(service)
	}
	return nil
}

func tooLargeToSign(service string) error {
	return &refusal{code: codeTooLarge, explanation: fmt.Sprintf("the gateway reads the whole body of a call to %s before it signs the call, and such a body may have at most %d MiB", service, maxSigned>>20)}
}

// signer signs calls with an AWS key.
type signer struct {
	passage *passage
	next    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. It changes the request in place, which is safe because nothing else uses it.
func (s *signer) RoundTrip(out *http.Request) (*http.Response, error) {
	service := s.passage.match.route.Send.Service
	payload := out.Header.Get(payloadHeader)
	switch streams := slices.Contains(streaming, service); {
	case !streams:
		var err error
		if payload, err = s.read(out); err != nil {
			return nil, err
		}
		// Reading the body may have taken long.
		if err := s.passage.sandbox.credentials.still(out.Context(), s.passage.held); err != nil {
			return nil, err
		}
	case payload != unsignedChunks:
		payload = unsigned
	}
	out.Header.Del("Date") // set by the sandbox; the signature has its own date
	out.Header.Set(payloadHeader, payload)
	// Both sides sign this one spelling of the URL, without the sandbox's own signature in the query.
	target := *out.URL
	target.RawPath = httpbinding.EscapePath(target.Path, false)
	query := target.Query()
	maps.DeleteFunc(query, func(key string, _ []string) bool {
		key = strings.ToLower(key)
		return strings.HasPrefix(key, "x-amz-") || key == "awsaccesskeyid"
	})
	target.RawQuery = query.Encode()
	out.URL = &target
	if err := s.sign(out, payload); err != nil {
		return nil, err
	}
	return s.next.RoundTrip(out)
}

// read reads the whole body, and returns its hash. It takes room from the sandbox for the passage, which gives it back.
func (s *signer) read(out *http.Request) (string, error) {
	if out.Body == nil {
		return sumOf(nil), nil
	}
	p, body := s.passage, &bytes.Buffer{}
	room := int64(2 * maxSigned) // a growing buffer may take twice the size of its content
	if out.ContentLength >= 0 {
		room = min(maxSigned, out.ContentLength)
	}
	if err := p.sandbox.bodies.Acquire(out.Context(), room); err != nil {
		return "", err
	}
	p.room = room
	if out.ContentLength >= 0 {
		body.Grow(int(room) + bytes.MinRead) // room for the read that finds EOF
	}
	if _, err := body.ReadFrom(io.LimitReader(out.Body, maxSigned+1)); err != nil {
		return "", err
	}
	if body.Len() > maxSigned {
		return "", tooLargeToSign(p.match.route.Send.Service)
	}
	p.room = min(room, int64(body.Cap()))
	p.sandbox.bodies.Release(room - p.room)
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(body.Bytes())), int64(body.Len()), nil
	return sumOf(body.Bytes()), nil
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// sign signs the parts that define the call, and no header that a proxy on the way may change.
func (s *signer) sign(out *http.Request, payload string) error {
	p, send := s.passage, s.passage.match.route.Send
	call := &http.Request{Method: out.Method, URL: out.URL, Host: out.Host, Header: http.Header{}}
	for name, values := range out.Header {
		if name == "Content-Type" || name == "Content-Md5" || strings.HasPrefix(name, "X-Amz-") {
			call.Header[name] = values
		}
	}
	key := aws.Credentials{AccessKeyID: p.held.user, SecretAccessKey: p.held.value.Reveal(), SessionToken: p.held.session.Reveal()}
	// A Signer caches the keys that it derives, so make one for each call.
	by := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = slices.Contains(streaming, send.Service) })
	if err := by.SignHTTP(context.WithoutCancel(out.Context()), key, call, payload, send.Service, send.Region, p.gateway.cfg.Now()); err != nil {
		return fmt.Errorf("signing the call: %w", err)
	}
	maps.Copy(out.Header, call.Header)
	// Mask the signature too: with it, the same call could be sent again.
	_, signature, _ := strings.Cut(out.Header.Get("Authorization"), "Signature=")
	p.mask = newMask(append(slices.Clone(p.held.masked), secret.New(signature)))
	return nil
}
