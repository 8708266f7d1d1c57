package execenv

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
)

// defaultUser is the user of a credential that has none. Hosts of git and registries that accept tokens as passwords ignore it.
const defaultUser = "x-access-token"

// forGitHub returns a place for gh, which reads its configuration at each start, and for git on the same host. There is a
// version in the configuration, since gh would otherwise ask GitHub for the user's login, which installation tokens may not.
func forGitHub(dir string, to target, getenv func(string) string) (*place, error) {
	host := strings.ToLower(cmp.Or(to.host, getenv("GH_HOST"), "github.com"))
	if !hostName.MatchString(host) {
		return nil, fmt.Errorf("%q is not the name of a host: use --for gh or gh=HOST", host)
	}
	const hosts = "%q:\n  oauth_token: %q\n  user: %s\n  git_protocol: https\n  users:\n    %s:\n      oauth_token: %q\n"
	place := folderOf(dir, func(token *client.Token) (content, error) {
		key, err := word(token, to.field)
		return content{
			files: map[string]secret.Text{
				"config.yml":     secret.New("version: \"1\"\ngit_protocol: https\n"),
				"hosts.yml":      secret.New(fmt.Sprintf(hosts, host, key.Reveal(), defaultUser, defaultUser, key.Reveal())),
				"git-credential": secret.New("username=" + defaultUser + "\npassword=" + key.Reveal() + "\n"),
			},
			variables: []string{"GH_CONFIG_DIR=" + dir, "GH_HOST=" + host},
		}, err
	}, "GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")
	helper := "!f() { test \"$1\" != get || cat " + shellWord(filepath.Join(dir, "git-credential")) + "; }; f"
	name := "credential.https://" + host + ".helper"
	// The empty values remove the helpers and the headers that are configured elsewhere. Continuous integration often has a header
	// with its own token in the configuration of the repository, and git sends that before it asks any helper.
	place.git = [][2]string{{name, ""}, {name, helper}, {"http.https://" + host + "/.extraHeader", ""}}
	return place, nil
}

// shellWord quotes text for a shell.
func shellWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// dockerHub are names of the registry that has a URL as its name in configuration files.
var dockerHub = []string{"docker.io", "index.docker.io", "registry-1.docker.io"}

// forDocker returns a place for docker, crane and others that read the configuration of docker for each command, and for podman,
// skopeo and buildah, which read the same format.
func forDocker(dir string, to target) (*place, error) {
	user, host, named := strings.Cut(to.host, "@")
	if !named {
		user, host = "", to.host
	}
	host = strings.ToLower(host)
	if !hostName.MatchString(host) || named && !userName.MatchString(user) {
		return nil, fmt.Errorf("%q is not a registry: use --for docker=HOST or docker=USER@HOST", to.host)
	}
	for _, name := range dockerHub {
		if host == name {
			host = "https://index.docker.io/v1/"
		}
	}
	type auth struct {
		Auth string `json:"auth"`
	}
	return folderOf(dir, func(token *client.Token) (content, error) {
		members, field := membersOf(token), to.field
		if field == "" && members["username"].Reveal() != "" && members["password"].Reveal() != "" {
			field = "password"
		}
		password, err := word(token, field)
		login := cmp.Or(user, members["username"].Reveal(), defaultUser)
		if strings.Contains(login, ":") {
			return content{}, fmt.Errorf("%s: a colon in the name of a user is not supported", token.Scope)
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(login + ":" + password.Reveal()))
		return content{
			files:     map[string]secret.Text{"config.json": asJSON(map[string]any{"auths": map[string]auth{host: {encoded}}})},
			variables: []string{"DOCKER_CONFIG=" + dir, "REGISTRY_AUTH_FILE=" + filepath.Join(dir, "config.json")},
		}, err
	}, "DOCKER_AUTH_CONFIG"), nil
}

// npmToken are tokens that npm reads unchanged from its configuration: those of RFC 6750.
var npmToken = regexp.MustCompile(`^[A-Za-z0-9._~+/:-]+=*$`)

// forNPM returns a place for npm, which reads its configuration at each start.
func forNPM(dir string, to target) (*place, error) {
	host, path, _ := strings.Cut(strings.TrimRight(to.host, "/"), "/")
	if host = strings.ToLower(host); path != "" {
		path = "/" + path
	}
	if !hostName.MatchString(host) || !hostPath.MatchString(path) {
		return nil, fmt.Errorf("%q is not a registry: use --for npm=HOST or npm=HOST/PATH", to.host)
	}
	registry := "//" + host + path + "/"
	return folderOf(dir, func(token *client.Token) (content, error) {
		key, err := word(token, to.field)
		if err == nil && !npmToken.MatchString(key.Reveal()) {
			err = fmt.Errorf("%s: the token has characters that npm does not support", token.Scope)
		}
		return content{
			files:     map[string]secret.Text{"npmrc": secret.New("registry=https:" + registry + "\n" + registry + ":_authToken=" + key.Reveal() + "\n")},
			variables: []string{"NPM_CONFIG_USERCONFIG=" + filepath.Join(dir, "npmrc")},
		}, err
	}, "NPM_CONFIG_USERCONFIG", "NPM_CONFIG_"+registry+":_authToken"), nil
}
