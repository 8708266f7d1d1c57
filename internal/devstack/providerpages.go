package devstack

import (
	"encoding/json"
	"html/template"
	"net"
	"net/http"
	"net/url"

	"github.com/go-jose/go-jose/v4"
)

// maxForm is the size limit of a request's form, in bytes.
const maxForm = 64 << 10

func (p *Provider) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /jwks", p.jwks)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /authorize", forOwnUser(p.authorize))
	mux.HandleFunc("POST /device_authorization", p.authorizeDevice)
	mux.HandleFunc("GET /device", p.verifyDevice)
	mux.HandleFunc("POST /device", forOwnUser(p.verifyDevice))
	mux.HandleFunc("POST /token", p.token)
	// Refuse a page of another site, and a request under another host name that resolves to this server: neither may log
	// anybody in.
	guarded := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if "http://"+r.Host != p.issuer {
			http.Error(w, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			http.Error(w, "no form", http.StatusBadRequest)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		guarded.ServeHTTP(w, r)
	})
}

// forOwnUser refuses other users of this machine: whoever sends this form logs in as anybody, also as an admin.
func forOwnUser(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if !ok || !ownUser(r.RemoteAddr, local.String()) {
			http.Error(w, "This stack belongs to another user of this machine. Log in as that user, or start your own with brevet dev.", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}

// discovery is the document of OpenID Connect Discovery, section 3.
func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	writeOAuth(w, http.StatusOK, map[string]any{
		"issuer":                                         p.issuer,
		"jwks_uri":                                       p.issuer + "/jwks",
		"authorization_endpoint":                         p.issuer + "/authorize",
		"token_endpoint":                                 p.issuer + "/token",
		"device_authorization_endpoint":                  p.issuer + "/device_authorization",
		"response_types_supported":                       []string{"code"},
		"grant_types_supported":                          []string{"authorization_code", deviceGrantType},
		"subject_types_supported":                        []string{"public"},
		"id_token_signing_alg_values_supported":          []string{"ES256"},
		"code_challenge_methods_supported":               []string{"S256"},
		"token_endpoint_auth_methods_supported":          []string{"none"},
		"scopes_supported":                               []string{"openid", "profile"},
		"claims_supported":                               []string{"sub", "name", "preferred_username", "groups"},
		"authorization_response_iss_parameter_supported": true,
	})
}

func (p *Provider) jwks(w http.ResponseWriter, _ *http.Request) {
	writeOAuth(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: p.key.Public(), KeyID: p.kid, Algorithm: "ES256", Use: "sig"},
	}})
}

// choosePage has one button for each person. Hidden fields carry the client's parameters.
var choosePage = template.Must(template.New("choose").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Log in (development)</title></head>
<body>
<h1>Who are you?</h1>
<p><strong>For development only: whoever opens this page can be anybody.</strong></p>
<form method="post">
{{range .Fields}}<input type="hidden" name="{{.Name}}" value="{{.Value}}">
{{end}}{{if .Device}}<p><label>Code on your device: <input name="user_code" value="{{.UserCode}}" required></label></p>
{{end}}{{range .People}}<p><button name="username" value="{{.Username}}">{{.Username}}</button> {{.Name}}{{range .Groups}} · {{.}}{{end}}</p>
{{end}}<p><button name="deny" value="yes">Nobody: decline</button></p>
</form>
</body>
</html>
`))

type formField struct{ Name, Value string }

// choose shows the page. A form without a client id belongs to the device flow.
func (p *Provider) choose(w http.ResponseWriter, form url.Values, userCode string) {
	page := struct {
		Fields   []formField
		Device   bool
		UserCode string
		People   []DevPerson
	}{Device: form.Get("client_id") == "", UserCode: userCode, People: p.people()}
	if !page.Device {
		for _, name := range []string{
			"client_id", "redirect_uri", "response_type", "scope", "state", "nonce", "code_challenge", "code_challenge_method",
		} {
			page.Fields = append(page.Fields, formField{name, form.Get(name)})
		}
	}
	writeHTML(w, http.StatusOK)
	_ = choosePage.Execute(w, page) // an error means that the client has gone
}

var tellPage = template.Must(template.New("tell").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Log in (development)</title></head><body><p>{{.}}</p></body></html>
`))

func tell(w http.ResponseWriter, status int, text string) {
	writeHTML(w, status)
	_ = tellPage.Execute(w, text) // an error means that the client has gone
}

// writeHTML sets headers that keep other sites from framing a page and making a person press its buttons.
func writeHTML(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
	w.Header().Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
}

func writeOAuth(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has gone
}

// writeOAuthError writes an error response as RFC 6749, section 5.2, defines it.
func writeOAuthError(w http.ResponseWriter, code string) {
	writeOAuth(w, http.StatusBadRequest, map[string]string{"error": code})
}
