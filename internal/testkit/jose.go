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
	folder, err := installed(t.Context())
	if err != nil {
		t.Fatalf("installing jose: %v", err)
	}
	input, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", filepath.Join(folder, "jose.mjs"))
	node.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	node.Stderr = &said
	output, err := node.Output()
	if err != nil {
		t.Fatalf("jose: %s: %v\n%s", task.Task, err, &said)
	}
	var answer JoseAnswer
	if err := json.Unmarshal(output, &answer); err != nil {
		t.Fatalf("jose: %s: %v\n%s", task.Task, err, output)
	}
	return answer
}
