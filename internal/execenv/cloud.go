package execenv

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
)

// federated returns a token that a program exchanges at another system. It returns an error if the scope says that the token is
// for another system than this one.
func federated(token *client.Token, system string) (secret.Text, error) {
	if as := string(token.Exchange.As); as != "" && as != system {
		return secret.Text{}, fmt.Errorf("%s issues a token for %s: use --for %s", token.Scope, as, as)
	}
	return bearerOf(token)
}

// tokenFile is the name of the file with a token, in the folder of its program.
const tokenFile = "token"

// forAWS returns a place for the AWS SDKs and CLI. A token is in a file that SDKs read for each exchange. Keys are the output of
// a program that SDKs run again before the keys expire; from a shared credentials file most SDKs read them once.
//
// The program does not get the user's own AWS configuration, since several SDKs prefer a default profile there to a token.
func forAWS(dir string, getenv func(string) string) (*place, error) {
	config, shared, keys := filepath.Join(dir, "config"), filepath.Join(dir, "credentials"), filepath.Join(dir, "keys.json")
	if strings.ContainsAny(dir, "\"'\\$`%\r\n") {
		return nil, fmt.Errorf("the path of the private folder, %q, has characters that a credential_process does not support: set TMPDIR", dir)
	}
	always := []string{"AWS_CONFIG_FILE=" + config, "AWS_SHARED_CREDENTIALS_FILE=" + shared, "AWS_EC2_METADATA_DISABLED=true"}
	render := func(token *client.Token) (content, error) {
		if token.Kind != kindJWT {
			process, err := awsKeys(token)
			return content{files: map[string]secret.Text{
				"keys.json": process, "credentials": secret.New(""),
				"config": secret.New("[default]\ncredential_process = cat \"" + keys + "\"\n"),
			}, variables: always}, err
		}
		bearer, err := federated(token, "aws")
		if err != nil {
			return content{}, err
		}
		exchange := token.Exchange
		role, err := known(token, exchange.Role, "AWS_ROLE_ARN", getenv)
		if err != nil {
			return content{}, err
		}
		variables := append(always, "AWS_WEB_IDENTITY_TOKEN_FILE="+filepath.Join(dir, tokenFile), "AWS_ROLE_ARN="+role,
			"AWS_ROLE_SESSION_NAME="+sessionName(token.Task), "AWS_STS_REGIONAL_ENDPOINTS=regional") // the last is for SDKs before 2022
		if exchange.Region != "" && getenv("AWS_REGION") == "" && getenv("AWS_DEFAULT_REGION") == "" {
			variables = append(variables, "AWS_REGION="+exchange.Region, "AWS_DEFAULT_REGION="+exchange.Region)
		}
		// A URL that the user has set for all services, or for this one, would get the token.
		usual := exchange.URL == "https://sts."+exchange.Region+".amazonaws.com" || exchange.URL == "https://sts."+exchange.Region+".amazonaws.com.cn"
		if exchange.URL != "" && (!usual || getenv("AWS_ENDPOINT_URL") != "" || getenv("AWS_ENDPOINT_URL_STS") != "") {
			variables = append(variables, "AWS_ENDPOINT_URL_STS="+exchange.URL)
		}
		return content{files: map[string]secret.Text{tokenFile: bearer, "config": secret.New(""), "credentials": secret.New("")}, variables: variables}, nil
	}
	return folderOf(dir, render,
		"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
		"AWS_CREDENTIAL_EXPIRATION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_BEARER_TOKEN_BEDROCK",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), nil
}

// awsKeys returns the output of a credential_process: the keys of Vault's aws engine, and when they end.
func awsKeys(token *client.Token) (secret.Text, error) {
	members := membersOf(token)
	key, keySecret := members["access_key"].Reveal(), members["secret_key"].Reveal()
	if key == "" || keySecret == "" {
		return secret.Text{}, fmt.Errorf("%s has no keys for AWS (access_key and secret_key): use a scope that issues them, or a JWT", token.Scope)
	}
	type process struct {
		Version      int
		KeyID        string `json:"AccessKeyId"`
		Key          string `json:"SecretAccessKey"`
		SessionToken string `json:",omitempty"`
		Expiration   string
	}
	return asJSON(process{
		1, key, keySecret, cmp.Or(members["session_token"].Reveal(), members["security_token"].Reveal()),
		token.Expires.UTC().Format(time.RFC3339),
	}), nil
}

// maxSessionName is the longest name of a session that AWS accepts.
const maxSessionName = 64

// sessionName returns a name of an AWS session that leads from CloudTrail to the task.
func sessionName(task string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_+=,.@-", r):
			return r
		}
		return '-'
	}, task)
	if len(name) < 2 { // AWS requires two characters
		name = "brevet-" + name
	}
	return name[:min(len(name), maxSessionName)]
}

