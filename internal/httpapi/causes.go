package httpapi

import "net/http"

// causes explain why a caller was not authenticated, by the code that the record has. Each text is fixed: it says what is wrong with the
// proof, which its sender can see too, and nothing of what the server trusts.
var causes = map[string]string{ //nolint:gosec // texts about credentials, and none of them
	"no_identity":             "The call came with neither a client certificate nor a bearer token.",
	"authorization_malformed": "The Authorization header is not one bearer token.",
	"svid_malformed":          "The SVID cannot be parsed.",
	"svid_too_large":          "The SVID is too large.",
	"svid_profile":            "The certificate is not an X.509-SVID.",
	"spiffe_id_invalid":       "The SPIFFE ID is not valid.",
	"svid_algorithm":          "The SVID's signature algorithm is not accepted.",
	"svid_weak_key":           "The SVID has a key that is too weak.",
	"svid_signature":          "The SVID does not verify: no bundle that this server accepts holds the key that signed it.",
	"svid_expired":            "The SVID has expired.",
	"svid_not_yet_valid":      "The SVID is not valid yet: compare the clocks.",
	"svid_lifetime":           "The JWT-SVID is valid for longer than this server accepts.",
	"svid_audience":           "The JWT-SVID's audience is not exactly this server's issuer.",
	"client_method":           "Clients authenticate by an X.509-SVID over mutual TLS, or by a JWT-SVID as client_assertion: there are no client secrets.",
	"client_assertion_type":   "client_assertion_type is not supported: send urn:ietf:params:oauth:client-assertion-type:jwt-spiffe, or jwt-bearer.",
	"client_id":               "client_id is not the SPIFFE ID that the SVID proves: send that one, or none.",
	"tls_resumed":             "The TLS session was resumed.",
	"identity_mismatch":       "The certificate and the token are of different identities.",
	"id_token_key":            "The provider of ID tokens has no key with the token's key id.",
	"id_token_malformed":      "The ID token cannot be parsed.",
	"id_token_expired":        "The ID token has expired.",
	"id_token_audience":       "The ID token's audience is not the one that this server accepts.",
	"id_token_issuer":         "The ID token is of another issuer than the one that this server accepts.",
	"id_token_lifetime":       "The ID token is valid for longer than this server accepts.",
	"id_token_signature":      "The ID token does not verify against the provider's keys.",
}

// causeOf is what the caller is told of a finding: its code in causes, and "" when there is nothing to tell. Which trust domains are
// accepted, and which keys they have, is told apart in the record only: strangers, who can put any name into a token, would find out.
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

// outlived tells whether the cause may be that the certificate of a connection proves its client no longer, though it did when the
// connection began. Only a new connection can mend that.
func outlived(r *http.Request, cause string) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && (cause == "svid_expired" || cause == "svid_authority" || cause == "svid_signature")
}
