package federation_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/federation"
	"github.com/go-jose/go-jose/v4"
)

// issuer is an OpenID issuer over TLS.
type issuer struct {
	*httptest.Server
	rsa   *rsa.PrivateKey
	ecdsa *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	var err error
	if i.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if i.ecdsa, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256", "ES256"}})
		case "/keys":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
				{Key: i.rsa.Public(), KeyID: "r", Algorithm: "RS256", Use: "sig"}, {Key: i.ecdsa.Public(), KeyID: "e", Algorithm: "ES256", Use: "sig"},
			}})
		}
	}))
	t.Cleanup(i.Close)
	return i
}

// token signs claims, after changes.
func (i *issuer) token(t *testing.T, algorithm jose.SignatureAlgorithm, changes map[string]any) string {
	t.Helper()
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.URL, "sub": subject, "aud": audience, "iat": now, "nbf": now, "exp": now + 300, "jti": rand.Text()}
	maps.Copy(claims, changes)
	key := jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: i.rsa, KeyID: "r"}}
	if algorithm == jose.ES256 {
		key.Key = jose.JSONWebKey{Key: i.ecdsa, KeyID: "e"}
	}
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

const (
	audience = "the.audience"
	subject  = "repo:acme/api:deploy"
)

// far is a double, seen from outside.
type far interface {
	federation.Named
	Set(federation.Faults)
	Made() []federation.Credential
	Alive() []federation.Credential
	Calls() []federation.Call
}

// world has all doubles, under their published names.
type world struct {
	*issuer
	sdks      string
	authority *federation.Authority
	config    federation.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{issuer: newIssuer(t), sdks: testkit.SDKs(t), authority: federation.NewAuthority(t)}
	w.config = federation.Config{Issuer: federation.Issuer{URL: w.URL, HTTP: w.Client()}, Authority: w.authority}
	return w
}

// said is what one read of a client printed.
type said struct {
	OK         bool
	Status     int
	Code, Text string
}

// kind is a client and the double that it calls.
type kind struct {
	client string
	start  func(t *testing.T, c federation.Config) far
	// env has %TOKEN for the file with the token.
	env []string
	// want is the answer to a read; other names another role, account or rule, which does not trust the subject.
	want  string
	other []string
	// Statuses of refusals: of another role, audience, expired token.
	another, audience, expired string
}

var trust = federation.Trust{Audience: audience, Subject: subject}

func aws(t *testing.T, c federation.Config) far {
	return federation.NewAWS(t, c, map[string]federation.Role{
		"site": {Trust: trust, Bucket: "site", Prefix: "acme/api/"}, "web": {Trust: federation.Trust{Audience: audience, Subject: "repo:acme/web:deploy"}, Bucket: "site", Prefix: "acme/web/"},
	}, map[string]map[string][]byte{"site": {"acme/api/index": []byte("hello from S3"), "acme/web/index": []byte("not yours")}})
}

var awsEnv = []string{
	"AWS_WEB_IDENTITY_TOKEN_FILE=%TOKEN", "AWS_ROLE_ARN=" + federation.RoleARN("site"), "AWS_REGION=" + federation.Region, "AWS_DEFAULT_REGION=" + federation.Region,
	"AWS_ROLE_SESSION_NAME=test", "AWS_STS_REGIONAL_ENDPOINTS=regional", "CALL_BUCKET=site", "CALL_KEY=acme/api/index",
}

func google(t *testing.T, c federation.Config) far {
	return federation.NewGoogle(t, c, map[string]federation.Trust{federation.Provider: trust}, map[string]federation.ServiceAccount{
		"site@acme.iam.gserviceaccount.com": {Users: []string{subject}, Bucket: "site"}, "web@acme.iam.gserviceaccount.com": {Users: []string{"repo:acme/web:deploy"}, Bucket: "site"},
	}, map[string]string{"site/index": "hello from Google"})
}

