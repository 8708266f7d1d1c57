package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// TestIdentityFilesFollowRotation checks that only the owner can read the identity files, that they hold a certificate with
// its key, and that they follow the authorities.
func TestIdentityFilesFollowRotation(t *testing.T) {
	dir := t.TempDir()
	l := &localStack{dir: dir}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.serveWorkloads(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.servePeople(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.writeIdentities(t.Context(), Config{Issuer: "https://localhost:8443"}, func(line string) { t.Error(line) }); err != nil {
		t.Fatal(err)
	}
	folder := l.identityFolder("research")
	for _, path := range []string{
		filepath.Join(folder, svidFile), filepath.Join(folder, svidKeyFile), filepath.Join(folder, svidBundleFile),
		filepath.Join(folder, jwtSVIDFile), filepath.Join(folder, actorSVIDFile), filepath.Join(dir, "people", "alice.token"),
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got %v, %v, want %s with mode 0600", info, err, path)
		}
	}
	before, _ := verified(t, folder)
	if before == nil {
		t.Fatal("the SVID is not of the bundle beside it")
	}
	if err := l.issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the files hold an SVID of the new authority, and both authorities", func() bool {
		after, roots := verified(t, folder)
		return after != nil && !after.Equal(before) && !bytes.Equal(after.AuthorityKeyId, before.AuthorityKeyId) && roots == 2
	})
}

// verified returns the certificate in a folder if one of the authorities there signed it, and the number of these
// authorities.
func verified(t *testing.T, folder string) (leaf *x509.Certificate, authorities int) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, svidFile), filepath.Join(folder, svidKeyFile))
	if err != nil {
		return nil, 0 // the key may be new while the certificate is still old
	}
	bundle, err := os.ReadFile(filepath.Join(folder, svidBundleFile))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatal("there is no certificate in the bundle")
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return nil, 0
	}
	return pair.Leaf, bytes.Count(bundle, []byte("BEGIN CERTIFICATE"))
}

// TestEnvironmentsOfOthersAreNotPrinted checks `eval "$(brevet dev env)"` in a folder that somebody else has filled, such
// as a repository.
func TestEnvironmentsOfOthersAreNotPrinted(t *testing.T) {
	t.Parallel()
	l := &localStack{dir: shortDir(t)}
	socket := filepath.Join(l.dir, "agent.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for _, name := range []string{"X; touch pwned #", "$(touch pwned)", "LD_PRELOAD", "PATH", ""} {
		text, err := json.Marshal(map[string]variables{"research": {{"SPIFFE_ENDPOINT_SOCKET", "unix://" + socket}, {name, "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.path(devEnvironments), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := brevet(t, nil, "dev", "env", "--state", l.dir); got.out != "" {
			t.Errorf("%q: got %q, want nothing to evaluate", name, got.out)
		} else {
			got.want(t, 1, "was not written by brevet dev")
		}
	}
}

// TestEnvironmentHasNamesOfItsOwn checks that the allowed names are exactly the printed ones.
func TestEnvironmentHasNamesOfItsOwn(t *testing.T) {
	t.Parallel()
	var names []string
	for _, pair := range (&localStack{Stack: &devstack.Stack{Postgres: &devstack.Postgres{}}, people: &devstack.Provider{}}).environment(Config{}, "research") {
		names = append(names, pair[0])
	}
	if !slices.Equal(names, devVariables) {
		t.Errorf("got %q, want %q", names, devVariables)
	}
}