// forGoogle returns a place for Google's libraries and gcloud. They read the token's file for each exchange.
func forGoogle(dir string) *place {
	type source struct {
		File string `json:"file"`
	}
	type account struct {
		Type          string `json:"type"`
		Audience      string `json:"audience"`
		TokenType     string `json:"subject_token_type"`
		TokenURL      string `json:"token_url"`
		Impersonation string `json:"service_account_impersonation_url,omitempty"`
		Source        source `json:"credential_source"`
	}
	path := filepath.Join(dir, "external_account.json")
	return folderOf(dir, func(token *client.Token) (content, error) {
		bearer, err := federated(token, "google")
		if err != nil {
			return content{}, err
		}
		exchange := token.Exchange
		audience := cmp.Or(exchange.Audience, audienceOf(bearer.Reveal()))
		audience = strings.TrimPrefix(audience, "https:") // a provider accepts its name with and without it
		if !strings.HasPrefix(audience, "//iam.googleapis.com/") {
			return content{}, fmt.Errorf("%s: the audience is not a workload identity provider (//iam.googleapis.com/projects/...)", token.Scope)
		}
		file := account{ //nolint:gosec // no secret
			Type: "external_account", Audience: audience, TokenType: "urn:ietf:params:oauth:token-type:jwt",
			TokenURL: cmp.Or(exchange.URL, "https://sts.googleapis.com") + "/v1/token", Source: source{filepath.Join(dir, tokenFile)},
		}
		if exchange.ServiceAccount != "" {
			file.Impersonation = cmp.Or(exchange.IamURL, "https://iamcredentials.googleapis.com") + "/v1/projects/-/serviceAccounts/" +
				url.PathEscape(exchange.ServiceAccount) + ":generateAccessToken"
		}
		return content{
			files:     map[string]secret.Text{tokenFile: bearer, filepath.Base(path): asJSON(file)},
			variables: []string{"GOOGLE_APPLICATION_CREDENTIALS=" + path, "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE=" + path},
		}, nil
	}, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON", "GCLOUD_KEYFILE_JSON",
		"GOOGLE_OAUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
}

// audienceOf returns the audience of a JWT. It is empty if there is not exactly one. The other system checks the token.
func audienceOf(token string) string {
	var claims struct {
		Audience any `json:"aud"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return ""
	}
	if list, ok := claims.Audience.([]any); ok && len(list) == 1 {
		claims.Audience = list[0]
	}
	audience, _ := claims.Audience.(string)
	return audience
}

// forAzure returns a place for Azure's libraries, which read the token's file for each exchange, or five minutes later.
func forAzure(dir string, getenv func(string) string) *place {
	return folderOf(dir, func(token *client.Token) (content, error) {
		bearer, err := federated(token, "azure")
		if err != nil {
			return content{}, err
		}
		exchange := token.Exchange
		id, err := known(token, exchange.Client, "AZURE_CLIENT_ID", getenv)
		tenant, failed := known(token, exchange.Tenant, "AZURE_TENANT_ID", getenv)
		variables := []string{"AZURE_FEDERATED_TOKEN_FILE=" + filepath.Join(dir, tokenFile), "AZURE_CLIENT_ID=" + id, "AZURE_TENANT_ID=" + tenant}
		if exchange.URL != "" {
			variables = append(variables, "AZURE_AUTHORITY_HOST="+exchange.URL)
		}
		return content{files: map[string]secret.Text{tokenFile: bearer}, variables: variables}, errors.Join(err, failed)
	}, "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME", "AZURE_PASSWORD", "AZURE_TOKEN_CREDENTIALS")
}

// forAnthropic returns a place for Anthropic's SDKs. They read the file of a token for each exchange, and a key from a variable
// alone.
func forAnthropic(dir string, to target, getenv func(string) string) *place {
	key := variableWith("ANTHROPIC_API_KEY", to, "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
	if to.field != "" {
		return key
	}
	files := folderOf(dir, func(token *client.Token) (content, error) {
		bearer, err := federated(token, "anthropic")
		if err != nil {
			return content{}, err
		}
		exchange := token.Exchange
		rule, err := known(token, exchange.Rule, "ANTHROPIC_FEDERATION_RULE_ID", getenv)
		organization, failed := known(token, exchange.Organization, "ANTHROPIC_ORGANIZATION_ID", getenv)
		variables := []string{
			"ANTHROPIC_IDENTITY_TOKEN_FILE=" + filepath.Join(dir, tokenFile),
			"ANTHROPIC_FEDERATION_RULE_ID=" + rule, "ANTHROPIC_ORGANIZATION_ID=" + organization,
		}
		account, workspace := exchange.ServiceAccount, exchange.Workspace
		if exchange.As == "" { // only then the user says what the token is for
			account, workspace = getenv("ANTHROPIC_SERVICE_ACCOUNT_ID"), getenv("ANTHROPIC_WORKSPACE_ID")
		}
		if account != "" {
			variables = append(variables, "ANTHROPIC_SERVICE_ACCOUNT_ID="+account)
		}
		if workspace != "" {
			variables = append(variables, "ANTHROPIC_WORKSPACE_ID="+workspace)
		}
		if exchange.URL != "" { // another one that the user has set would get the token
			variables = append(variables, "ANTHROPIC_BASE_URL="+exchange.URL)
		}
		return content{files: map[string]secret.Text{tokenFile: bearer}, variables: variables}, errors.Join(err, failed)
	})
	chosen := files
	return &place{
		put: func(token *client.Token) error {
			if token.Kind != kindJWT {
				chosen = key
			}
			return chosen.put(token)
		},
		variables: func() []string { return chosen.variables() },
		remove:    files.remove,
		hides:     append(key.hides, "ANTHROPIC_API_KEY", "ANTHROPIC_IDENTITY_TOKEN", "ANTHROPIC_SERVICE_ACCOUNT_ID", "ANTHROPIC_WORKSPACE_ID"),
		env:       unlessJWT,
	}
}

// forOpenAI returns a place for OpenAI's SDKs, which read a key from a variable alone. They take a token for federation only
// from the program that uses them.
func forOpenAI(to target) *place {
	place := variableWith("OPENAI_API_KEY", to, "OPENAI_ADMIN_KEY")
	put := place.put
	place.put = func(token *client.Token) error {
		if token.Kind == kindJWT {
			return fmt.Errorf("%s issues a JWT, and no SDK of OpenAI reads one from the environment: use --file and pass it in the program, or --egress", token.Scope)
		}
		return put(token)
	}
	return place
}
