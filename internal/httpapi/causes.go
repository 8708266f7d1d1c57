package httpapi

import "net/http"

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
	"client_assertion_type":   "client_assertion_type is not supported. Send urn:ietf:params:oauth:client-assertion-type:jwt-spiffe or jwt-bearer.",
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

// outlived reports whether the client certificate may have been valid when the connection began, and is not any more. The client
// then needs a new connection.
func outlived(r *http.Request, cause string) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && (cause == "svid_expired" || cause == "svid_authority" || cause == "svid_signature")
}
