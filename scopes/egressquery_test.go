package scopes_test

import (
	"testing"

	"github.com/brevet-dev/brevet/scopes"
)

// T12: a sandbox's own credential is found in a query, however its key is written. What the gateway itself sends there is not its own.
func TestCredentialsInQueriesAreFound(t *testing.T) {
	bearer, query, aws := scopes.Send{As: scopes.SendBearer}, scopes.Send{As: scopes.SendQuery, Name: "api_key"}, scopes.Send{As: scopes.SendAWS}
	for _, tc := range []struct {
		send        scopes.Send
		query, want string
	}{
		{bearer, "access_token=x", "accesstoken"},
		{bearer, "page=2&access_token=x", "accesstoken"},
		{bearer, "page=2;access_token=x", "accesstoken"},
		{bearer, "Access-Token=x", "accesstoken"},
		{bearer, "accessToken", ""},
		{bearer, "accessToken=x", "accesstoken"},
		{bearer, "%61ccess%5Ftoken=x", "accesstoken"},
		{bearer, "access_token[]=x", "accesstoken"},
		{bearer, "access.token=x", "accesstoken"},
		{bearer, "api_key=x", "apikey"},
		{bearer, "token=x", "token"},
		{bearer, "X-Amz-Signature=x", "xamzsignature"},
		{bearer, "X-Goog-Signature=x", "xgoogsignature"},
		{bearer, "sv=2024&sig=x", "sig"},
		{query, "api_key=x", ""},
		{query, "api_key=x&token=x", "token"},
		{query, "API_KEY=x", "apikey"},
		{aws, "X-Amz-Signature=x&X-Amz-Credential=y&X-Amz-Security-Token=z", ""},
		{aws, "AWSAccessKeyId=x&access_token=y", "accesstoken"},
		{bearer, "", ""},
		{bearer, "page_token=x&next_token=y&q=access_token&key=z", ""},
	} {
		if got := tc.send.CredentialIn(tc.query); got != tc.want {
			t.Errorf("%+v, %s: got %q, want %q", tc.send, tc.query, got, tc.want)
		}
	}
}
