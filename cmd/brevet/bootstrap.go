package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/migrations"
	"github.com/brevet-dev/brevet/scopes"
)

// BootstrapCmd is `brevet bootstrap`. It does everything that needs admin rights, so that the broker never has them.
type BootstrapCmd struct {
	DatabaseFlag
	BrokerUser          string `help:"Database user to create for the broker, with append access to the record." default:"brevet"`
	BrokerPasswordFile  string `help:"File that holds the broker's database password." required:"" type:"path"`
	AuditorUser         string `help:"Database user to create for auditors, with read access to the record."`
	AuditorPasswordFile string `help:"File that holds the auditors' database password." type:"path"`

	VaultAddress    string        `help:"URL of Vault or OpenBao." required:""`
	VaultCAFile     string        `name:"vault-ca-file" help:"PEM file with the roots for Vault's certificate." type:"path"`
	VaultNamespace  string        `help:"Namespace in Vault."`
	VaultTokenFile  string        `help:"File with an admin token, which is used once and not stored." required:"" type:"path"`
	VaultAppRoleDir string        `name:"vault-approle-dir" help:"Folder to write the broker's role_id and secret_id to." required:"" type:"path"`
	TransitMount    string        `help:"Mount of the Transit engine." default:"transit"`
	SigningKey      string        `help:"Name of the signing key. The keys for EdDSA, RS256 and checkpoints are named after it." default:"brevet"`
	AppRole         string        `name:"approle" help:"Name of the broker's AppRole and policy. Deployments that share a Vault also need their own --transit-mount and --token-role, or a namespace each." default:"brevet"`
	SecretIDTTL     time.Duration `name:"secret-id-ttl" help:"How long the broker's secret id is good for logins, such as 720h. Default: until the next bootstrap. The broker logs in each hour, so run bootstrap again before that." default:"0s"`
	SecretIDCIDR    []string      `name:"secret-id-cidr" help:"Network from which Vault accepts the broker's login and its tokens, such as 10.1.0.0/16; repeatable. Default: any." placeholder:"CIDR" sep:"none"`
	KeepSecretIDs   bool          `name:"keep-secret-ids" help:"Keep the earlier secret ids of the AppRole, for replicas that do not read --vault-approle-dir itself but a copy."`
	TokenRole       string        `help:"Name of the Vault token role for all credentials except JWTs." default:"brevet"`
	Catalogue       string        `help:"Folder with the catalogue whose Vault policies to write. Run bootstrap again after each change to it." type:"existingdir"`
	GitHubKey       []string      `name:"github-key" help:"Private key of a GitHub App to import into Vault, as NAME=FILE with the App's name in the server's configuration; repeatable. Delete the file afterwards." placeholder:"NAME=FILE" sep:"none"`
}

// Run prepares the database and Vault. It can be run again.
func (c *BootstrapCmd) Run(ctx context.Context, con *console) error {
	db, err := c.database(con)
	if err != nil {
		return err
	}
	if (c.AuditorUser == "") != (c.AuditorPasswordFile == "") {
		return errors.New("set --auditor-user and --auditor-password-file together")
	}
	if err := migrations.Up(ctx, db.url, con.say, db.options...); err != nil {
		return fmt.Errorf("preparing the database: %w", err)
	}
	for _, login := range []struct{ user, group, passwordFile string }{
		{c.BrokerUser, migrations.BrokerRole, c.BrokerPasswordFile},
		{c.AuditorUser, migrations.AuditorRole, c.AuditorPasswordFile},
	} {
		if login.user == "" && login.passwordFile == "" {
			continue // no auditors
		}
		password, err := secret.ReadFile(login.passwordFile)
		if err != nil {
			return fmt.Errorf("password of %s: %w", login.user, err)
		}
		if err := migrations.EnsureLogin(ctx, db.url, login.user, login.group, password, db.options...); err != nil {
			return fmt.Errorf("creating the database user %s: %w", login.user, err)
		}
	}
	con.say("the database is ready")
	destroyed, err := c.vault(ctx)
	if err != nil {
		return fmt.Errorf("preparing Vault at %s: %w", c.VaultAddress, err)
	}
	con.say("Vault is ready; the broker's AppRole login is in " + c.VaultAppRoleDir)
	if destroyed > 0 {
		con.say(fmt.Sprintf("earlier secret ids destroyed: %d", destroyed))
	}
	if c.SecretIDTTL > 0 {
		con.say("the login expires at " + time.Now().Add(c.SecretIDTTL).UTC().Format(time.RFC3339) + ": run bootstrap again before that")
	}
	return nil
}

// vault returns how many earlier secret ids it has destroyed.
func (c *BootstrapCmd) vault(ctx context.Context) (destroyed int, err error) {
	token, err := secret.ReadFile(c.VaultTokenFile)
	if err != nil {
		return 0, fmt.Errorf("--vault-token-file: %w", err)
	}
	b := mint.Bootstrap{
		Addr: c.VaultAddress, CAFile: c.VaultCAFile, Namespace: c.VaultNamespace, Token: token,
		Mount: c.TransitMount, SigningKey: c.SigningKey, Role: c.AppRole, TokenRole: c.TokenRole,
		SecretIDTTL: c.SecretIDTTL, CIDRs: c.SecretIDCIDR, GitHubKeys: map[string]secret.Text{},
	}
	for _, pair := range c.GitHubKey {
		name, file, ok := strings.Cut(pair, "=")
		if !ok {
			return 0, fmt.Errorf("--github-key %s: write NAME=FILE", quote(pair))
		}
		key, err := secret.ReadFile(file)
		if err != nil {
			return 0, fmt.Errorf("--github-key: %w", err)
		}
		b.GitHubKeys[name] = secret.New(key)
	}
	if c.Catalogue != "" {
		catalogue, err := scopes.LoadFS(os.DirFS(c.Catalogue))
		if err != nil {
			return 0, fmt.Errorf("--catalogue: %w", err)
		}
		b.GitHub = catalogue.NeedsGitHub()
		b.Policies, b.MaxTTL = catalogue.VaultPolicies(), app.LongestTTL(catalogue)
	}
	login, err := app.WriteAppRole(ctx, c.VaultAppRoleDir, b)
	if err != nil || c.KeepSecretIDs {
		return 0, err
	}
	// The new login is in its file now, where a running broker reads it when its present token ends.
	return b.DestroyEarlier(ctx, login)
}
