package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/brevet-dev/brevet/internal/mint"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
)

// WriteAppRole prepares Vault and writes the broker's login to dir. The login is for [mint.Bootstrap.DestroyEarlier].
func WriteAppRole(ctx context.Context, dir string, b mint.Bootstrap) (mint.Login, error) {
	login, err := b.Run(ctx)
	if err != nil {
		return mint.Login{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return mint.Login{}, fmt.Errorf("creating the folder for the login: %w", err)
	}
	for name, value := range map[string]string{"role_id": login.RoleID, "secret_id": login.SecretID} {
		if err := secret.WriteFile(filepath.Join(dir, name), value+"\n"); err != nil {
			return mint.Login{}, fmt.Errorf("writing the login: %w", err)
		}
	}
	return login, nil
}

// LongestTTL returns the longest TTL that a catalogue can give.
func LongestTTL(catalogue *scopes.Catalogue) time.Duration {
	var longest time.Duration
	for _, s := range catalogue.Scopes() {
		longest = max(longest, s.TTL.Max)
	}
	return longest
}