var kinds = map[string]kind{
	"client-s3": {
		client: "s3", start: aws, env: awsEnv, want: "hello from S3", other: []string{"AWS_ROLE_ARN=" + federation.RoleARN("web")},
		another: "AccessDenied", audience: "InvalidIdentityToken", expired: "ExpiredToken",
	},
	"client-s3, all operations": {
		client: "s3all", start: aws, env: awsEnv, want: "put 2", other: []string{"CALL_KEY=acme/web/index"}, another: "AccessDenied", audience: "InvalidIdentityToken", expired: "ExpiredToken",
	},
	"client-sts": {
		client: "sts", start: aws, env: awsEnv, want: "arn:aws:sts::123456789012:assumed-role/site/test", other: []string{"AWS_ROLE_ARN=" + federation.RoleARN("none")},
		another: "AccessDenied", audience: "InvalidIdentityToken", expired: "ExpiredToken",
	},
	"boto3": {
		client: "boto3", start: aws, env: awsEnv, want: "hello from S3", other: []string{"AWS_ROLE_ARN=" + federation.RoleARN("web")},
		another: "AccessDenied", audience: "InvalidIdentityToken", expired: "ExpiredToken",
	},
	"google-auth-library": {
		client: "google", start: google, want: "hello from Google", env: []string{"CALL_URL=https://storage.googleapis.com", "CALL_BUCKET=site", "CALL_KEY=index", "ACCOUNT=site@acme.iam.gserviceaccount.com"},
		other: []string{"ACCOUNT=web@acme.iam.gserviceaccount.com"}, another: "getAccessToken", audience: "does not match the expected audience", expired: "stale",
	},
	"@azure/identity": {
		client: "azure", want: "hello from Azure", start: func(t *testing.T, c federation.Config) far {
			return federation.NewAzure(t, c, map[string]federation.AzureClient{"site": {Trust: trust, Container: "site"}, "web": {Trust: federation.Trust{Audience: audience, Subject: "web"}}}, map[string]string{"site/index": "hello from Azure"})
		},
		env:   []string{"AZURE_TENANT_ID=" + federation.Tenant, "AZURE_CLIENT_ID=site", "AZURE_FEDERATED_TOKEN_FILE=%TOKEN", "CALL_URL=https://acmesite.blob.core.windows.net", "CALL_BUCKET=site", "CALL_KEY=index"},
		other: []string{"AZURE_CLIENT_ID=web"}, another: "AADSTS700213", audience: "AADSTS700212", expired: "AADSTS700024",
	},
	"@anthropic-ai/sdk": {
		client: "anthropic", want: federation.Said, start: func(t *testing.T, c federation.Config) far {
			return federation.NewAnthropic(t, c, map[string]federation.Rule{"fdrl_site": {Trust: trust, ServiceAccount: "svac_site"}, "fdrl_web": {Trust: federation.Trust{Audience: audience, Subject: "web"}}})
		},
		env:   []string{"ANTHROPIC_FEDERATION_RULE_ID=fdrl_site", "ANTHROPIC_ORGANIZATION_ID=" + federation.Organization, "ANTHROPIC_IDENTITY_TOKEN_FILE=%TOKEN", "ANTHROPIC_SERVICE_ACCOUNT_ID=svac_site"},
		other: []string{"ANTHROPIC_FEDERATION_RULE_ID=fdrl_web"}, another: "status 401", audience: "status 401", expired: "status 401",
	},
	"openai": {
		client: "openai", want: federation.Said, start: func(t *testing.T, c federation.Config) far {
			return federation.NewOpenAI(t, c, map[string]federation.Rule{"sa_site": {Trust: trust}, "sa_web": {Trust: federation.Trust{Audience: audience, Subject: "web"}}})
		},
		env:   []string{"CALL_PROVIDER=" + federation.IdentityProvider, "CALL_ACCOUNT=sa_site", "CALL_TOKEN_FILE=%TOKEN"},
		other: []string{"CALL_ACCOUNT=sa_web"}, another: "does not map", audience: "audience", expired: "expired",
	},
}

// read runs a client once, and returns what it printed.
func (w *world) read(t *testing.T, k kind, f far, raw string, more ...string) said {
	t.Helper()
	dir := t.TempDir()
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	names := federation.NewNames(t, f)
	env := []string{
		"PATH=" + os.Getenv("PATH"), "SDKS=" + w.sdks, "HOME=" + dir, "HTTPS_PROXY=" + names.URL, "NO_PROXY=", "NODE_EXTRA_CA_CERTS=" + w.authority.File, "AWS_CA_BUNDLE=" + w.authority.File,
		"AWS_EC2_METADATA_DISABLED=true", "GOOGLE_CLOUD_PROJECT=acme",
	}
	for _, one := range append(append([]string{}, k.env...), more...) {
		env = append(env, strings.Replace(one, "%TOKEN", file, 1))
	}
	if k.client == "google" {
		var account string
		for _, one := range env {
			if value, ok := strings.CutPrefix(one, "ACCOUNT="); ok {
				account = value
			}
		}
		text, _ := json.Marshal(map[string]any{
			"type": "external_account", "audience": federation.Provider, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": "https://sts.googleapis.com/v1/token",
			"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + account + ":generateAccessToken",
			"credential_source":                 map[string]string{"file": file},
		})
		config := filepath.Join(dir, "google.json")
		if err := os.WriteFile(config, text, 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, "GOOGLE_APPLICATION_CREDENTIALS="+config)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", filepath.Join(data, "call.mjs"), k.client, "read")
	if k.client == "boto3" {
		cmd = exec.CommandContext(ctx, "python3", filepath.Join(data, "call.py"), "s3", "read")
	}
	cmd.Env, cmd.Dir = env, dir
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", k.client, err, out, &failed)
	}
	var got said
	line, _ := bufio.NewReader(strings.NewReader(string(out))).ReadString('\n')
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatalf("%s printed %s", k.client, out)
	}
	return got
}

