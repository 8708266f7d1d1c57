package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/demo"
	"golang.org/x/term"
)

// DemoCmd is `brevet demo`.
type DemoCmd struct{}

// Run plays the demo on a private stack and removes the stack afterwards. With JSON, it prints only the result.
func (*DemoCmd) Run(ctx context.Context, con *console) error {
	chapters, shown, err := demo.Demo{
		Serve: func(ctx context.Context, configFile string, ready func()) error {
			cfg, err := app.Load(configFile)
			if err != nil {
				return err
			}
			return serve(ctx, cfg, app.Process{Log: slog.New(slog.DiscardHandler)}, func(string) { ready() })
		},
		Say: func(line string) {
			if !con.json {
				fmt.Fprintln(con.out, line)
			}
		},
		Bold: func(text string) string { return bold(con.out, text) }, Spell: spell, CommandLine: commandLine, Now: time.Now,
	}.Play(ctx)
	if err != nil {
		return err
	}
	if con.json {
		return con.encode(map[string]any{"ok": true, "chapters": chapters})
	}
	_, err = fmt.Fprintf(con.out, "\ndemo ok: %s\n", strings.Join(shown, ", "))
	return err
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
