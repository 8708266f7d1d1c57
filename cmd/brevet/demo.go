package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// DemoCmd is `brevet demo`.
type DemoCmd struct{}

// chapter is one part of the demo: a title and the observed facts.
type chapter struct {
	Title string `json:"title"`
	Facts []fact `json:"facts"`
	print func(fact)
}

type fact struct {
	Label string `json:"label"`
	Text  string `json:"text"`
}

func (c *chapter) fact(label, format string, args ...any) {
	f := fact{label, fmt.Sprintf(format, args...)}
	c.Facts = append(c.Facts, f)
	c.print(f)
}

// story is a running demo.
type story struct {
	con      *console
	cast     *cast
	chapters []*chapter
	shown    []string
}

// Run plays the demo on a private stack and removes the stack afterwards.
func (*DemoCmd) Run(ctx context.Context, con *console) (err error) {
	dir, err := os.MkdirTemp("", "brevet-demo-")
	if err != nil {
		return fmt.Errorf("creating a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &story{con: con}
	s.say("The demo runs real servers: PostgreSQL, a Vault core, and a SPIFFE Workload API.")
	if err := s.play(ctx, dir); err != nil {
		return err
	}
	if con.json {
		return con.encode(map[string]any{"ok": true, "chapters": s.chapters})
	}
	_, err = fmt.Fprintf(con.out, "\ndemo ok: %s\n", strings.Join(s.shown, ", "))
	return err
}

func (s *story) play(ctx context.Context, dir string) error {
	began := time.Now()
	local, err := startLocal(ctx, dir, func(line string) { s.say("  %s", line) })
	if err != nil {
		return err
	}
	defer func() { _ = local.close() }()
	serving, stop, err := serveInBackground(ctx, local)
	if err != nil {
		return err
	}
	defer stop()
	if s.cast, err = assemble(ctx, local, serving); err != nil {
		return err
	}
	defer s.cast.leave()
	s.say("  ready after %s", time.Since(began).Round(100*time.Millisecond))
	for _, part := range []struct {
		title, shown string
		tell         func(context.Context, *chapter) error
	}{
		{"A sandbox requests what its task needs", "allowed", s.allowed},
		{"It requests a longer lifetime than allowed", "clamped", s.clamped},
		{"It requests too much", "denied with the nearest permitted request", s.denied},
		{"It requests something that needs approval", "approved by a person", s.approved},
		{"A resource server verifies a token with only the public keys", "verified by JWKS alone", s.verified},
		{"It logs in to a database, and its task ends", "database login revoked with its task", s.login},
		{"An admin quarantines the sandbox", "quarantined", s.quarantined},
		{"Someone forges an SVID", "forged SVIDs refused", s.forged},
		{"Vault is sealed, then PostgreSQL stops", "no token released without Vault or PostgreSQL", s.faults},
		{"The auditor reads the record", "history listed", s.history},
		{"The auditor verifies the record independently", "record proven", s.proven},
	} {
		if err := s.tell(ctx, part.title, part.tell); err != nil {
			return fmt.Errorf("%s: %w", part.title, err)
		}
		s.shown = append(s.shown, part.shown)
	}
	s.cast.leave()
	stop()
	return s.gone(local)
}

// serveInBackground runs the broker as `brevet serve` does, with the stack's configuration file.
func serveInBackground(ctx context.Context, local *localStack) (cfg Config, stop func(), err error) {
	cfg, err = loadConfig(local.config)
	if err != nil {
		return cfg, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan struct{})
	var serveErr error
	go func() {
		defer close(ended)
		serveErr = serve(ctx, cfg, slog.New(slog.DiscardHandler), func(string) { close(ready) })
	}()
	select {
	case <-ready:
		return cfg, func() { cancel(); <-ended }, nil
	case <-ended:
		cancel()
		return cfg, nil, fmt.Errorf("starting the broker: %w", serveErr)
	}
}

func (s *story) tell(ctx context.Context, title string, tell func(context.Context, *chapter) error) error {
	c := &chapter{Title: title, print: func(f fact) { s.say("   %-10s %s", f.Label, f.Text) }}
	s.chapters = append(s.chapters, c)
	s.say("\n%s", bold(s.con.out, fmt.Sprintf("%d  %s", len(s.chapters), title)))
	return tell(ctx, c)
}

// gone stops the stack and shows that no server still runs.
func (s *story) gone(local *localStack) error {
	return s.tell(context.Background(), "The stack stops", func(ctx context.Context, c *chapter) error {
		addresses := []string{local.Postgres.Addr(), strings.TrimPrefix(local.Vault.Addr(), "http://")}
		if err := local.close(); err != nil {
			return err
		}
		for _, address := range addresses {
			if reachable(ctx, address) {
				return fmt.Errorf("a server still responds on %s", address)
			}
		}
		c.fact("gone", "no server responds")
		s.shown = append(s.shown, "stack stopped")
		return nil
	})
}

// say prints for people on standard output. It prints nothing if standard output carries JSON.
func (s *story) say(format string, args ...any) {
	if !s.con.json {
		fmt.Fprintf(s.con.out, format+"\n", args...)
	}
}

// bold returns text in bold if w is a terminal that may show it.
func bold(w io.Writer, text string) string {
	if !colourful(w) {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}

// colourful reports whether w is a terminal that may show colours. It honours NO_COLOR (no-color.org).
func colourful(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && term.IsTerminal(int(file.Fd()))
}
