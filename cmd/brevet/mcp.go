package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/internal/execenv"
	"github.com/brevet-dev/brevet/internal/mcpserver"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// McpCmd is `brevet mcp`.
type McpCmd struct {
	CallerFlags
	Dir   string   `help:"Private folder for credentials. Default: a new folder, in memory if the system supports it." type:"path"`
	Task  string   `help:"Task of requests that do not name one. Default: a generated task, which ends with the server." env:"BREVET_TASK"`
	Scope []string `help:"A scope that may be requested; repeatable. Default: all scopes that the broker lists for this sandbox." sep:"none"`
}

// Run serves the Model Context Protocol on standard input and output until the input ends.
func (c *McpCmd) Run(ctx context.Context, con *console) error {
	outliveReaders()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	folder, remove, err := c.folder()
	if err != nil {
		return err
	}
	defer remove()
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	cfg := mcpserver.Config{Broker: broker, Folder: folder, Task: c.Task, Scopes: c.Scope, Version: version()}
	if cfg.Task == "" {
		cfg.Task, cfg.EndTask = newTask("mcp"), true
	}
	server := mcpserver.New(cfg)
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), execenv.EndWithin)
		defer cancel()
		if err := server.Close(ending); err != nil {
			fmt.Fprintf(con.err, "brevet: some credentials could not be revoked and will expire: %s\n", safetext.Text(err.Error()))
		}
	}()
	if err := server.Run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// folder returns the folder for credentials, and a function that removes it.
func (c *McpCmd) folder() (string, func(), error) {
	if c.Dir == "" {
		folder, err := private.NewFolder(time.Now())
		if err != nil {
			return "", nil, err
		}
		return folder.Path, folder.Remove, nil
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return "", nil, err
	}
	info, err := os.Stat(c.Dir)
	if err != nil {
		return "", nil, err
	}
	if info.Mode().Perm()&0o077 != 0 || !private.Ours(info) {
		return "", nil, fmt.Errorf("--dir: other users can read %s: use a folder of your own with mode 0700", c.Dir)
	}
	return c.Dir, func() {}, nil
}
