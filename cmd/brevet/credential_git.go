package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// GitCredentialCmd is `brevet git-credential`, a credential helper as gitcredentials(7) describes them.
type GitCredentialCmd struct {
	HelperFlags
	Host      string `help:"Host of the credential, with its port if URLs contain one. Other hosts, for example in URLs of submodules, get no credential." required:""`
	Username  string `help:"User name for the password." default:"x-access-token"`
	Field     string `help:"Field of the credential that holds the password. Default: the token of a JWT."`
	Operation string `arg:"" help:"Operation of git: get, store or erase."`
}

// Run performs the operation that git requests. In --param, {host} and {path} stand for the host and the path that git
// names.
func (c *GitCredentialCmd) Run(ctx context.Context, con *console) error {
	var do func(context.Context, *console, gitAttributes) error
	switch c.Operation {
	case "get":
		do = c.get
	case "erase":
		do = c.erase
	default:
		// There is nothing to store, because a credential is requested whenever it is needed. Ignore operations that git
		// may add later.
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	asked, err := readGitAttributes(os.Stdin)
	if err == nil && asked["host"] != c.Host {
		return nil // another helper may have a credential for it
	}
	if err == nil {
		err = do(ctx, &console{out: con.out, err: con.err}, asked)
	}
	if err != nil && c.Operation == "get" {
		// Without this, git would ask the next helper, and then the user.
		fmt.Fprintln(con.out, "quit=1")
	}
	return err
}

func (c *GitCredentialCmd) get(ctx context.Context, con *console, asked gitAttributes) error {
	if asked["protocol"] != "https" {
		return fmt.Errorf("credentials are issued for https only, not for %q", asked["protocol"])
	}
	params, err := asked.fill(c.Param)
	if err != nil {
		return err
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	token, err := c.obtain(ctx, con, broker, params)
	if err != nil {
		return explain(&console{out: con.err, err: con.err}, c.hint(err), c.Task)
	}
	password, err := extractField(c.Field)(token)
	if err != nil {
		return err
	}
	if !gitValue(c.Username) || !gitValue(password.Reveal()) {
		return fmt.Errorf("the user name or password of %s is empty or has a line break, which git does not support", token.Scope)
	}
	_, err = fmt.Fprintf(con.out, "username=%s\npassword=%s\npassword_expiry_utc=%d\n", c.Username, password.Reveal(), token.Expires.Unix())
	return err
}

// erase releases a credential with which git was refused. If the record does not know the credential, there is nothing to
// release.
func (c *GitCredentialCmd) erase(ctx context.Context, con *console, asked gitAttributes) error {
	if asked["password"] == "" {
		return nil
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	page, err := broker.Page(ctx, client.Filter{
		Credential: client.DigestOf(secret.New(asked["password"])), Status: openapi.StatusIssued,
	})
	if err != nil {
		return explain(&console{out: con.err, err: con.err}, c.hint(err), c.Task)
	}
	var errs []error
	for _, one := range page.Issuances {
		_, err := broker.Release(ctx, one.ID)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// gitAttributes are the attributes of a credential, as git sends them.
type gitAttributes map[string]string

// maxGitInput is more than git ever sends, in bytes.
const maxGitInput = 64 << 10

var errGitInput = errors.New("standard input is not a credential request of git")

// readGitAttributes reads lines of name=value until an empty line or the end. The values come from URLs that anybody may
// have written, so it refuses ambiguous input with errGitInput.
func readGitAttributes(in io.Reader) (gitAttributes, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxGitInput+1))
	if err != nil {
		return nil, fmt.Errorf("reading git's request: %w", err)
	}
	text := string(data)
	if len(text) > maxGitInput || !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\r") {
		return nil, errGitInput
	}
	asked := gitAttributes{}
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

// fill replaces {host} and {path} in parameters by the host and the path of the repository. The broker checks the results
// against the scope's patterns.
func (g gitAttributes) fill(params []string) ([]string, error) {
	path := strings.TrimSuffix(strings.Trim(g["path"], "/"), ".git")
	out := make([]string, 0, len(params))
	for _, param := range params {
		if strings.Contains(param, "{host}") && g["host"] == "" {
			return nil, errors.New("git sent no host for {host}")
		}
		if strings.Contains(param, "{path}") && path == "" {
			return nil, errors.New("git sent no path for {path}: set credential.useHttpPath to true for this host")
		}
		out = append(out, strings.NewReplacer("{host}", g["host"], "{path}", path).Replace(param))
	}
	return out, nil
}

func gitValue(text string) bool { return text != "" && !strings.ContainsAny(text, "\x00\r\n") }
