package deploy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/migrations"
)

// makeSecrets runs the script into dir and returns its output.
func makeSecrets(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "make-secrets.sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("make-secrets.sh: %v\n%s", err, out)
	}
	return string(out)
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		all[e.Name()] = string(read(t, filepath.Join(dir, e.Name())))
	}
	return all
}

func TestScriptCreatesEveryMountedSecret(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	makeSecrets(t, dir)
	have := contents(t, dir)
	p := deployment(t, "setup")
	files := map[string]string{}
	for name, s := range p.Secrets {
		files["secret "+name] = s.File
	}
	for name, c := range p.Configs {
		if strings.Contains(c.File, "/secrets/") {
			files["config "+name] = c.File
		}
	}
	if len(files) < 15 {
		t.Fatalf("saw %d mounted files: the deployment is not being read", len(files))
	}
	for name, file := range files {
		if have[filepath.Base(file)] == "" {
			t.Errorf("%s: the script does not make %s", name, filepath.Base(file))
		}
		if !strings.HasSuffix(filepath.Dir(file), "deploy/secrets") {
			t.Errorf("%s: %s is not in the folder that git ignores", name, file)
		}
	}
	if ignored := string(read(t, ".gitignore")); !strings.Contains(ignored, "/secrets/\n") {
		t.Errorf("git does not ignore the secrets: %q", ignored)
	}
}

func TestSecretsAreRandomAndKept(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	makeSecrets(t, first)
	makeSecrets(t, second)
	before, other := contents(t, first), contents(t, second)
	seen := map[string]string{}
	for name, value := range before {
		if value == other[name] {
			t.Errorf("%s is the same in two runs", name)
		}
		if twin, again := seen[value]; again {
			t.Errorf("%s is the same as %s", name, twin)
		}
		seen[value] = name
	}
	makeSecrets(t, first)
	for name, value := range contents(t, first) {
		if value != before[name] {
			t.Errorf("a second run changed %s", name)
		}
	}
}

func TestScriptPrintsNoSecret(t *testing.T) {
	dir := t.TempDir()
	printed := makeSecrets(t, dir)
	for name, value := range contents(t, dir) {
		if strings.HasSuffix(name, ".pem") {
			continue
		}
		for line := range strings.Lines(value) {
			if strings.Contains(printed, strings.TrimSpace(line)) {
				t.Errorf("the script printed a line of %s", name)
			}
		}
	}
}

func TestSecretFilesAreNotReadableByOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	if err := os.Mkdir(dir, 0o755); err != nil { // an existing folder is closed too
		t.Fatal(err)
	}
	makeSecrets(t, dir)
	for path, want := range map[string]os.FileMode{
		dir: 0o700, dir + "/ca-key": 0o600, dir + "/spire-nodes-key": 0o600, dir + "/database-broker-url": 0o644,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %o, want %o", filepath.Base(path), got, want)
		}
	}
}

// OpenBao takes a file as it is: a newline would become part of the key, the token or the password.
func TestSecretsHaveTheFormTheirReadersTake(t *testing.T) {
	dir := t.TempDir()
	makeSecrets(t, dir)
	all := contents(t, dir)
	random := regexp.MustCompile(`^[0-9a-f]{64}$`)
	for _, name := range []string{
		"openbao-seal-key", "openbao-bootstrap-token", "openbao-operator-password",
		"postgres-owner-password", "database-broker-password", "database-auditor-password",
	} {
		if !random.MatchString(all[name]) {
			t.Errorf("%s: got %d bytes, want 64 hex digits and nothing else", name, len(all[name]))
		}
	}
	for file, want := range map[string][2]string{
		"database-owner-url":  {"brevet_owner", "postgres-owner-password"},
		"database-broker-url": {"brevet", "database-broker-password"},
	} {
		u, err := url.Parse(all[file])
		if err != nil {
			t.Fatalf("%s is not a URL", file)
		}
		password, _ := u.User.Password()
		if u.User.Username() != want[0] || password != all[want[1]] || u.Query().Get("sslmode") != "verify-full" {
			t.Errorf("%s: not %s's connection with its password and a verified server", file, want[0])
		}
		inContainer := strings.Replace(all[file], "/etc/brevet/ca.pem", filepath.Join(dir, "ca.pem"), 1)
		if cfg, err := migrations.ParseURL(inContainer); err != nil || cfg.ConnConfig.ChannelBinding != "require" {
			t.Errorf("%s: Brevet refuses it, or does not bind the login to the server's certificate: %v", file, err)
		}
	}
}

func TestCertificatesAreForTheirServersOnly(t *testing.T) {
	dir := t.TempDir()
	makeSecrets(t, dir)
	tests := []struct {
		leaf, authority, name string
		usage                 x509.ExtKeyUsage
		ok                    bool
	}{
		{"postgres", "ca", "postgres", x509.ExtKeyUsageServerAuth, true},
		{"openbao", "ca", "openbao", x509.ExtKeyUsageServerAuth, true},
		{"openbao", "ca", "127.0.0.1", x509.ExtKeyUsageServerAuth, true},
		{"spire-agent", "spire-nodes", "", x509.ExtKeyUsageClientAuth, true},
		{"postgres", "ca", "openbao", x509.ExtKeyUsageServerAuth, false},
		{"postgres", "spire-root", "postgres", x509.ExtKeyUsageServerAuth, false},
		{"spire-agent", "ca", "", x509.ExtKeyUsageClientAuth, false},
		{"spire-agent", "spire-nodes", "", x509.ExtKeyUsageServerAuth, false},
		{"openbao", "spire-nodes", "openbao", x509.ExtKeyUsageServerAuth, false},
	}
	for _, tt := range tests {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, tt.leaf+".pem"), filepath.Join(dir, tt.leaf+"-key"))
		if err != nil {
			t.Fatalf("%s: %v", tt.leaf, err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(certificate(t, filepath.Join(dir, tt.authority+".pem")))
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: tt.name, KeyUsages: []x509.ExtKeyUsage{tt.usage}})
		if (err == nil) != tt.ok {
			t.Errorf("%s as %q from %s: got %v, want ok=%t", tt.leaf, tt.name, tt.authority, err, tt.ok)
		}
	}
}

func certificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(read(t, path))
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		t.Fatalf("%s does not hold one PEM block", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
