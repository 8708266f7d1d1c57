package federation

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Azure is Microsoft Entra with one tenant, and the Blob service of one storage account.
type Azure struct {
	*double
	clients map[string]AzureClient // by client id
	blobs   map[string]string      // by container/blob
}

// AzureClient is an application with one federated credential.
type AzureClient struct {
	Trust
	// Container is what the application may read.
	Container string
}

// The tenant, the application and the storage account that the suites use.
const (
	Tenant         = "3f2b0c1e-7d5a-4c1b-9a55-0e3c0f8d2a11"
	StorageAccount = "acmesite"
	StorageScope   = "https://storage.azure.com/.default"
)

// NewAzure starts a double. Clients are by id, blobs by container/blob.
func NewAzure(t testing.TB, c Config, clients map[string]AzureClient, blobs map[string]string) *Azure {
	t.Helper()
	a := &Azure{double: newDouble(c), clients: clients, blobs: blobs}
	a.listening = c.Authority.serve(t, a, "login.microsoftonline.com", StorageAccount+".blob.core.windows.net")
	return a
}

// ServeHTTP implements http.Handler.
func (a *Azure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.serve(w, r, func(r *http.Request) *answer {
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/common/discovery/instance":
			return a.instance()
		case r.Method == http.MethodGet && r.URL.Path == "/"+Tenant+"/v2.0/.well-known/openid-configuration":
			base := "https://" + r.Host + "/" + Tenant
			return jsonAnswer(200, map[string]any{
				"issuer": base + "/v2.0", "authorization_endpoint": base + "/oauth2/v2.0/authorize", "token_endpoint": base + "/oauth2/v2.0/token",
				"jwks_uri": base + "/discovery/v2.0/keys", "token_endpoint_auth_methods_supported": []string{"private_key_jwt"},
			})
		case r.Method == http.MethodPost && r.URL.Path == "/"+Tenant+"/oauth2/v2.0/token":
			return a.token(r)
		case r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, "/"+Tenant):
			return a.blob(r)
		}
		return entraError(404, "invalid_request", 90002, "Tenant not found.")
	})
}

// instance is what MSAL reads to learn that an authority belongs to Microsoft.
func (a *Azure) instance() *answer {
	host := a.Host()
	return jsonAnswer(200, map[string]any{
		"tenant_discovery_endpoint": "https://login.microsoftonline.com/" + Tenant + "/v2.0/.well-known/openid-configuration", "api-version": "1.1",
		"metadata": []map[string]any{
			{"preferred_network": "login.microsoftonline.com", "preferred_cache": "login.windows.net", "aliases": []string{"login.microsoftonline.com", "login.windows.net"}},
			{"preferred_network": host, "preferred_cache": host, "aliases": []string{host}},
		},
	})
}

func entraError(status int, code string, number int, description string) *answer {
	return jsonAnswer(status, map[string]any{
		"error": code, "error_description": "AADSTS" + itoa(int64(number)) + ": " + description, "error_codes": []int{number},
		"timestamp": time.Now().UTC().Format("2006-01-02 15:04:05Z"), "trace_id": random(), "correlation_id": random(),
	})
}

// token is the client credentials flow with a client assertion.
func (a *Azure) token(r *http.Request) *answer {
	text, ok := body(r, "application/x-www-form-urlencoded")
	form, err := url.ParseQuery(string(text))
	if !ok || err != nil {
		return entraError(400, "invalid_request", 900144, "The request body is not a form.")
	}
	client, known := a.clients[form.Get("client_id")]
	switch {
	case form.Get("grant_type") != "client_credentials":
		return entraError(400, "unsupported_grant_type", 70003, "The app requested an unsupported grant type.")
	case form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" || form.Get("client_secret") != "":
		return entraError(401, "invalid_client", 7000216, "'client_assertion', 'client_secret' or 'request' is required for the 'client_credentials' grant type.")
	case !known:
		return entraError(400, "unauthorized_client", 700016, "Application with identifier '"+form.Get("client_id")+"' was not found in the directory.")
	case form.Get("scope") != StorageScope:
		return entraError(400, "invalid_scope", 1002012, "The provided value for scope "+form.Get("scope")+" is not valid.")
	}
	c, err := a.verify(r.Context(), form.Get("client_assertion"), client.Trust, "RS256")
	switch {
	case err == nil:
	case errors.Is(err, errIssuer):
		return entraError(401, "invalid_client", 700211, "No matching federated identity record found for presented assertion issuer '"+c.Issuer+"'.")
	case errors.Is(err, errAudience):
		return entraError(401, "invalid_client", 700212, "No matching federated identity record found for presented assertion audience '"+c.Audience+"'.")
	case errors.Is(err, errSubject):
		return entraError(401, "invalid_client", 700213, "No matching federated identity record found for presented assertion subject '"+c.Subject+"'.")
	case errors.Is(err, errExpired), errors.Is(err, errEarly):
		return entraError(401, "invalid_client", 700024, "Client assertion is not within its valid time range.")
	case errors.Is(err, errAlgorithm):
		return entraError(401, "invalid_client", 5002738, "Invalid JWT token. The signature algorithm is not supported. Supported signing algorithms are: 'RS256'.")
	default:
		return entraError(401, "invalid_client", 50027, "JWT token is invalid or malformed: "+err.Error())
	}
	token := "eyJ0eXAiOiJKV1QifQ." + random() + "." + random()
	return a.give(r.Context(), token, Credential{
		Of: form.Get("client_id"), Scope: StorageScope, Subject: c.Subject, ID: c.ID, Secrets: []string{token}, Expires: a.now().Add(time.Hour),
	}, jsonAnswer(200, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": token}))
}

func (a *Azure) blobError(status int, code string) *answer {
	e := &answer{status: status, header: http.Header{"Content-Type": {"application/xml"}, "X-Ms-Error-Code": {code}}}
	e.body = []byte("<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>" + code + "</Code><Message>" + code + "</Message></Error>")
	if status == http.StatusUnauthorized {
		e.header.Set("Www-Authenticate", "Bearer authorization_uri=https://login.microsoftonline.com/"+Tenant+"/oauth2/authorize resource_id=https://storage.azure.com")
	}
	return e
}

// blob is Get Blob.
func (a *Azure) blob(r *http.Request) *answer {
	caller := a.bearer(r)
	text, ok := a.blobs[strings.TrimPrefix(r.URL.Path, "/")]
	container, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.Header.Get("Authorization") == "":
		return a.blobError(401, "NoAuthenticationInformation")
	case caller == nil:
		return a.blobError(401, "InvalidAuthenticationInfo")
	case r.Header.Get("X-Ms-Version") < "2017-11-09":
		return a.blobError(403, "AuthenticationFailed")
	case container != a.clients[caller.Of].Container:
		return a.blobError(403, "AuthorizationPermissionMismatch")
	case !ok:
		return a.blobError(404, "BlobNotFound")
	}
	return &answer{status: 200, header: http.Header{"Content-Type": {"application/octet-stream"}, "X-Ms-Blob-Type": {"BlockBlob"}}, body: []byte(text)}
}
