package testkit

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// JoseTask is a task for the npm package jose: "verify" reads an access token, "prove" makes a DPoP proof with a new
// key, "check" reads a DPoP proof, and "status" looks a token up in its status list.
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

// JoseAnswer is the result of a JoseTask.
type JoseAnswer struct {
	Claims     map[string]any `json:"claims"`
	KeyID      string         `json:"kid"`
	Thumbprint string         `json:"thumbprint"` // of the key that signed it
	Proof      string         `json:"proof"`
	Status     int            `json:"status"`
}

// Jose runs one task with the npm package jose, an independent implementation that reads and makes tokens. If jose
// refuses the input, the test fails.
func Jose(t testing.TB, task JoseTask) JoseAnswer {
	t.Helper()
	var answer JoseAnswer
	runNode(t, "jose.mjs", task, &answer)
	return answer
}

// OAuthClientTask is a task for an OAuth client of another project: get a token, exchange it unless it is bound to a key,
// introspect it, revoke it, introspect it again, and provoke two errors.
type OAuthClientTask struct {
	Library       string `json:"library"` // oauth4webapi or openid-client
	Issuer        string `json:"issuer"`
	Server        string `json:"server"` // the address to connect to in place of the issuer
	CA            string `json:"ca"`
	Cert          string `json:"cert,omitempty"`
	Key           string `json:"key,omitempty"`
	ClientID      string `json:"clientID"`
	Assertion     string `json:"assertion,omitempty"`
	AssertionType string `json:"assertionType,omitempty"`
	Alg           string `json:"alg,omitempty"` // of DPoP; "" sends no proof
	Scope         string `json:"scope"`
	ActorToken    string `json:"actorToken"`
}

// OAuthClientAnswer holds the result of each step.
type OAuthClientAnswer struct {
	Token        map[string]any    `json:"token"`
	Exchanged    map[string]any    `json:"exchanged"`
	Introspected map[string]any    `json:"introspected"`
	After        map[string]any    `json:"after"`
	UnknownScope OAuthClientFailed `json:"unknownScope"`
	NoClient     OAuthClientFailed `json:"noClient"`
}

// OAuthClientFailed is an error as the library reports it to its user.
type OAuthClientFailed struct {
	Error       string `json:"error"`
	Description string `json:"description"`
	Status      int    `json:"status"`
}

// OAuthClient runs one task with an OAuth client of another project. An unexpected error fails the test.
func OAuthClient(t testing.TB, task OAuthClientTask) OAuthClientAnswer {
	t.Helper()
	var answer OAuthClientAnswer
	runNode(t, "oauthclients.mjs", task, &answer)
	return answer
}

// NodeModules returns the folder that contains undici, for NODE_PATH.
func NodeModules(t testing.TB) string {
	t.Helper()
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing npm packages: %v", err)
	}
	return filepath.Join(folder, "node_modules")
}

// runNode passes a script one JSON object on its standard input and decodes its output into answer.
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
