package mint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/hashicorp/vault/api"
)

// longestLogin is the longest time that a login should live without renewal. It bounds the use of a stolen token.
const longestLogin = time.Hour

// login gets a fresh token and switches to it.
func (m *Minter) login(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	session, err := m.enter(ctx)
	if err != nil {
		m.note(err)
		return err
	}
	m.client.SetToken(session.Auth.ClientToken)
	m.logins.Add(1)
	m.mu.Lock()
	m.session = session
	m.mu.Unlock()
	m.note(nil)
	life := time.Duration(session.Auth.LeaseDuration) * time.Second
	m.cfg.Log.InfoContext(ctx, "logged in to vault", "life", life, "renewable", session.Auth.Renewable)
	if life == 0 || life > longestLogin {
		m.cfg.Log.WarnContext(ctx, "vault token lives longer than it should", "life", life, "should", longestLogin)
	}
	return nil
}

// enter gets a token in the configured way.
func (m *Minter) enter(ctx context.Context) (*api.Secret, error) {
	const doing = "logging in"
	if m.cfg.Auth.TokenFile != "" {
		return m.adopt(ctx, m.cfg.Auth.TokenFile)
	}
	path, body, err := m.proof(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", broker.ErrVaultUnavailable, doing, err)
	}
	session, err := m.loginClient.Logical().WriteWithContext(ctx, path, body)
	if err == nil && (session == nil || session.Auth == nil || session.Auth.ClientToken == "") {
		err = errNotUnderstood
	}
	if err != nil {
		return nil, unavailable(doing, err)
	}
	return session, nil
}

// proof returns the path and the body of a login request.
func (m *Minter) proof(ctx context.Context) (path string, body map[string]any, err error) {
	if role := m.cfg.Auth.AppRole; role != nil {
		secret, err := readSecret(role.SecretIDFile)
		return "auth/" + role.Mount + "/login", map[string]any{"role_id": role.RoleID, "secret_id": secret}, err
	}
	method := m.cfg.Auth.JWT
	var token string
	if method.Token == nil {
		token, err = readSecret(method.TokenFile)
	} else if token, err = method.Token(ctx); err != nil {
		err = fmt.Errorf("getting the JWT: %w", err)
	} else if token == "" {
		err = errors.New("getting the JWT: it is empty")
	}
	return "auth/" + method.Mount + "/login", map[string]any{"role": method.Role, "jwt": token}, err
}

// adopt reads the token from a file and asks Vault how long it lives.
func (m *Minter) adopt(ctx context.Context, file string) (*api.Secret, error) {
	const doing = "taking the token from its file"
	token, err := readSecret(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", broker.ErrVaultUnavailable, doing, err)
	}
	// Use a separate client: a bad token must not replace one that still works.
	client, err := newClient(m.cfg, m.guarded)
	if err != nil {
		return nil, err
	}
	client.SetToken(token)
	data, err := dataOf(client.Logical().ReadWithContext(ctx, "auth/token/lookup-self"))
	if err != nil {
		return nil, unavailable(doing, err)
	}
	number, _ := data["ttl"].(json.Number)
	life, err := number.Int64()
	renewable, _ := data["renewable"].(bool)
	if err != nil || life < 0 {
		return nil, unavailable(doing, errNotUnderstood)
	}
	return &api.Secret{Auth: &api.SecretAuth{
		ClientToken: token, LeaseDuration: int(life), Renewable: renewable && life > 0,
	}}, nil
}

func readSecret(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading a login file: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	if text == "" {
		return "", fmt.Errorf("reading a login file: %s is empty", file)
	}
	return text, nil
}
