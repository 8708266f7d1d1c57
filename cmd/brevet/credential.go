package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/execenv"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// HelperFlags are the flags of commands that other programs run to get a credential.
type HelperFlags struct {
	CallerFlags
	Task   string        `help:"Task of the credential." required:"" env:"BREVET_TASK"`
	Scope  string        `help:"Scope to request, such as github.issues.read." required:""`
	Param  []string      `help:"A parameter. The scope says whether the value is a text, a number or a boolean." placeholder:"NAME=VALUE" sep:"none"`
	TTL    time.Duration `help:"Time to live of the credential. Default: that of the scope." name:"ttl"`
	Reason string        `help:"Reason for the record, in one sentence."`
}

// obtain requests a credential, and waits for approval if the request needs it. It explains a refusal on standard error.
func (f HelperFlags) obtain(ctx context.Context, con *console, params []string) (*client.Token, error) {
	parsed, err := parseParams(params)
	if err != nil {
		return nil, err
	}
	broker, done, err := f.open(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	news := newNews(con, f.Scope)
	defer news.settle()
	if err := settleParams(ctx, broker, scopeParams{f.Scope, parsed}); err != nil {
		return nil, refused(ctx, news.con, f.CallerFlags, err)
	}
	ask := client.Ask{Scope: f.Scope, Params: parsed, TTL: f.TTL, Task: f.Task, Reason: f.Reason}
	token, err := broker.Obtain(ctx, ask, news.waits)
	if err != nil {
		return nil, refused(ctx, news.con, f.CallerFlags, err)
	}
	return token, nil
}

// GitCredentialCmd is `brevet git-credential`, a credential helper as gitcredentials(7) describes them.
type GitCredentialCmd struct {
	HelperFlags
	Host      string `help:"Host of the credential, with its port if URLs contain one. Other hosts, for example in URLs of submodules, get no credential." required:""`
	Username  string `help:"User name for the password." default:"x-access-token"`
	Field     string `help:"Field of the credential that holds the password. Default: the token of a JWT."`
	Operation string `arg:"" help:"Operation of git: get, store or erase."`
}

// Run performs the operation that git requests. In --param, {host} and {path} stand for what git names.
func (c *GitCredentialCmd) Run(ctx context.Context, con *console) error {
	if c.Operation != "get" && c.Operation != "erase" {
		// A credential is requested whenever it is needed, so nothing is stored. Git may add other operations later.
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	asked, err := execenv.ReadGitAttributes(os.Stdin)
	if err == nil && asked["host"] != c.Host {
		return nil // another helper may have a credential for it
	}
	if c.Operation == "erase" {
		if err != nil || asked["password"] == "" {
			return err
		}
		return c.erase(ctx, con, asked["password"])
	}
	if err == nil {
		err = c.get(ctx, con, asked)
	}
	if err != nil {
		// Without this, git would ask the next helper, and then the user.
		fmt.Fprintln(con.out, "quit=1")
	}
	return err
}

func (c *GitCredentialCmd) get(ctx context.Context, con *console, asked execenv.GitAttributes) error {
	if asked["protocol"] != "https" {
		return fmt.Errorf("credentials are issued for https only, not for %q", asked["protocol"])
	}
	params, err := asked.Fill(c.Param)
	if err != nil {
		return err
	}
	token, err := c.obtain(ctx, con, params)
	if err != nil {
		return err
	}
	answer, err := execenv.GitAnswer(token, c.Username, c.Field)
	if err != nil {
		return err
	}
	_, err = io.WriteString(con.out, answer)
	return err
}

// erase releases a credential with which git was refused, if the record knows it.
func (c *GitCredentialCmd) erase(ctx context.Context, con *console, password string) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	page, err := broker.Page(ctx, client.Filter{Credential: client.DigestOf(secret.New(password)), Status: openapi.StatusIssued})
	if err != nil {
		return refused(ctx, &console{out: con.err, err: con.err}, c.CallerFlags, err)
	}
	var errs []error
	for _, one := range page.Issuances {
		_, err := broker.Release(ctx, one.ID)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// KubeCredentialCmd is `brevet kube-credential`, a client-go credential plugin.
type KubeCredentialCmd struct{ HelperFlags }

// Run prints a token, or a certificate with its key, for kubectl to read.
func (c *KubeCredentialCmd) Run(ctx context.Context, con *console) error {
	version, err := execenv.KubeVersion(os.Getenv("KUBERNETES_EXEC_INFO"))
	if err != nil {
		return err
	}
	token, err := c.obtain(ctx, con, c.Param)
	if err != nil {
		return err
	}
	answer, err := execenv.KubeAnswer(token, version)
	if err != nil {
		return err
	}
	return json.NewEncoder(con.out).Encode(answer)
}
