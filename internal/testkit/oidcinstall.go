package testkit

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// providerFiles are all that oidc-provider, jose and the OAuth clients are installed and run from.
//
//go:embed oidcprovider/package.json oidcprovider/package-lock.json oidcprovider/server.mjs oidcprovider/jose.mjs oidcprovider/oauthclients.mjs
var providerFiles embed.FS

const installTimeout = 5 * time.Minute

// installed returns a folder with the provider and everything that it needs.
func installed(ctx context.Context) (string, error) {
	return installNPM(ctx, "oidc-provider", providerFiles, "oidcprovider", "package.json", "package-lock.json", "server.mjs", "jose.mjs", "oauthclients.mjs")
}

// sdkFiles name the official clients of other systems, in exact versions.
//
//go:embed sdks/package.json sdks/package-lock.json
var sdkFiles embed.FS

// SDKs returns a folder node_modules with the official clients of AWS, Google Cloud, Azure, Anthropic, OpenAI and GitHub.
func SDKs(t testing.TB) string {
	t.Helper()
	folder, err := installNPM(t.Context(), "sdks", sdkFiles, "sdks", "package.json", "package-lock.json")
	if err != nil {
		t.Fatalf("installing the official clients: %v", err)
	}
	return filepath.Join(folder, "node_modules")
}

// installNPM returns a folder with the given files and the npm packages that they name. It installs once for each version of the
// files: if several test processes find no installation, one installs and the others wait.
func installNPM(ctx context.Context, prefix string, from fs.FS, folder string, names ...string) (string, error) {
	files, err := fs.Sub(from, folder)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, name, len(text))
		sum.Write(text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "brevet")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	target := filepath.Join(cache, prefix+"-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	lock, err := os.OpenFile(target+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("waiting for another installation: %w", err)
	}
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		return target, err
	}
	return target, install(ctx, files, target)
}

// install fills a temporary folder and renames it, so the target is always complete. It runs no package's scripts.
func install(ctx context.Context, files fs.FS, target string) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	fresh := target + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.CopyFS(fresh, files)); err != nil {
		return err
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = fresh
	if said, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, said)
	}
	return os.Rename(fresh, target)
}
