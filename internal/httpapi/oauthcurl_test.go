package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// pemFiles writes an SVID for programs that know no SPIFFE.
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

// curl runs the program. The server's SVID has no DNS name, so curl is told not to look for one.
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

// Somebody with a curl and the RFCs gets a token.
func TestCurlGetsAToken(t *testing.T) {
	t.Parallel()
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

// What docs/oauth.md shows works as it stands there.
func TestTheCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	o := withServers
	o.Catalogue = []scopes.File{{Name: "scopes.yaml", Data: []byte(documented)}, {Name: "policies.cedar", Data: []byte(`@id("all") permit (principal, action, resource);
@id("people") forbid (principal, action in Action::"authority:write", resource) unless { context.approved };`)}}
	o.People, o.Delegations = withPeople.People, []string{testkit.DelegationAudience}
	s := testkit.NewStack(t, o)
	text, err := os.ReadFile("../../docs/oauth.md")
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := pemFiles(t, s, agent)
	serverCert, serverKey := pemFiles(t, s, gitServer)
	dir := filepath.Dir(cert)
	if err := errors.Join(os.Rename(serverCert, filepath.Join(dir, "server.pem")), os.Rename(serverKey, filepath.Join(dir, "server-key.pem")),
		// The server's SVID has no DNS name for curl to look at.
		os.WriteFile(filepath.Join(dir, ".curlrc"), []byte("insecure\nsilent\nshow-error\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	pending := post{svid: s.X509(t, agent), form: reading("authorization_details", `[{"type":"github.issues.write"}]`)}.send(t, s)
	issued := post{svid: s.X509(t, agent), form: reading("authorization_details", `[{"type":"github.issues.list"}]`)}.send(t, s)
	env := append(os.Environ(), "CURL_HOME="+dir, "BREVET="+s.URL, "JWT_SVID="+s.JWT(t, agent), "SUB_AGENT_SVID="+actorToken(t, s, twin),
		"TOKEN="+issued.token.AccessToken, "AUTH_REQ_ID="+pending.failed.AuthReqID, "ID_TOKEN="+string(given(t, s, "alice")))
	var ran int
	for block := range strings.SplitSeq(string(text), "```sh\n") {
		command, _, isBlock := strings.Cut(block, "```")
		if !isBlock || !strings.HasPrefix(command, "curl") {
			continue
		}
		cmd := osexec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		want := map[string]string{"grant_type=client": `"access_token"`, "approval": `"authorization_pending"`, "introspect": `"active":true`, "token-exchange": `"issued_token_type"`, "type:id_token": `"sub":"alice"`}
		for part, shown := range want {
			if strings.Contains(command, part) && !strings.Contains(string(out), shown) {
				t.Errorf("%s\n%s", command, out)
			}
		}
		if err != nil {
			t.Errorf("%s\n%v\n%s", command, err, out)
		}
		ran++
	}
	if ran != 7 {
		t.Errorf("ran %d commands, want 7", ran)
	}
	if got := introspected(t, s, gitServer, issued.token.AccessToken); got != inactive {
		t.Errorf("got %s, want it revoked by the last of them", got)
	}
}

const documented = `scopes:
  - name: github.issues.read
    title: Read issues
    authority: read
    params:
      repo: {type: string, pattern: '[a-z0-9-]+/[a-z0-9._-]+', max_length: 100}
    resource: github:repo/{repo}
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
  - name: github.issues.list
    title: List issues
    authority: read
    resource: github:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
  - name: github.issues.write
    title: Write issues
    authority: write
    resource: github:issues
    ttl: {default: 5m, max: 15m}
    approval: {group: oncall}
    credential: {kind: jwt, audience: https://git.test}
`