// The official client of each system works against its double, and gets the refusals that the system documents.
func TestOfficialClientsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := k.start(t, w.config)
			refused := func(what string, got said, want string) {
				t.Helper()
				if got.OK || !strings.Contains(got.Code+" "+got.Text, want) {
					t.Errorf("%s: got %+v, want a refusal that names %q", what, got, want)
				}
			}
			refused("another", w.read(t, k, f, w.token(t, jose.RS256, nil), k.other...), k.another)
			refused("audience", w.read(t, k, f, w.token(t, jose.RS256, map[string]any{"aud": "other"})), k.audience)
			refused("expired", w.read(t, k, f, w.token(t, jose.RS256, map[string]any{"exp": time.Now().Unix() - 1})), k.expired)
			before := len(f.Made())
			raw := w.token(t, jose.RS256, nil)
			if got := w.read(t, k, f, raw); !got.OK || got.Text != k.want {
				t.Errorf("got %+v, want %q", got, k.want)
			}
			if made := f.Made(); len(made) == before || len(f.Alive()) != len(made) || !made[len(made)-1].Answered {
				t.Errorf("the double made %+v", made)
			}
			f.Set(federation.Faults{Once: true})
			if got := w.read(t, k, f, raw); got.OK {
				t.Error("a jti is accepted twice")
			}
			f.Set(federation.Faults{Lost: 100})
			before = len(f.Made())
			if got := w.read(t, k, f, w.token(t, jose.RS256, nil)); got.OK {
				t.Error("a lost answer arrived")
			}
			if made := f.Made(); len(made) <= before {
				t.Error("an exchange whose answer is lost made nothing")
			}
			f.Set(federation.Faults{Down: true})
			if got := w.read(t, k, f, w.token(t, jose.RS256, nil)); got.OK {
				t.Error("a double that is down answers")
			}
		})
	}
}

// The doubles check what a token says beyond audience, subject and expiry.
func TestDoublesRefuseOtherTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := kinds["@azure/identity"]
	f := k.start(t, w.config)
	for name, tc := range map[string]struct{ raw, want string }{
		"ES256 at Entra":  {w.token(t, jose.ES256, nil), "AADSTS5002738"},
		"another issuer":  {w.token(t, jose.RS256, map[string]any{"iss": "https://other.test"}), "AADSTS700211"},
		"not valid yet":   {w.token(t, jose.RS256, map[string]any{"nbf": time.Now().Unix() + 60}), "AADSTS700024"},
		"a list as aud":   {w.token(t, jose.RS256, map[string]any{"aud": []string{audience}}), "AADSTS50027"},
		"without jti":     {w.token(t, jose.RS256, map[string]any{"jti": ""}), "AADSTS50027"},
		"another's keys":  {newIssuer(t).token(t, jose.RS256, map[string]any{"iss": w.URL}), "AADSTS50027"},
		"no token at all": {"a.b.c", "AADSTS50027"},
	} {
		if got := w.read(t, k, f, tc.raw); got.OK || !strings.Contains(got.Text, tc.want) {
			t.Errorf("%s: got %+v, want %s", name, got, tc.want)
		}
	}
	if made := f.Made(); len(made) != 0 {
		t.Errorf("the double made %+v", made)
	}
}

// What a double made does not outlive its expiry.
func TestCredentialsOfDoublesExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var later atomic.Int64
	w.config.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	k := kinds["@anthropic-ai/sdk"]
	f := k.start(t, w.config)
	if got := w.read(t, k, f, w.token(t, jose.RS256, nil)); !got.OK || len(f.Alive()) != 1 {
		t.Fatalf("got %+v, and %d are alive", got, len(f.Alive()))
	}
	later.Store(int64(11 * time.Minute)) // twice the life of the token
	if n := len(f.Alive()); n != 0 {
		t.Errorf("%d are alive", n)
	}
}
