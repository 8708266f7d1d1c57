package testkit

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// JoseTask is what jose is asked for: "verify" reads an access token, "prove" makes a DPoP proof with a key of its own,
// "check" reads one, and "status" looks a token up in its status list.
type JoseTask struct {
	Task     string          `json:"task"`
	Token    string          `json:"token,omitempty"`
	JWKS     json.RawMessage `json:"jwks,omitempty"`
	Issuer   string          `json:"issuer,omitempty"`
	Audience string          `json:"audience,omitempty"`
	Alg      string          `json:"alg,omitempty"`
	Method   string          `json:"htm,omitempty"`
	URL      string          `json:"htu,omitempty"`
	Nonce    string          `json:"nonce,omitempty"`
	Proof    string          `json:"proof,omitempty"`
	List     string          `json:"list,omitempty"`
}

// JoseAnswer is what jose found, or made.
type JoseAnswer struct {
	Claims     map[string]any `json:"claims"`
	KeyID      string         `json:"kid"`
	Thumbprint string         `json:"thumbprint"` // of the key that signed it
	Proof      string         `json:"proof"`
	Status     int            `json:"status"`
}

// Jose has the npm package of that name do one task: a reader and maker of tokens that is not ours. What it refuses fails
// the test.
func Jose(t testing.TB, task JoseTask) JoseAnswer {
	t.Helper()
	var answer JoseAnswer
	runNode(t, "jose.mjs", task, &answer)
	return answer
}

// OAuthClientTask is what an OAuth client of another project does: get a token, hand it down unless it is bound to a key, introspect it,
// revoke it, introspect it again, and meet two errors.
type OAuthClientTask struct {
	Library       string `json:"library"` // oauth4webapi or openid-client
	Issuer        string `json:"issuer"`
	Server        string `json:"server"` // where the issuer really is
	CA            string `json:"ca"`
	Cert          string `json:"cert,omitempty"`
	Key           string `json:"key,omitempty"`
	ClientID      string `json:"clientID"`
	Assertion     string `json:"assertion,omitempty"`
	AssertionType string `json:"assertionType,omitempty"`
	Alg           string `json:"alg,omitempty"` // of DPoP; "" makes no proof
	Scope         string `json:"scope"`
	ActorToken    string `json:"actorToken"`
}

// OAuthClientAnswer is what each step returned.
type OAuthClientAnswer struct {
	Token        map[string]any    `json:"token"`
	Exchanged    map[string]any    `json:"exchanged"`
	Introspected map[string]any    `json:"introspected"`
	After        map[string]any    `json:"after"`
	UnknownScope OAuthClientFailed `json:"unknownScope"`
	NoClient     OAuthClientFailed `json:"noClient"`
}

// OAuthClientFailed is what a library tells its user of an error.
type OAuthClientFailed struct {
	Error       string `json:"error"`
	Description string `json:"description"`
	Status      int    `json:"status"`
}

// OAuthClient has an OAuth client of another project do one task. An error that it does not expect fails the test.
func OAuthClient(t testing.TB, task OAuthClientTask) OAuthClientAnswer {
	t.Helper()
	var answer OAuthClientAnswer
	runNode(t, "oauthclients.mjs", task, &answer)
	return answer
}

// NodeModules is the folder with undici, as NODE_PATH has it.
func NodeModules(t testing.TB) string {
	t.Helper()
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing npm packages: %v", err)
	}
	return filepath.Join(folder, "node_modules")
}

// runNode gives a script one JSON object on its standard input, and reads its answer.
func runNode(t testing.TB, script string, task, answer any) {
	t.Helper()
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing npm packages: %v", err)
	}
	input, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", filepath.Join(folder, script))
	node.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	node.Stderr = &said
	output, err := node.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, &said)
	}
	if err := json.Unmarshal(output, answer); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
}
