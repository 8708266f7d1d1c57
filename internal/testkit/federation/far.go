package federation

import (
	"net/http"
	"strings"
	"testing"
)

// What a Far trusts, and what a subject gets there.
const (
	Subject          = "site:deploy"
	SiteRole         = "agents/site"
	SiteAccount      = "site@acme.iam.gserviceaccount.com"
	SiteClient       = "99999999-8888-7777-6666-555555555555"
	SiteRule         = "fdrl_1"
	AnthropicAccount = "svac_1"
	OpenAIAccount    = "sa-1"

	AWSAudience       = "sts.amazonaws.com"
	AzureAudience     = "api://AzureADTokenExchange"
	AnthropicAudience = "https://api.anthropic.com"
	OpenAIAudience    = "https://api.openai.com/v1"
)

// Far is one double of each system, at two addresses. The subject may read the object a.txt in the bucket site, and may use one
// model; the bucket other exists and is for nobody. Each token is accepted once, which is more than some of the systems require.
type Far struct {
	// URL is the origin of the exchanges, and Resources that of what they open.
	URL, Resources string
	Authority      *Authority
	AWS            *AWS
	Google         *Google
	Azure          *Azure
	Anthropic      *Anthropic
	OpenAI         *OpenAI
}

// NewFar starts a Far. It trusts nobody until Trust is called.
func NewFar(t testing.TB) *Far {
	t.Helper()
	f := &Far{Authority: NewAuthority(t)}
	c := Config{Authority: f.Authority, Once: true}
	f.AWS = NewAWS(t, c, map[string]Role{SiteRole: {Trust: Trust{AWSAudience, Subject}, Bucket: "site"}}, map[string]map[string][]byte{
		"site": {"a.txt": []byte(Said)}, "other": {"a.txt": []byte("of another team")},
	})
	f.Google = NewGoogle(t, c, map[string]Trust{Provider: {Provider, Subject}}, map[string]ServiceAccount{SiteAccount: {Users: []string{Subject}, Bucket: "site"}},
		map[string]string{"site/a.txt": Said, "other/a.txt": "of another team"})
	f.Azure = NewAzure(t, c, map[string]AzureClient{SiteClient: {Trust: Trust{AzureAudience, Subject}, Container: "site"}}, map[string]string{"site/a.txt": Said, "other/a.txt": "of another team"})
	f.Anthropic = NewAnthropic(t, c, map[string]Rule{SiteRule: {Trust: Trust{AnthropicAudience, Subject}, ServiceAccount: AnthropicAccount}})
	f.OpenAI = NewOpenAI(t, c, map[string]Rule{OpenAIAccount: {Trust: Trust{OpenAIAudience, Subject}}})
	f.URL = f.Authority.serve(t, http.HandlerFunc(f.exchanges)).URL
	f.Resources = f.Authority.serve(t, http.HandlerFunc(f.resources)).URL
	return f
}

// exchanges passes a call on to the system that has such a path.
func (f *Far) exchanges(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/":
		f.AWS.ServeHTTP(w, r)
	case r.URL.Path == "/v1/token", strings.HasPrefix(r.URL.Path, "/v1/projects/"):
		f.Google.ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/common/"), strings.HasPrefix(r.URL.Path, "/"+Tenant+"/"):
		f.Azure.ServeHTTP(w, r)
	case r.URL.Path == "/v1/oauth/token", r.URL.Path == "/v1/messages": // its SDK has one base URL
		f.Anthropic.ServeHTTP(w, r)
	case r.URL.Path == "/oauth/token":
		f.OpenAI.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// resources does the same. Blobs and the API of OpenAI have a prefix, because paths of S3 and of Anthropic could be theirs.
func (f *Far) resources(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/storage/"):
		f.Google.ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/blobs/"):
		http.StripPrefix("/blobs", f.Azure).ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/openai/"):
		http.StripPrefix("/openai", f.OpenAI).ServeHTTP(w, r)
	case r.URL.Path == "/v1/messages", r.URL.Path == "/v1/messages/count_tokens":
		f.Anthropic.ServeHTTP(w, r)
	default:
		f.AWS.ServeHTTP(w, r)
	}
}

func (f *Far) doubles() []*double {
	return []*double{f.AWS.double, f.Google.double, f.Azure.double, f.Anthropic.double, f.OpenAI.double}
}

// Names starts a proxy by which clients reach the doubles under the names that the systems publish.
func (f *Far) Names(t testing.TB) *Names {
	t.Helper()
	return NewNames(t, f.AWS, f.Google, f.Azure, f.Anthropic, f.OpenAI)
}

// Trust makes all doubles accept the tokens of an issuer.
func (f *Far) Trust(issuer Issuer) {
	for _, d := range f.doubles() {
		d.Trust(issuer)
	}
}

// Set changes what goes wrong from now on, at all doubles.
func (f *Far) Set(faults Faults) {
	for _, d := range f.doubles() {
		d.Set(faults)
	}
}

// Secrets returns every token that the doubles got, and every secret that they gave.
func (f *Far) Secrets() (tokens, gave []string) {
	for _, d := range f.doubles() {
		tokens = append(tokens, d.Tokens()...)
		for _, c := range d.Made() {
			gave = append(gave, c.Secrets...)
		}
	}
	return tokens, gave
}

// Made returns all credentials that the doubles have made until now.
func (f *Far) Made() []Credential {
	var all []Credential
	for _, d := range f.doubles() {
		all = append(all, d.Made()...)
	}
	return all
}

// Exchanges returns how many tokens were presented until now.
func (f *Far) Exchanges() int {
	tokens, _ := f.Secrets()
	return len(tokens)
}
