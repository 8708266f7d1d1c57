package egress_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/brevet-dev/brevet/internal/confine"
	"github.com/brevet-dev/brevet/internal/egress"
)

// firstProcess is the argument with which this executable becomes the first process of a confined program.
const firstProcess = "confined"

func confined() int {
	code, err := confine.Main(os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// confinedToolbox returns a toolbox whose programs run in a network that leads to the gateway and nowhere else.
func (w *world) confinedToolbox(t *testing.T) *toolbox {
	t.Helper()
	b := w.toolbox(t)
	at := egress.Endpoint{Address: "127.0.0.1:3128", CA: filepath.Join(b.dir, "ca.pem"), Databases: "127.0.0.1:5432"}
	b.environ = append(b.environ, at.Environ()...)
	b.combined = func(cmd *exec.Cmd) ([]byte, error) {
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		box, err := confine.Wrap(cmd, confine.Options{Init: firstProcess, Ports: []int{3128, 5432}})
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, box.Explain(err)
		}
		listeners, err := box.Listeners()
		if err != nil {
			return out.Bytes(), errors.Join(err, cmd.Wait())
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- w.gateway.Alone(at, listeners[0], listeners[1]).Serve(ctx, w.sandbox) }()
		err = errors.Join(box.Begin(), cmd.Wait(), box.Finish(nil))
		stop()
		return out.Bytes(), errors.Join(err, <-served)
	}
	return b
}

// The same programs work, unchanged, where there is nothing but the gateway.
func TestUnmodifiedToolsWorkConfined(t *testing.T) {
	w := newWorld(t)
	w.toolsWork(t, w.confinedToolbox)
}

// Package managers install there too.
func TestPackageManagersWorkConfined(t *testing.T) {
	t.Parallel()
	w := newPackageWorld(t)
	w.install(t, w.confinedToolbox)
}
