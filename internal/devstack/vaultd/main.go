// Command vaultd is a small stand-in for `vault server -config=FILE`: a real Vault core with only the engines that
// Brevet uses, for development and tests. It does not initialise or unseal itself. Its caller does that over Vault's own
// HTTP API, so that a full `vault` or `bao` binary can take its place.
//
// It must never be linked into, or shipped with, what Brevet releases: Vault's licence (BUSL 1.1) allows it only for
// development and tests. It serves plain HTTP and refuses to listen on anything but loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/command/server"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
	"github.com/hashicorp/vault/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vaultd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "version" {
		fmt.Println(version.GetVersion().FullVersionNumber(true), "(brevet vaultd)")
		return nil
	}
	if len(args) == 0 || args[0] != "server" {
		return errors.New("usage: vaultd server -config=FILE")
	}
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	path := flags.String("config", "", "configuration file, as for vault server")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	config, listener, err := load(*path)
	if err != nil {
		return fmt.Errorf("reading %s: %w", *path, err)
	}
	return serve(ctx, config, listener)
}

// load reads a configuration in Vault's own format and returns an error for settings that this program does not support.
func load(path string) (*server.Config, *configutil.Listener, error) {
	config, err := server.LoadConfigFile(path)
	if err != nil {
		return nil, nil, err
	}
	if config.Storage == nil {
		return nil, nil, errors.New("storage is missing")
	}
	if len(config.Listeners) != 1 {
		return nil, nil, errors.New("exactly one listener is expected")
	}
	listener := config.Listeners[0]
	host, _, err := net.SplitHostPort(listener.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listener address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, nil, fmt.Errorf("listener address %s is not on loopback", listener.Address)
	}
	if !listener.TLSDisable {
		return nil, nil, errors.New("only tls_disable = true is supported")
	}
	return config, listener, nil
}

// serve binds the port before it opens the storage, so a port that is taken leaves the disk unchanged.
func serve(ctx context.Context, config *server.Config, listener *configutil.Listener) error {
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "vault", Level: hclog.LevelFromString(config.LogLevel), Output: os.Stdout,
	})
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", listener.Address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	defer func() { _ = socket.Close() }()
	core, err := newCore(config, logger)
	if err != nil {
		return fmt.Errorf("building the core: %w", err)
	}
	srv := &http.Server{
		Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{Core: core, ListenerConfig: listener}),
		// Log at Error level, because a fault test would otherwise fill the log with a line for every connection that it cuts.
		ErrorLog:          logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Error}),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(socket) }()
	fmt.Printf("==> Vault core %s listening on %s\n", version.GetVersion().FullVersionNumber(false), listener.Address)
	select {
	case err := <-done:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if srv.Shutdown(graceful) != nil {
		_ = srv.Close()
	}
	return core.ShutdownWait()
}

func openStorage(config *server.Storage, logger hclog.Logger) (physical.Backend, error) {
	switch config.Type {
	case "inmem":
		return inmem.NewInmem(config.Config, logger)
	case "file":
		if err := lockFolder(config.Config["path"]); err != nil {
			return nil, err
		}
		return newStorage(config.Config, logger)
	default:
		return nil, fmt.Errorf("storage %q is not built in: file or inmem", config.Type)
	}
}

// lockFolder prevents a second core from using the same files, which would silently lose writes. It never closes the
// descriptor, so the lock is held until the process ends. The lock file lies beside the folder, since every file inside
// belongs to Vault.
func lockFolder(path string) error {
	if path == "" {
		return errors.New("storage path is missing")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	lock, err := syscall.Open(filepath.Clean(path)+".lock", syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("opening the lock of %s: %w", path, err)
	}
	if err := syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s is in use by another process: %w", path, err)
	}
	return nil
}
