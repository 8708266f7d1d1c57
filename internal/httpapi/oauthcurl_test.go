package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
)

// pemFiles writes an SVID to files, for programs that do not know SPIFFE.
func pemFiles(t *testing.T, s *testkit.Stack, id string) (cert, key string) {
	t.Helper()
	chain, private, err := s.X509(t, id).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "svid.pem"), filepath.Join(dir, "key.pem")
	for path, data := range map[string][]byte{cert: chain, key: private} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// curl runs curl with --insecure: the server's SVID has no DNS name.
func curl(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := program(t, "curl", append([]string{"--silent", "--show-error", "--insecure"}, args...)...)
	if err != nil {
		t.Fatalf("curl: %v", err)
	}
	return out
}

func program(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := osexec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return out, err
}

// A user with curl and the RFCs gets a token.
func TestCurlGetsAToken(t *testing.T) {
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	cert, key := pemFiles(t, s, agent)
	for name, args := range map[string][]string{
		"X.509": {"--cert", cert, "--key", key, "--data-urlencode", "client_id=" + agent},
		"JWT":   {"--data-urlencode", "client_assertion_type=" + jwtSPIFFE, "--data-urlencode", "client_assertion=" + s.JWT(t, agent)},
	} {
		out := curl(t, append(args, "--data", "grant_type=client_credentials", "--data-urlencode", "authorization_details="+apiDetails, s.URL+"/oauth2/token")...)
		var got openapi.AccessToken
		if err := json.Unmarshal(out, &got); err != nil || verify(t, s, got.AccessToken).Subject != agent {
			t.Errorf("%s: got %s, %v", name, out, err)
		}
	}
}
