package mint

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// gitHubSkew is by how much the clocks of GitHub and of Vault's clients may differ.
const gitHubSkew = time.Minute

// gitHubTimeout bounds a call to GitHub during a mint. GitHub itself gives up after 10 seconds.
const gitHubTimeout = 8 * time.Second

// gitHubEntry is what Vault keeps of an installation access token until the token is dead, at the path that is the credential's
// lease. Only the token itself can end the token.
type gitHubEntry struct {
	App string `json:"app"`
	// Token is empty from before GitHub is asked until its answer is stored.
	Token string `json:"token"`
	// Made is when GitHub's answer came. It is zero while Token is empty.
	Made time.Time `json:"made,omitzero"`
	// Until is when the token is dead in any case.
	Until time.Time `json:"until"`
}

// drawGitHub asks GitHub for an installation access token. The token of w can only sign with the App's key. Like that of every leased
// credential, it ends after UnrenewedLife unless the credential is delivered, which shows the sweeper what nobody has.
//
// The entry in Vault comes first. So whoever finds the record of this issuance unfinished learns from Vault whether GitHub was asked,
// and can end the token once it is stored. Neither the caller's departure nor a slow GitHub interrupts the sequence.
func (m *Minter) drawGitHub(ctx context.Context, w *wrapped) error {
	grant, name, err := gitHubGrant(w.intent.Grant.Data)
	if err != nil {
		return err
	}
	app, known := m.gitHub[name]
	if !known {
		return unknownApp(name)
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), gitHubTimeout)
	defer cancel()
	ctx = context.WithoutCancel(ctx)
	lease := broker.GitHubLease(w.intent.ID)
	entry := gitHubEntry{App: name, Until: m.cfg.Now().Add(scopes.GitHubTokenLife + gitHubSkew).UTC()}
	w.lease.Lease = lease
	if err := m.keepGitHub(ctx, lease, entry); err != nil {
		return err
	}
	token, err := app.client.CreateToken(asking, app.App, m.gitHubSigner(w), grant)
	if other, wrong := errors.AsType[*github.GrantError](err); wrong {
		token = other.Token
		err = fmt.Errorf("%w: %w", broker.ErrMintMismatch, err)
	} else if err != nil {
		if _, lost := errors.AsType[*github.LostError](err); !lost { // nothing was made
			if m.forgetGitHub(ctx, lease) == nil {
				w.lease.Lease = ""
			}
		}
		return gitHubFailure(err)
	}
	if err == nil && token.Expires.Before(w.intent.Expires.Add(-gitHubSkew)) {
		err = fmt.Errorf("%w: the token expires before the time that was granted", broker.ErrMintMismatch)
	}
	entry.Token, entry.Made = token.Secret.Reveal(), m.cfg.Now().UTC()
	if until := token.Expires.UTC(); until.Before(entry.Until) && !until.IsZero() {
		entry.Until = until.Add(gitHubSkew)
	}
	if failed := m.keepGitHub(ctx, lease, entry); failed != nil {
		ending, cancel := context.WithTimeout(ctx, gitHubTimeout)
		defer cancel()
		if app.client.DeleteToken(ending, app.App, token.Secret) == nil && m.forgetGitHub(ctx, lease) == nil {
			w.lease.Lease = ""
		}
		return failed
	}
	if err != nil {
		return err
	}
	digest := sha256.Sum256([]byte(entry.Token))
	w.mintedSecret, err = handOver(struct {
		Token        string            `json:"token"`
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions"`
	}{entry.Token, grant.Repositories, grant.Permissions}, base64.StdEncoding.EncodeToString(digest[:]), digest)
	return err
}

// gitHubGrant reads what scopes wrote.
func gitHubGrant(data map[string]string) (grant github.Grant, app string, err error) {
	grant.Installation, err = strconv.ParseInt(data["installation"], 10, 64)
	grant.Permissions = map[string]string{}
	for pair := range strings.SplitSeq(data["permissions"], ",") {
		name, level, ok := strings.Cut(pair, "=")
		if !ok {
			err = errors.New("a permission has no level")
		}
		grant.Permissions[name] = level
	}
	if err != nil || data["repositories"] == "" {
		return grant, "", fmt.Errorf("%w: the intent is not for an installation access token", broker.ErrMintMismatch)
	}
	grant.Repositories = strings.Split(data["repositories"], ",")
	return grant, data["app"], nil
}

// gitHubFailure turns an error of package github into one of package broker.
func gitHubFailure(err error) error {
	if err == nil || errors.Is(err, broker.ErrVaultRefused) || errors.Is(err, broker.ErrVaultUnavailable) || errors.Is(err, broker.ErrMintMismatch) {
		return err
	}
	limited, isLimited := errors.AsType[*github.LimitedError](err)
	refused, isRefused := errors.AsType[*github.RefusedError](err)
	switch {
	case isLimited:
		return &broker.GitHubLimitedError{RetryAfter: limited.RetryAfter, Err: err}
	case isRefused:
		return &broker.GitHubRefusedError{Why: refused.Advice, Err: err}
	case errors.Is(err, github.ErrInvalid):
		return &broker.GitHubRefusedError{Why: "correct the repositories and permissions of the scope", Err: err}
	default:
		return fmt.Errorf("%w: %w", broker.ErrGitHubUnavailable, err)
	}
}

func unknownApp(name string) error {
	return &broker.GitHubRefusedError{
		Why: "the scope names an App that the server's configuration does not have below github",
		Err: fmt.Errorf("the configuration has no GitHub App %q", name),
	}
}

