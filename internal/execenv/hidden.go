package execenv

import (
	"regexp"
	"slices"
	"strings"
)

// ofSystems are beginnings of the variables by which clients of a system find credentials, or a file, a helper or a socket that has them.
var ofSystems = []string{
	"AWS_", "AZURE_", "ARM_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "VAULT_", "BAO_", "GH_", "GITHUB_", "GITLAB_", "KUBE", "DOCKER_", "PG", "SPIFFE_",
	"NPM_CONFIG_", "GIT_CONFIG_", "SSH_A", "GPG_A",
}

// settings are variables of these systems that hold no credential.
var settings = []string{
	"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN", "AWS_ENDPOINT_URL", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "GOOGLE_CLOUD_PROJECT",
	"CLOUDSDK_CORE_PROJECT", "GITHUB_REPOSITORY", "GH_HOST", "PGDATABASE", "PGUSER", "PGHOST", "PGPORT", "PGSSLMODE", "AWS_CA_BUNDLE",
	"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "PGAPPNAME", "PGOPTIONS",
}

// single are further variables that lead to credentials.
var single = []string{"NETRC", "CURL_HOME", "GIT_ASKPASS", "SUDO_ASKPASS", "DBUS_SESSION_BUS_ADDRESS", "ALL_PROXY", "FTP_PROXY"}

var (
	// secretName has the words that names of credentials have, for any system: ANTHROPIC_API_KEY, NPM_TOKEN, DB_PASSWORD, SENTRY_DSN.
	secretName = regexp.MustCompile(`(?:^|_)(?:[A-Z]*TOKENS?|[A-Z]*SECRETS?|[A-Z]*PASSWORD|PASSWD|PASS|PASSPHRASE|PASSFILE|CREDENTIALS?|CREDS|` +
		`[A-Z]*KEY|KEYS|KEYFILE|AUTH|PAT|JWT|COOKIE|DSN|WEBHOOK_URL|DATABASE_URL|CONNECTION_STRING)(?:_|$)`)
	// secretValue is a URL with a password, a private key, or a token of a kind that says what it is.
	secretValue = regexp.MustCompile(`://[^/@\s]*:[^/@\s]+@|-----BEGIN [A-Z ]*PRIVATE KEY|` +
		`^(?:gh[opsur]_|github_pat_|glpat-|sk-|xox[a-z]-|npm_|hv[sbr]\.|s\.[A-Za-z0-9]{24}$|AKIA|ASIA|AIza|ya29\.|eyJ[A-Za-z0-9_-]+\.)`)
)

// WithoutCredentials removes the variables whose name or value says that they hold a credential or lead to one, other than those in keep, and
// returns their names. A credential under a name and in a form that say nothing stays.
func WithoutCredentials(environ, keep []string) (rest, removed []string) {
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if slices.Contains(keep, name) || !leadsToCredential(strings.ToUpper(name), value) {
			rest = append(rest, pair)
		} else {
			removed = append(removed, name)
		}
	}
	slices.Sort(removed)
	return rest, removed
}

func leadsToCredential(name, value string) bool {
	if secretName.MatchString(name) || secretValue.MatchString(value) || slices.Contains(single, name) {
		return true
	}
	return !slices.Contains(settings, name) && slices.ContainsFunc(ofSystems, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
