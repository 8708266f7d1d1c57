package execenv

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
)

// programs are the values of --for, as messages list them.
const programs = "psql, curl, kubectl, ssh, aws, google, azure, anthropic[=FIELD], openai[=FIELD], gh[=HOST[=FIELD]], docker=[USER@]HOST[=FIELD] or npm=HOST[/PATH][=FIELD]"

// target is the value of --for, split: PROGRAM[=HOST][=FIELD]. Only some programs have a host, and only some a field.
type target struct{ program, host, field string }

// host names, with a port if it is not 443. What passes has no meaning in JSON, YAML, INI files and shells.
var (
	hostName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$`)
	hostPath  = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)
	userName  = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)
	fieldName = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)
)

func parseTarget(text string) (target, error) {
	parts := strings.Split(text, "=")
	to := target{program: parts[0]}
	switch to.program {
	case "gh", "docker", "npm":
		if len(parts) > 1 {
			to.host, parts = parts[1], parts[1:]
		}
	case "anthropic", "openai":
	default:
		if len(parts) > 1 {
			return to, fmt.Errorf("%q: %s takes nothing after its name", text, to.program)
		}
	}
	if len(parts) > 1 {
		to.field = parts[1]
	}
	if len(parts) > 2 || !fieldName.MatchString(to.field) {
		return to, fmt.Errorf("%q is not one of %s", text, programs)
	}
	return to, nil
}

// newTemplate returns the place where a well-known program looks for a credential by itself.
func (c *Credential) newTemplate(text, folder string, getenv func(string) string) (*place, error) {
	at := func(name string) string { return filepath.Join(folder, name) }
	to, err := parseTarget(text)
	if err != nil {
		return nil, err
	}
	switch to.program {
	case "psql":
		return file(at("pg_service.conf"), pgService, "PGSERVICEFILE="+at("pg_service.conf"), "PGSERVICE=brevet"), nil
	case "curl":
		return file(at(".curlrc"), curlConfig, "CURL_HOME="+folder), nil
	case "kubectl":
		return newKubeconfig(at("kube-token"), at("kubeconfig"), getenv("KUBECONFIG"))
	case "ssh":
		return c.newAgent(at("agent.sock"))
	case "aws":
		return forAWS(at("aws"), getenv)
	case "google":
		return forGoogle(at("google")), nil
	case "azure":
		return forAzure(at("azure"), getenv), nil
	case "anthropic":
		return forAnthropic(at("anthropic"), to, getenv), nil
	case "openai":
		return forOpenAI(to), nil
	case "gh":
		return forGitHub(at("gh"), to, getenv)
	case "docker":
		return forDocker(at("docker"), to)
	case "npm":
		return forNPM(at("npm"), to)
	default:
		return nil, fmt.Errorf("unknown program %q: use %s, or --env, --file or --socket for other programs", text, programs)
	}
}

// content is what a program with more than one file reads.
type content struct {
	files     map[string]secret.Text // by name
	variables []string
}

// folderOf is a folder of files for one program. All files are written again when the credential is renewed. The variables are
// those of the first credential.
func folderOf(path string, render func(*client.Token) (content, error), hides ...string) *place {
	var variables []string
	var there bool // this process made the folder
	return &place{
		put: func(token *client.Token) error {
			made, err := render(token)
			if err != nil {
				return err
			}
			if !there {
				if err := os.Mkdir(path, 0o700); errors.Is(err, os.ErrExist) {
					return fmt.Errorf("set --for %s only once", filepath.Base(path))
				} else if err != nil {
					return fmt.Errorf("writing a credential: %w", err)
				}
				there, variables = true, made.variables
			}
			for name, text := range made.files {
				if err := secret.WriteFile(filepath.Join(path, name), text.Reveal()); err != nil {
					return fmt.Errorf("writing a credential: %w", err)
				}
			}
			return nil
		},
		variables: func() []string { return variables },
		remove: func() {
			if there {
				_ = os.RemoveAll(path)
			}
		},
		hides: hides,
	}
}

// word returns the part of a credential that a program sends as one word: the field, if one is named, else a bearer token, the
// member token, or the only member.
func word(token *client.Token, field string) (secret.Text, error) {
	if field == "" && token.Kind == kindJWT {
		return bearerOf(token)
	}
	fields := slices.Sorted(maps.Keys(membersOf(token)))
	switch {
	case field != "":
	case slices.Contains(fields, "token"):
		field = "token"
	case len(fields) == 1:
		field = fields[0]
	default:
		return secret.Text{}, fmt.Errorf("%s has no member token: add one of %s to --for, after a =", token.Scope, strings.Join(fields, ", "))
	}
	text, err := extractField(field)(token)
	if err == nil && !oneWord(text.Reveal()) {
		err = fmt.Errorf("%s: the field %s has characters that are not supported", token.Scope, field)
	}
	return text, err
}

// variableWith is the variable of a program that reads a key from nowhere else.
func variableWith(name string, to target, hides ...string) *place {
	place := variable(name, func(token *client.Token) (secret.Text, error) { return word(token, to.field) })
	place.hides = hides
	return place
}

// known returns the first of a value of the exchange and the variable that the user has set for it. It returns an error if there
// is neither.
func known(token *client.Token, value, variable string, getenv func(string) string) (string, error) {
	value = cmp.Or(value, getenv(variable))
	switch {
	case value == "":
		return "", fmt.Errorf("%s does not say what the token is exchanged for: add exchange to the scope, or set %s", token.Scope, variable)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", fmt.Errorf("%s: %s would have characters that are not supported", token.Scope, variable)
	}
	return value, nil
}

// asJSON encodes v, which holds only numbers and text.
func asJSON(v any) secret.Text {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // v is a value of this package
	}
	return secret.New(string(text) + "\n")
}
