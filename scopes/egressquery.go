package scopes

import (
	"net/url"
	"slices"
	"strings"
)

// credentialKeys are keys of queries that carry credentials at common hosts, without what is not a letter or a digit, in lower case.
// The host would then act for whom the sandbox chooses, and not as the credential of the rule says.
var credentialKeys = strings.Fields(`
	accesskey accesskeyid accesstoken apikey apitoken appkey auth authkey authorization authtoken awsaccesskeyid bearer bearertoken clientsecret
	googleaccessid hapikey idtoken jobtoken jwt keypairid oauthtoken passwd password privatetoken refreshtoken secret secretkey sessiontoken sig
	subscriptionkey token xapikey xamzcredential xamzsecuritytoken xamzsignature xgoogcredential xgoogsignature`)

// presigned are those keys that a gateway removes when it signs a call for AWS itself.
var presigned = []string{"awsaccesskeyid", "xamzcredential", "xamzsecuritytoken", "xamzsignature"}

// CredentialIn returns the first key of a query that usually carries a credential, as it is in the list above, or "". It leaves out the
// keys that the gateway itself sets or removes.
func (s Send) CredentialIn(query string) string {
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) { // some hosts split at both
		key, value, _ := strings.Cut(pair, "=")
		name := credentialKey(key)
		switch {
		case value == "", !slices.Contains(credentialKeys, name), s.As == SendAWS && slices.Contains(presigned, name):
		case s.As == SendQuery && key == s.Name:
		default:
			return name
		}
	}
	return ""
}

func credentialKey(escaped string) string {
	key, err := url.QueryUnescape(escaped)
	if err != nil {
		key = escaped
	}
	return strings.Map(func(c rune) rune {
		if c < '0' || c > '9' && c < 'a' || c > 'z' {
			return -1
		}
		return c
	}, strings.ToLower(key))
}
