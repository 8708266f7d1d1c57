package execenv

import (
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/internal/secret"
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
var single = []string{
	"NETRC", "CURL_HOME", "GIT_ASKPASS", "SUDO_ASKPASS", "DBUS_SESSION_BUS_ADDRESS", "ALL_PROXY", "FTP_PROXY", "KRB5CCNAME", "KRB5_KTNAME",
	"KRB5_CLIENT_KTNAME", "GNUPGHOME", "XAUTHORITY", "ICEAUTHORITY",
}

// needed are variables without which hardly any program works, or whose names only look like those of credentials.
var needed = []string{
	"PATH", "HOME", "PWD", "OLDPWD", "SHELL", "USER", "LOGNAME", "TMPDIR", "TERM", "LANG", "DESKTOP_SESSION", "KDE_FULL_SESSION", "XDG_SESSION",
}

var (
	// secretName has the words that names of credentials have, for any system: ANTHROPIC_API_KEY, NPM_TOKEN, DB_PASSWORD, SENTRY_DSN.
	secretName = regexp.MustCompile(`(?:^|[^A-Z0-9])(?:` +
		`(?:[A-Z0-9]*(?:TOKEN|KEY|PWD|DSN)|(?:DB|SQL|SSH|FTP|SMTP|MAIL|USER|ROOT|ADMIN|REDIS|MONGO)?PASS|KEYFILE|PASSFILE|CRED|PAT|JWT|COOKIE)S?[0-9]*|` +
		`[A-Z0-9]*(?:SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)[A-Z0-9]*|[A-Z0-9]*AUTH|AUTHORIZATION|BEARER|` +
		`(?:WEBHOOK_URL|DATABASE_URL|CONNECTION_STRING)S?[0-9]*|SESSION[0-9]*$|OP_SESSION)(?:[^A-Z0-9]|$)`)
	// secretValue is a URL or a connection string with a user or a password, a private key, or a token or an address of a kind that says
	// what it is.
	secretValue = regexp.MustCompile(`://[^/@\s]*@|://[^/@:\s]*:[^@\s]*@|:[^@\s]+@(?:tcp|unix)\(|` +
		`(?i:(?:^|[\s;&?,])(?:password|passwd|pwd|accountkey|sharedaccesskey|client_secret|access_token|token|api_?key|sig|x-amz-signature)\s*=\s*[^\s;&])|` +
		`(?i:\bbearer\s+[^\s]{8}|\bauthorization:)|-----BEGIN [A-Z ]*PRIVATE KEY|\bAGE-SECRET-KEY-|` +
		`\bhooks\.slack\.com/|\bdiscord(?:app)?\.com/api/webhooks/|\bwebhook\.office\.com/|` +
		`^(?:` + tokenPrefix + `|s\.[A-Za-z0-9]{24}$|eyJ[A-Za-z0-9_-]+\.)|(?:^|[^A-Za-z0-9])(?:` + tokenPrefix + `)[A-Za-z0-9_-]{16}`)
)

// tokenPrefix begins tokens of known kinds.
const tokenPrefix = `gh[opsur]_|github_pat_|glpat-|sk-|[prs]k_(?:live|test)_|whsec_|xox[a-z]-|xapp-|npm_|hv[sbr]\.|hf_|SG\.|pypi-|dop_v1_|AKIA|ASIA|AIza|ya29\.` //nolint:gosec // the beginnings of credentials, and none

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
	if slices.Contains(needed, name) {
		return false
	}
	if secretName.MatchString(name) || secretValue.MatchString(value) || secret.Shaped(value) || slices.Contains(single, name) {
		return true
	}
	return !slices.Contains(settings, name) && slices.ContainsFunc(ofSystems, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
