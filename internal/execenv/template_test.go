package execenv

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// jwtFor returns a federated token. No system checks its signature here.
func jwtFor(exchange openapi.Exchange) *client.Token {
	return &client.Token{
		Kind: "jwt", Type: "Bearer", Scope: "a.b", Task: "t/ä\n" + strings.Repeat("x", 99), Secret: secret.New("e30.e30.c2ln"), Exchange: exchange,
		Expires: time.Unix(1e9, 0),
	}
}

// supplied delivers a token to a program in a new private folder. It returns the folder, and the variables of the program.
func supplied(t *testing.T, program string, token *client.Token, environ ...string) (string, []string, error) {
	t.Helper()
	folder := t.TempDir()
	c := &Credential{}
	getenv := func(name string) string {
		for _, pair := range environ {
			if value, ok := strings.CutPrefix(pair, name+"="); ok {
				return value
			}
		}
		return ""
	}
	if err := c.Deliver("for", program, &private.Folder{Path: folder}, getenv); err != nil {
		return folder, nil, err
	}
	if err := c.put(token); err != nil {
		return folder, nil, err
	}
	t.Cleanup(func() {
		c.remove()
		if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
			t.Errorf("got %v, %v, want nothing left behind", left, err)
		}
	})
	return folder, (&Environment{Credentials: []*Credential{c}}).Environ(environ), nil
}

// TestExchangeCannotAddToAFile checks that a value of an exchange stays one value, whatever characters it has.
func TestExchangeCannotAddToAFile(t *testing.T) {
	const hostile = "a\",\"token_url\":\"https://evil.example\",\"b\":\"/../c?d#\n"
	folder, _, err := supplied(t, "google", jwtFor(openapi.Exchange{
		As: "google", URL: "https://sts.example" + hostile, Audience: "//iam.googleapis.com/" + hostile, ServiceAccount: hostile, IamURL: "https://iam.example",
	}))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "google", "external_account.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil || len(got) != 6 || got["token_url"] != "https://sts.example"+hostile+"/v1/token" {
		t.Errorf("got %s, %v", text, err)
	}
	if address, _ := got["service_account_impersonation_url"].(string); !strings.HasPrefix(address, "https://iam.example/v1/projects/-/serviceAccounts/") ||
		!strings.HasSuffix(address, ":generateAccessToken") || strings.ContainsAny(address, "?#\n\"") || strings.Count(address, "/") != 7 {
		t.Errorf("got %q, want the account as one segment", address)
	}
	for _, exchange := range []openapi.Exchange{
		{As: "aws", Role: "a\nb", Region: "r"},
		{As: "azure", Tenant: "a\x00", Client: "b"},
		{As: "azure", Tenant: "a", Client: "b\n"},
		{As: "anthropic", Rule: "a\n", Organization: "b"},
		{As: "anthropic", Rule: "a", Organization: "b\x7f"},
	} {
		if _, _, err := supplied(t, string(exchange.As), jwtFor(exchange)); err == nil || !strings.Contains(err.Error(), "not supported") {
			t.Errorf("%v: got %v", exchange, err)
		}
	}
}

