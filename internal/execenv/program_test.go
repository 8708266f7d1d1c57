package execenv_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/execenv"
)

// TestProgramBehindAGatewayGetsNoIdentityVariables checks that a program behind a gateway gets no variable that leads to the
// identity of its sandbox, such as the folder with its key.
func TestProgramBehindAGatewayGetsNoIdentityVariables(t *testing.T) {
	for _, name := range []string{"SPIFFE_ENDPOINT_SOCKET", "BREVET_SVID", "SVID_DIR", "BREVET_DEV_STATE"} {
		t.Setenv(name, "to-be-hidden")
	}
	with, without := execenv.WithoutIdentity(os.Environ()), os.Environ()
	if hidden := strings.Join(with, "\n"); strings.Contains(hidden, "to-be-hidden") {
		t.Errorf("got %q", hidden)
	}
	if len(without) < len(with)+4 {
		t.Errorf("got %d variables with a gateway and %d without", len(with), len(without))
	}
}

// TestConfinedProgramGetsNoCredentialOfItsCaller (T12) checks the variables that the tools of --for and the documents know, and their kin.
func TestConfinedProgramGetsNoCredentialOfItsCaller(t *testing.T) {
	hidden := strings.Fields(`GH_TOKEN GITHUB_TOKEN GH_ENTERPRISE_TOKEN GH_CONFIG_DIR GITLAB_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
		AWS_PROFILE AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_WEB_IDENTITY_TOKEN_FILE AWS_CONTAINER_CREDENTIALS_FULL_URI AWS_BEARER_TOKEN_BEDROCK
		VAULT_TOKEN VAULT_ADDR BAO_TOKEN GOOGLE_APPLICATION_CREDENTIALS GOOGLE_API_KEY GEMINI_API_KEY CLOUDSDK_CONFIG CLOUDSDK_AUTH_ACCESS_TOKEN
		AZURE_CLIENT_SECRET AZURE_CONFIG_DIR ARM_CLIENT_SECRET ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_IDENTITY_TOKEN_FILE CLAUDE_CODE_OAUTH_TOKEN
		OPENAI_API_KEY OPENAI_ADMIN_KEY LLM_API_KEY NPM_TOKEN NODE_AUTH_TOKEN npm_config__auth NPM_CONFIG_USERCONFIG PGPASSWORD PGPASSFILE PGSERVICE
		PGSERVICEFILE PGSSLKEY SSH_AUTH_SOCK SSH_AGENT_PID SSH_ASKPASS GPG_AGENT_INFO KUBECONFIG KUBE_TOKEN DOCKER_CONFIG DOCKER_AUTH_CONFIG DOCKER_HOST
		REGISTRY_AUTH_FILE NETRC CURL_HOME GIT_ASKPASS GIT_CONFIG_COUNT GIT_CONFIG_VALUE_0 GIT_CONFIG_PARAMETERS DBUS_SESSION_BUS_ADDRESS DATABASE_URL
		TEST_DATABASE_URL SENTRY_DSN SLACK_WEBHOOK_URL MY_PASSWORD DB_PASS HF_TOKEN TF_TOKEN_app_terraform_io SOME_APIKEY COOKIE ACME_SECRET JWT TWINE_PASSWORD
		SPIFFE_ENDPOINT_SOCKET BREVET_TOKEN MYSQL_PWD DB_PWD DBPWD SSHPASS DBPASS BW_SESSION OP_SESSION_my MY_PASSWORDS PASSWORD2 SECRET1 ACCESS_TOKEN2 APITOKEN1
		apiToken2 API_KEYS S3KEY1 SECRETKEYBASE SECRET_KEY_BASE AUTHORIZATION HTTP_AUTHORIZATION BEARER my-token KRB5CCNAME KRB5_KTNAME GNUPGHOME XAUTHORITY
		DATABASE_URL2 CREDS GOAUTH PAT1`)
	byValue := []string{
		"A=postgres://u:p@h/d", "B=ghp_abcdef", "C=hvs.abc", "D=sk-ant-1", "E=AKIA0", "F=-----BEGIN EC PRIVATE KEY-----", "G=eyJhbGciOi.eyJ.x",
		"H=github_pat_1", "I=https://:secret@proxy:3128", "J=https://ghp_abc@h/simple", "K=postgres://u:p/w@h/db", "L=sk_live_abc", "M=hf_abc", "N=SG.abc",
		"O=https://hooks.slack.com/services/T/B/X", "P=AGE-SECRET-KEY-1ABC", "Q=Bearer abcdefghi", "R=Basic Authorization: x", "S=--token ghp_abcdefghijklmnop",
		"T=u:p@tcp(h)/db", "U=Server=h;User Id=u;Password=p", "V=jdbc:mysql://h/db?user=u&password=p", "W=https://h/f?sv=1&sig=x",
		"X={\"a\":\"hvs.abcdefghijklmnopqrstu\"}", "Y=https://user@h/",
	}
	kept := []string{
		"PATH=/bin", "HOME=/root", "LANG=C", "TERM=xterm", "PWD=/", "EDITOR=vi", "GOPATH=/go", "VIRTUAL_ENV=/v", "TOKENIZERS_PARALLELISM=1", "KEYBOARD=us",
		"GIT_AUTHOR_NAME=me", "ANTHROPIC_MODEL=m", "ANTHROPIC_BASE_URL=https://h/", "LLM_MODEL=m", "AWS_REGION=r", "AZURE_TENANT_ID=t", "PGDATABASE=d",
		"XDG_SESSION_ID=1", "MONKEYPATCH=", "COMPASS=n", "PATIENCE=1", "OLDPWD=/src/sk-learn", "DESKTOP_SESSION=gnome", "XDG_SESSION_TYPE=x11", "LC_ALL=C",
		"SESSION_MANAGER=local/h:@/tmp/.ICE-unix/1", "GDMSESSION=x", "PGHOST=127.0.0.1", "PGPORT=5432", "HTTPS_PROXY=http://127.0.0.1:3128", "BYPASS=1",
		"AUTH0_DOMAIN=d", "PYTHONPATH=/src/sk-learn", "IMAGE=nginx:1@sha256:0", "TZ=UTC", "COLORTERM=truecolor", "SSH_CONNECTION=1", "AUTHOR=me",
	}
	var environ []string
	for _, name := range hidden {
		environ = append(environ, name+"=x")
	}
	environ = append(environ, byValue...)
	rest, removed := execenv.WithoutCredentials(append(environ, kept...), []string{"GOOGLE_API_KEY"})
	if want := append([]string{"GOOGLE_API_KEY=x"}, kept...); !slices.Equal(rest, want) {
		t.Errorf("got %q, want %q", rest, want)
	}
	if len(removed) != len(environ)-1 || !slices.IsSorted(removed) {
		t.Errorf("got %q", removed)
	}
}
