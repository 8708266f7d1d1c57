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
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"github.com/brevet-dev/brevet/internal/secret"
)

const (
	// maxSigned is the largest body that a signature covers, in bytes: it is read whole first. maxSignedAtOnce is how much of such
	// bodies is in memory for one sandbox, until the calls are over.
	maxSigned       = 10 << 20
	maxSignedAtOnce = 64 << 20

	payloadHeader = "X-Amz-Content-Sha256"
	unsigned      = "UNSIGNED-PAYLOAD"
	// unsignedChunks have a checksum at their end, and no signatures.
	unsignedChunks = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// streaming are the services that take a body without its hash, and a path as it was sent.
var streaming = []string{"s3", "s3-object-lambda", "s3-outposts"}

// names tells of a header that names another object than the path does, which is read then: X-Amz-Copy-Source, X-Oss-Copy-Source.
func names(header string) bool {
	return strings.HasSuffix(header, "-Copy-Source") || strings.HasSuffix(header, "-Rename-Source")
}

// signable refuses what a signature of the gateway's cannot be put in place of, and what it would be too much for.
func signable(r *http.Request, service string) error {
	streams, payload := slices.Contains(streaming, service), r.Header.Get(payloadHeader)
	encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ","))
	switch {
	case (strings.HasPrefix(payload, "STREAMING-") || strings.Contains(encoding, "aws-chunked")) && (payload != unsignedChunks || !streams):
		return &refusal{code: codeSigned, explanation: "each chunk of the body has a signature of the sandbox's own: send it whole, or in chunks without signatures as " +
			"SDKs do over HTTPS (through the proxy, not by the base URL) and with payload_signing_enabled = false, or chunkedEncodingEnabled(false) in Java"}
	case streams && r.Method == http.MethodPost && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/form-data"):
		return &refusal{code: codeSigned, explanation: "a form has a signature of its own in the body: send the object with PUT"}
	case len(r.Header.Values("Content-Type")) > 1:
		return &refusal{code: codeSigned, explanation: "there is more than one Content-Type, and a signature covers one: send one"}
	case slices.ContainsFunc(slices.Collect(maps.Keys(r.Header)), names):
		return &refusal{code: codeNoRule, explanation: "a copy reads an object that only a header names, and rules are about paths: read it, and write it again"}
	case !streams && r.ContentLength > maxSigned:
		return tooLargeToSign(service)
	}
	return nil
}

func tooLargeToSign(service string) error {
	return &refusal{code: codeTooLarge, explanation: fmt.Sprintf("the signature for %s covers the body, which is read whole first and so may have %d MiB", service, maxSigned>>20)}
}

// signer signs calls by a key of AWS's.
type signer struct {
	passage *passage
	next    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. The call is nobody else's, so that it is changed in place.
func (s *signer) RoundTrip(out *http.Request) (*http.Response, error) {
	service := s.passage.match.route.Send.Service
	payload := out.Header.Get(payloadHeader)
	switch streams := slices.Contains(streaming, service); {
	case !streams:
		var err error
		if payload, err = s.read(out); err != nil {
			return nil, err
		}
		// That may have taken long.
		if err := s.passage.sandbox.credentials.still(out.Context(), s.passage.held); err != nil {
			return nil, err
		}
	case payload != unsignedChunks:
		payload = unsigned
	}
	out.Header.Del("Date") // of the sandbox's: the signature has its own
	out.Header.Set(payloadHeader, payload)
	out.URL = canonical(out.URL)
	if err := s.sign(out, payload); err != nil {
		return nil, err
	}
	return s.next.RoundTrip(out)
}

// read takes the whole body, and returns its hash. The room that it takes is the passage's, which gives it back.
func (s *signer) read(out *http.Request) (string, error) {
	if out.Body == nil {
		return sumOf(nil), nil
	}
	p, body := s.passage, &bytes.Buffer{}
	room := int64(2 * maxSigned) // as much as a buffer takes that grows
	if out.ContentLength >= 0 {
		room = min(maxSigned, out.ContentLength)
	}
	if err := p.sandbox.bodies.Acquire(out.Context(), room); err != nil {
		return "", err
	}
	p.room = room
	if out.ContentLength >= 0 {
		body.Grow(int(room) + bytes.MinRead) // to meet the end
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

// canonical is a URL in the one spelling that both sides sign, without what the sandbox has signed in it.
func canonical(sent *url.URL) *url.URL {
	target := *sent
	target.RawPath = httpbinding.EscapePath(target.Path, false)
	query := target.Query()
	maps.DeleteFunc(query, func(key string, _ []string) bool {
		key = strings.ToLower(key)
		return strings.HasPrefix(key, "x-amz-") || key == "awsaccesskeyid"
	})
	target.RawQuery = query.Encode()
	return &target
}

// sign signs what says what the call is, and nothing that somebody on the way may change.
func (s *signer) sign(out *http.Request, payload string) error {
	p, send := s.passage, s.passage.match.route.Send
	call := &http.Request{Method: out.Method, URL: out.URL, Host: out.Host, Header: http.Header{}}
	for name, values := range out.Header {
		if name == "Content-Type" || name == "Content-Md5" || strings.HasPrefix(name, "X-Amz-") {
			call.Header[name] = values
		}
	}
	key := aws.Credentials{AccessKeyID: p.held.user, SecretAccessKey: p.held.value.Reveal(), SessionToken: p.held.session.Reveal()}
	// A signer keeps what it derives of a key, so that each is for one call.
	by := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = slices.Contains(streaming, send.Service) })
	if err := by.SignHTTP(context.WithoutCancel(out.Context()), key, call, payload, send.Service, send.Region, p.gateway.cfg.Now()); err != nil {
		return fmt.Errorf("signing the call: %w", err)
	}
	maps.Copy(out.Header, call.Header)
	// Whoever had the signature could send the same call again.
	_, signature, _ := strings.Cut(out.Header.Get("Authorization"), "Signature=")
	p.mask = newMask(append(slices.Clone(p.held.masked), secret.New(signature)))
	return nil
}
