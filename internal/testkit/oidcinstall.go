package testkit

import (
	"bytes"
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

// agentFiles name coding agents, in exact versions.
//
//go:embed agents/package.json agents/package-lock.json
var agentFiles embed.FS

// Agents returns a folder node_modules with Claude Code and Codex. They take 800 MB, of which 300 MB are downloaded once.
func Agents(t testing.TB) string {
	t.Helper()
	folder, err := installNPM(t.Context(), "agents", agentFiles, "agents", "package.json", "package-lock.json")
	if err != nil {
		t.Fatalf("installing coding agents: %v", err)
	}
	return filepath.Join(folder, "node_modules")
}

// installNPM returns a folder with the given files and the npm packages that they name.
func installNPM(ctx context.Context, prefix string, from fs.FS, folder string, names ...string) (string, error) {
	files, err := fs.Sub(from, folder)
	if err != nil {
		return "", err
	}
	var key bytes.Buffer
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&key, name, len(text))
		key.Write(text)
	}
	return Cached(prefix, key.Bytes(), func(fresh string) error { return install(ctx, files, fresh) })
}

// Cached returns the path of a file or folder in the user's cache folder. It has fill make it once for each key, at a temporary path, so
// what it returns is always complete. If several test processes find nothing, one makes it and the others wait.
func Cached(prefix string, key []byte, fill func(fresh string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "brevet")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	sum := sha256.Sum256(key)
	target := filepath.Join(cache, prefix+"-"+hex.EncodeToString(sum[:8]))
	lock, err := os.OpenFile(target+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("waiting for another process: %w", err)
	}
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		return target, err
	}
	fresh := target + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	if err := fill(fresh); err != nil {
		return "", err
	}
	return target, os.Rename(fresh, target)
}

// install fills a folder. It runs no package's scripts.
func install(ctx context.Context, files fs.FS, folder string) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	if err := os.CopyFS(folder, files); err != nil {
		return err
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = folder
	if said, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, said)
	}
	return nil
}
