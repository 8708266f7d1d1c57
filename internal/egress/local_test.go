package egress_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/private"
)

func newGateway(t *testing.T) *egress.Gateway {
	t.Helper()
	g, err := egress.New(egress.Config{CallsPerSecond: 1, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(context.WithoutCancel(t.Context())) })
	return g
}

// T12: a gateway replaces no certificate in a folder that others can change, and none of a gateway that runs.
func TestCertificateIsReplacedOnlyInAFolderOfItsOwn(t *testing.T) {
	var open []*egress.Local // listeners that nobody refers to would be closed
	for name, listen := range map[string]func(g *egress.Gateway, dir string) error{
		"socket": func(g *egress.Gateway, dir string) error {
			local, err := g.ListenUnix(filepath.Join(dir, "s"), private.Access{})
			open = append(open, local)
			return err
		},
		"loopback": func(g *egress.Gateway, dir string) error {
			local, err := g.Listen(t.Context(), "127.0.0.1:0", dir)
			open = append(open, local)
			return err
		},
		"neither": func(g *egress.Gateway, dir string) error { return g.WriteCA(filepath.Join(dir, "ca.pem")) },
	} {
		above := filepath.Join(t.TempDir(), "way")
		if err := errors.Join(os.Mkdir(above, 0o755), os.Chmod(filepath.Dir(above), 0o755), os.Chmod(filepath.Dir(filepath.Dir(above)), 0o755)); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(above, "of-others")
		ca := filepath.Join(dir, "ca.pem")
		if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777), os.WriteFile(ca, []byte("before"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := listen(newGateway(t), dir); err == nil {
			t.Errorf("%s: got a gateway in a folder that others can change", name)
		}
		if text, err := os.ReadFile(ca); err != nil || string(text) != "before" {
			t.Errorf("%s: got %q, %v, want the file unchanged", name, text, err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		first := newGateway(t)
		if err := listen(first, dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name == "neither" {
			continue
		}
		if err := listen(newGateway(t), dir); err == nil {
			t.Errorf("%s: got two gateways with one folder", name)
		}
		if text, err := os.ReadFile(ca); err != nil || string(text) != string(first.CA()) {
			t.Errorf("%s: got %q, %v, want the certificate of the gateway that runs", name, text, err)
		}
	}
	runtime.KeepAlive(open)
}