// gitHubSigner signs with the App's key, by the token of w.
func (m *Minter) gitHubSigner(w *wrapped) github.Sign {
	return func(ctx context.Context, input string) (string, error) {
		const doing = "signing with the key of the GitHub App"
		client := m.childClient.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = w.token })
		answer, err := m.exchange(ctx, doing, bearer{wrapperToken, w.made}, func(ctx context.Context) (*api.Secret, error) {
			return client.Logical().WriteWithContext(ctx, w.intent.Grant.Path, map[string]any{
				"input":               base64.StdEncoding.EncodeToString([]byte(input)),
				"signature_algorithm": "pkcs1v15", "marshaling_algorithm": "jws",
			})
		})
		if unmounted(err) {
			return "", fmt.Errorf("%s: %w", doing, &broker.NotMountedError{Mount: scopes.GitHubKeys})
		}
		if err != nil {
			return "", err
		}
		var text string
		if answer != nil {
			text, _ = answer.Data["signature"].(string)
		}
		parts := vaultSignature.FindStringSubmatch(text)
		if parts == nil {
			return "", unavailable(doing, errNotUnderstood)
		}
		return parts[1], nil
	}
}

var vaultSignature = regexp.MustCompile(`^vault:v[0-9]+:([A-Za-z0-9_-]+)$`)

// isGitHub reports whether a lease is that of an installation access token.
func isGitHub(lease string) bool { return strings.HasPrefix(lease, scopes.GitHubTokens+"/") }

// endGitHub ends the token of a lease at GitHub, and returns nil once the token is dead. If there may be a token that is in nobody's
// hands, it returns a *broker.MayLiveError.
func (m *Minter) endGitHub(ctx context.Context, lease string) error {
	entry, err := m.readGitHub(ctx, lease)
	if err != nil || entry == nil {
		return err
	}
	if m.cfg.Now().Before(entry.Until) {
		if entry.Token == "" {
			return &broker.MayLiveError{Until: entry.Until}
		}
		app, known := m.gitHub[entry.App]
		if !known {
			return unknownApp(entry.App)
		}
		token := secret.New(entry.Token)
		app.client.Remember(token, entry.Made) // another replica may have made it just now
		if err := app.client.DeleteToken(ctx, app.App, token); err != nil {
			return gitHubFailure(err)
		}
	}
	return m.forgetGitHub(ctx, lease)
}

func (m *Minter) keepGitHub(ctx context.Context, lease string, entry gitHubEntry) error {
	const doing = "storing the token of GitHub"
	data := map[string]any{"app": entry.App, "token": entry.Token, "until": entry.Until.Format(time.RFC3339)}
	if !entry.Made.IsZero() {
		data["made"] = entry.Made.Format(time.RFC3339Nano)
	}
	_, err := m.exchange(ctx, doing, m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, lease, data)
	})
	if unmounted(err) {
		return fmt.Errorf("%s: %w", doing, &broker.NotMountedError{Mount: scopes.GitHubTokens})
	}
	return err
}

// readGitHub returns the entry of a lease, or nil if there is none.
func (m *Minter) readGitHub(ctx context.Context, lease string) (*gitHubEntry, error) {
	const doing = "reading the token of GitHub"
	answer, err := m.atActive(ctx, doing, func(ctx context.Context, client *api.Client) (*api.Secret, error) {
		return client.Logical().ReadWithContext(ctx, lease)
	})
	switch {
	case unmounted(err):
		return nil, fmt.Errorf("%s: %w", doing, &broker.NotMountedError{Mount: scopes.GitHubTokens})
	case missing(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, err
	case answer == nil || answer.RequestID == "":
		return nil, unavailable(doing, errNotUnderstood)
	}
	entry, err := read[gitHubEntry](answer.Data)
	if err == nil && (entry.App == "" || entry.Until.IsZero()) {
		err = unavailable(doing, errNotUnderstood)
	}
	return &entry, err
}

func (m *Minter) forgetGitHub(ctx context.Context, lease string) error {
	_, err := m.exchange(ctx, "deleting the stored token of GitHub", m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().DeleteWithContext(ctx, lease)
	})
	return err
}

// gitHubApp is a GitHub App with the client that calls its GitHub.
type gitHubApp struct {
	github.App
	client *github.Client
}

func newGitHubApps(cfg Config) map[string]gitHubApp {
	apps := make(map[string]gitHubApp, len(cfg.GitHub))
	for name, a := range cfg.GitHub {
		var transport http.RoundTripper = github.NewTransport(a.Roots)
		if cfg.Transport != nil {
			transport = cfg.Transport(transport)
		}
		apps[name] = gitHubApp{a.App, github.New(transport, cfg.Now)}
	}
	return apps
}

// retryRevoke calls Revoke until it succeeds or ctx ends, or until another attempt cannot help. It asks GitHub rarely, and not again
// if GitHub limits calls: GitHub counts all calls of an App together, and punishes Apps that go on.
func (m *Minter) retryRevoke(ctx context.Context, h broker.VaultLease) error {
	pause := 50 * time.Millisecond
	if isGitHub(h.Lease) {
		pause = time.Second
	}
	for {
		err := m.Revoke(ctx, h)
		_, mayLive := errors.AsType[*broker.MayLiveError](err)
		if err == nil || mayLive || errors.Is(err, broker.ErrGitHubLimited) || !wait.For(ctx, pause) {
			return err
		}
	}
}
