package execenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/client"
)

// GitAttributes are the attributes of a credential, as git sends them to a credential helper (git-credential(1)).
type GitAttributes map[string]string

// maxGitInput is more than git ever sends, in bytes.
const maxGitInput = 64 << 10

var errGitInput = errors.New("standard input is not a credential request of git")

// ReadGitAttributes refuses ambiguous input, because the values come from URLs that anybody may have written.
func ReadGitAttributes(in io.Reader) (GitAttributes, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxGitInput+1))
	if err != nil {
		return nil, fmt.Errorf("reading git's request: %w", err)
	}
	text := string(data)
	if len(text) > maxGitInput || !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\r") {
		return nil, errGitInput
	}
	asked := GitAttributes{}
	for line := range strings.Lines(text) {
		line, whole := strings.CutSuffix(line, "\n")
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, "=")
		_, twice := asked[name]
		if !whole || !ok || name == "" || twice && !strings.HasSuffix(name, "[]") {
			return nil, errGitInput
		}
		asked[name] = value
	}
	return asked, nil
}

// Fill replaces {host} and {path} in parameters. The broker checks the results against the scope's patterns.
func (g GitAttributes) Fill(params []string) ([]string, error) {
	path := strings.TrimSuffix(strings.Trim(g["path"], "/"), ".git")
	filled := make([]string, 0, len(params))
	for _, param := range params {
		if strings.Contains(param, "{host}") && g["host"] == "" {
			return nil, errors.New("git sent no host for {host}")
		}
		if strings.Contains(param, "{path}") && path == "" {
			return nil, errors.New("git sent no path for {path}: set credential.useHttpPath to true for this host")
		}
		filled = append(filled, strings.NewReplacer("{host}", g["host"], "{path}", path).Replace(param))
	}
	return filled, nil
}

// GitAnswer returns a field of a credential as the answer of a credential helper.
func GitAnswer(token *client.Token, username, field string) (string, error) {
	password, err := extractField(field)(token)
	if err != nil {
		return "", err
	}
	for _, text := range []string{username, password.Reveal()} {
		if text == "" || strings.ContainsAny(text, "\x00\r\n") {
			return "", fmt.Errorf("the user name or password of %s is empty or has a line break, which git does not support", token.Scope)
		}
	}
	return fmt.Sprintf("username=%s\npassword=%s\npassword_expiry_utc=%d\n", username, password.Reveal(), token.Expires.Unix()), nil
}

// ExecCredential is the response of a credential plugin (client.authentication.k8s.io).
type ExecCredential struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Status holds a token, or a certificate with its key.
	Status struct {
		ExpirationTimestamp   time.Time `json:"expirationTimestamp"`
		Token                 string    `json:"token,omitempty"`
		ClientCertificateData string    `json:"clientCertificateData,omitempty"`
		ClientKeyData         string    `json:"clientKeyData,omitempty"`
	} `json:"status"`
}

// KubeVersions are the supported versions of the interface. The fields of [ExecCredential] are the same in both.
var KubeVersions = []string{"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"}

// KubeVersion returns the version that kubectl requests in KUBERNETES_EXEC_INFO, whose value is info.
func KubeVersion(info string) (string, error) {
	if info == "" {
		return KubeVersions[0], nil
	}
	var asked struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal([]byte(info), &asked); err != nil || !slices.Contains(KubeVersions, asked.APIVersion) {
		return "", errors.New("KUBERNETES_EXEC_INFO: unsupported apiVersion: set client.authentication.k8s.io/v1 or v1beta1 in the kubeconfig")
	}
	return asked.APIVersion, nil
}

// KubeAnswer returns a credential for kubectl to read.
func KubeAnswer(token *client.Token, version string) (ExecCredential, error) {
	answer := ExecCredential{APIVersion: version, Kind: "ExecCredential"}
	answer.Status.ExpirationTimestamp = token.Expires.UTC().Truncate(time.Second)
	certificate, key := token.Field("certificate").Reveal(), token.Field("private_key").Reveal()
	if certificate != "" && key != "" {
		answer.Status.ClientCertificateData, answer.Status.ClientKeyData = certificate, key
		return answer, nil
	}
	bearer, err := bearerOf(token)
	if err != nil {
		return answer, fmt.Errorf("%w (kubectl also accepts a certificate with its key)", err)
	}
	answer.Status.Token = bearer.Reveal()
	return answer, nil
}
