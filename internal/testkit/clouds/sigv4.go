package clouds

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// sigV4Skew is how far the time of a signed request may be from that of the server.
const sigV4Skew = 5 * time.Minute

// SigV4Error is a refusal of AWS, with its code.
type SigV4Error struct{ Code, Message string }

func (e *SigV4Error) Error() string { return e.Code + ": " + e.Message }

// SigV4Key is what the server knows of an access key. Token is the session token that has to come with a temporary key.
type SigV4Key struct {
	Secret, Token string
	Expires       time.Time // zero for a key that does not expire
}

// SigV4 verifies signatures of requests, as AWS describes it under "Signature Version 4 for API requests".
type SigV4 struct {
	Region, Service string
	// Keys returns an access key by its id.
	Keys func(id string) (SigV4Key, bool)
	Now  func() time.Time
}

// Verify returns the id of the access key that signed the request, or a *SigV4Error. Every x-amz header and the host have to be
// signed.
func (v SigV4) Verify(r *http.Request, body []byte) (string, error) {
	fields, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return "", &SigV4Error{"MissingAuthenticationToken", "Request is missing Authentication Token"}
	}
	parts := map[string]string{}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		parts[name] = value
	}
	scope := strings.Split(parts["Credential"], "/")
	if len(scope) != 5 || parts["SignedHeaders"] == "" || parts["Signature"] == "" || len(parts) != 3 {
		return "", &SigV4Error{"IncompleteSignature", "Authorization header requires Credential, SignedHeaders and Signature"}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	switch skew := v.Now().Sub(at); {
	case err != nil:
		return "", &SigV4Error{"IncompleteSignature", "X-Amz-Date is missing or malformed"}
	case skew > sigV4Skew || skew < -sigV4Skew:
		return "", &SigV4Error{"SignatureDoesNotMatch", "Signature expired or not yet current: " + r.Header.Get("X-Amz-Date")}
	case scope[1] != at.Format("20060102") || scope[2] != v.Region || scope[3] != v.Service || scope[4] != "aws4_request":
		return "", &SigV4Error{"SignatureDoesNotMatch", "Credential should be scoped to a valid date, region and service: " + strings.Join(scope[1:], "/")}
	}
	key, known := v.Keys(scope[0])
	switch token := r.Header.Get("X-Amz-Security-Token"); {
	case !known, token != key.Token:
		return "", &SigV4Error{"InvalidClientTokenId", "The security token included in the request is invalid"}
	case !key.Expires.IsZero() && !v.Now().Before(key.Expires):
		return "", &SigV4Error{"ExpiredToken", "The security token included in the request is expired"}
	}
	canonical, err := v.canonical(r, body, strings.Split(parts["SignedHeaders"], ";"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), hex.EncodeToString(sum[:])}, "\n")
	signing := []byte("AWS4" + key.Secret)
	for _, part := range scope[1:] {
		signing = mac(signing, part)
	}
	if !hmac.Equal([]byte(hex.EncodeToString(mac(signing, text))), []byte(parts["Signature"])) {
		return "", &SigV4Error{"SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided"}
	}
	return scope[0], nil
}

// canonical returns the canonical request.
func (v SigV4) canonical(r *http.Request, body []byte, signed []string) (string, error) {
	if !slices.IsSorted(signed) || !slices.Contains(signed, "host") {
		return "", &SigV4Error{"SignatureDoesNotMatch", "SignedHeaders must be sorted and contain host"}
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(signed, name) {
			return "", &SigV4Error{"SignatureDoesNotMatch", name + " is not signed"}
		}
	}
	var headers strings.Builder
	for _, name := range signed {
		values := r.Header.Values(name)
		switch name {
		case "host":
			values = []string{r.Host}
		case "content-length":
			values = []string{fmt.Sprint(r.ContentLength)}
		}
		if len(values) == 0 {
			return "", &SigV4Error{"SignatureDoesNotMatch", name + " is signed and absent"}
		}
		for i := range values {
			values[i] = strings.Join(strings.Fields(values[i]), " ")
		}
		headers.WriteString(name + ":" + strings.Join(values, ",") + "\n")
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	if said := r.Header.Get("X-Amz-Content-Sha256"); said != "" && said != hash {
		if v.Service != "s3" || said != "UNSIGNED-PAYLOAD" && said != "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
			return "", &SigV4Error{"XAmzContentSHA256Mismatch", "The provided X-Amz-Content-Sha256 does not match what was computed"}
		}
		hash = said
	}
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	if v.Service != "s3" { // every other service has its path encoded twice
		path = strings.ReplaceAll(path, "%", "%25")
	}
	return strings.Join([]string{r.Method, path, canonicalQuery(r.URL.Query()), headers.String(), strings.Join(signed, ";"), hash}, "\n"), nil
}

// canonicalQuery encodes everything but unreserved characters, and sorts by name and value.
func canonicalQuery(query url.Values) string {
	encode := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	var pairs []string
	for name, values := range query {
		for _, value := range values {
			pairs = append(pairs, encode(name)+"="+encode(value))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