// TestHostsHaveNoSpecialCharacters checks that no name of a host, path or user reaches the configuration of a program if it has a
// meaning there.
func TestHostsHaveNoSpecialCharacters(t *testing.T) {
	for _, bad := range []string{
		"a b", "a\nb", "a\"b", "a'b", "a:b", "a/../b", "-a", "a;b", "$(a)", "a`b`", "//a", "https://a", "a?b", "a#b", "[::1]", "a:123456", "x@", "@a", "a@b@c", "u:p@a", "ä",
	} {
		for _, program := range []string{"gh", "docker", "npm"} {
			if _, _, err := supplied(t, program+"="+bad, jwtFor(openapi.Exchange{})); err == nil {
				t.Errorf("%s accepts %q", program, bad)
			}
		}
	}
	for _, good := range []string{"gh", "gh=GitHub.acme.example:8443", "docker=a", "docker=AWS@a-b.example:5000", "npm=a.example/x/y/", "gh="} {
		if _, _, err := supplied(t, good, jwtFor(openapi.Exchange{})); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "gh=a=b=c", "docker", "npm=", "npm=a=b c", "openai=a=b", "aws=role", "psql=x", "GH"} {
		if err := (&Credential{}).Deliver("for", bad, &private.Folder{Path: t.TempDir()}, func(string) string { return "" }); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestProgramGetsNoOtherCredentials checks that variables which win over a credential are removed, and those of other programs and
// of the user stay.
func TestProgramGetsNoOtherCredentials(t *testing.T) {
	_, got, err := supplied(t, "aws", jwtFor(openapi.Exchange{As: "aws", Role: "arn:aws:iam::1:role/a", Region: "eu-west-1", URL: "https://sts.eu-west-1.amazonaws.com"}),
		"AWS_ACCESS_KEY_ID=x", "AWS_PROFILE=x", "AWS_ROLE_ARN=x", "AWS_CONTAINER_CREDENTIALS_FULL_URI=x", "AWS_REGION=mine", "GH_TOKEN=x")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, pair := range got {
		name, value, _ := strings.Cut(pair, "=")
		names[name] = value
	}
	for _, gone := range []string{"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL_STS"} {
		if _, there := names[gone]; there {
			t.Errorf("%s is set", gone)
		}
	}
	if names["AWS_REGION"] != "mine" || names["GH_TOKEN"] != "x" || names["AWS_ROLE_ARN"] != "arn:aws:iam::1:role/a" || names["AWS_EC2_METADATA_DISABLED"] != "true" {
		t.Errorf("got %v", names)
	}
	if session := names["AWS_ROLE_SESSION_NAME"]; len(session) != 64 || !strings.HasPrefix(session, "t---xxx") {
		t.Errorf("got %q, want 64 legal characters", session)
	}
	if !slices.ContainsFunc(got, func(pair string) bool { return strings.HasPrefix(pair, "AWS_WEB_IDENTITY_TOKEN_FILE=") }) {
		t.Errorf("got %v", got)
	}
}

// TestTokenGoesToTheExchangeOfItsScope checks that no variable of the user leads a token to another host than the scope names, or asks
// there for another account.
func TestTokenGoesToTheExchangeOfItsScope(t *testing.T) {
	anthropic := openapi.Exchange{As: "anthropic", URL: "https://api.anthropic.com", Rule: "r", Organization: "o"}
	aws := openapi.Exchange{As: "aws", URL: "https://sts.eu-west-1.amazonaws.com", Role: "arn:aws:iam::1:role/a", Region: "eu-west-1"}
	const others = "ANTHROPIC_SERVICE_ACCOUNT_ID=x ANTHROPIC_WORKSPACE_ID=x ANTHROPIC_BASE_URL=https://x.example AWS_ENDPOINT_URL=https://x.example"
	for _, one := range []struct {
		exchange          openapi.Exchange
		others            string
		name, want, unset string
	}{
		{anthropic, others, "ANTHROPIC_BASE_URL", anthropic.URL, "ANTHROPIC_SERVICE_ACCOUNT_ID ANTHROPIC_WORKSPACE_ID"},
		{aws, others, "AWS_ENDPOINT_URL_STS", aws.URL, ""},
		{aws, "AWS_ENDPOINT_URL_STS=https://x.example", "AWS_ENDPOINT_URL_STS", aws.URL, ""},
		{aws, "", "", "", "AWS_ENDPOINT_URL_STS"},
		{openapi.Exchange{As: "google", URL: "https://sts.googleapis.com", Audience: "//iam.googleapis.com/a"}, "GOOGLE_CLOUD_KEYFILE_JSON=x GCLOUD_KEYFILE_JSON=x", "", "", "GOOGLE_CLOUD_KEYFILE_JSON GCLOUD_KEYFILE_JSON"},
	} {
		_, got, err := supplied(t, string(one.exchange.As), jwtFor(one.exchange), strings.Fields(one.others)...)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for _, pair := range got { // of two, the last one counts
			name, value, _ := strings.Cut(pair, "=")
			names[name] = value
		}
		if names[one.name] != one.want {
			t.Errorf("%s with %q: got %s=%s", one.exchange.As, one.others, one.name, names[one.name])
		}
		for name := range strings.FieldsSeq(one.unset) {
			if value, there := names[name]; there {
				t.Errorf("%s with %q: got %s=%s", one.exchange.As, one.others, name, value)
			}
		}
	}
	// Without an exchange, the user says what the token is for.
	_, got, err := supplied(t, "anthropic", jwtFor(openapi.Exchange{}), "ANTHROPIC_FEDERATION_RULE_ID=r", "ANTHROPIC_ORGANIZATION_ID=o", "ANTHROPIC_SERVICE_ACCOUNT_ID=mine")
	if err != nil || !slices.Contains(got, "ANTHROPIC_SERVICE_ACCOUNT_ID=mine") {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestGitSettingsAreAdded checks that settings of git in the environment stay, and that the path of a helper is one word.
func TestGitSettingsAreAdded(t *testing.T) {
	for count, want := range map[string]string{"": "3", "GIT_CONFIG_COUNT=3": "6", "GIT_CONFIG_COUNT=-4": "3", "GIT_CONFIG_COUNT=x": "3"} {
		_, got, err := supplied(t, "gh", jwtFor(openapi.Exchange{}), count)
		if err != nil {
			t.Fatal(err)
		}
		if last := got[len(got)-1]; last != "GIT_CONFIG_COUNT="+want {
			t.Errorf("%q: got %q, want %s", count, last, want)
		}
	}
	if got := shellWord("/tmp/it's $(x)"); got != `'/tmp/it'\''s $(x)'` {
		t.Errorf("got %s", got)
	}
	if _, err := forAWS(`/tmp/a"b/aws`, nil); err == nil {
		t.Error("a credential_process accepts a quote in a path")
	}
}
