package local

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestIdentityFilesFollowRotation checks that only the owner can read the identity files, that they hold a certificate with
// its key, and that they follow the authorities.
func TestIdentityFilesFollowRotation(t *testing.T) {
	dir := t.TempDir()
	l := &Stack{Dir: dir, URL: "https://localhost:8443"}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.serveWorkloads(0); err != nil {
		t.Fatal(err)
	}
	if err := l.servePeople(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.WriteIdentities(t.Context(), func(line string) { t.Error(line) }); err != nil {
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
	if err := l.Issuer.Rotate(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		after, roots := verified(t, folder)
		if after != nil && !after.Equal(before) && !bytes.Equal(after.AuthorityKeyId, before.AuthorityKeyId) && roots == 2 {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("the files hold no SVID of the new authority, or not both authorities")
		}
	}
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
