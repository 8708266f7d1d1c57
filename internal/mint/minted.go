package mint

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// mintedSecret is a credential in the form that the caller gets, with the parts that the record keeps.
type mintedSecret struct {
	secret string // a JSON object
	name   string
	digest [32]byte
}

// decode takes a credential out of Vault's answer and checks it against the intent (I7).
func decode(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	switch leased := answer.LeaseID != ""; {
	case leased && !ofOrder(intent, answer):
		return mintedSecret{}, fmt.Errorf("%w: its lease is of something else", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased && intent.Kind == scopes.KindPKI:
		return mintedSecret{}, fmt.Errorf("%w: the certificate has no lease: its role needs generate_lease=true", broker.ErrMintMismatch)
	case intent.Grant.Leased && !leased:
		return mintedSecret{}, fmt.Errorf("%w: it has no lease, so that nobody could end it", broker.ErrMintMismatch)
	case leased && !intent.Grant.Leased:
		return mintedSecret{}, fmt.Errorf("%w: it has a lease, and was to have none", broker.ErrMintMismatch)
	}
	switch intent.Kind {
	case scopes.KindDatabase:
		return databaseOf(answer)
	case scopes.KindPKI:
		return certificateOf(intent, answer)
	case scopes.KindSSH:
		return sshOf(intent, answer)
	case scopes.KindKV:
		return storedOf(answer)
	case scopes.KindVault:
		return anyOf(intent, answer)
	default:
		return mintedSecret{}, fmt.Errorf("%w: nobody here makes what the intent asks for", broker.ErrMintMismatch)
	}
}

// ofOrder reports whether a lease belongs to the requested path: Vault names a lease after its path.
func ofOrder(intent broker.Intent, answer *api.Secret) bool {
	return strings.HasPrefix(answer.LeaseID, intent.Grant.Path+"/")
}

// read decodes the members of an answer that T names.
func read[T any](answer *api.Secret) (T, error) {
	var out T
	raw, err := json.Marshal(answer.Data)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		// The parser's text could repeat a part of the secret.
		return out, unavailable("reading the credential", errNotUnderstood)
	}
	return out, nil
}

// handOver encodes a credential as the JSON that the caller gets.
func handOver(object any, name string, digest [32]byte) (mintedSecret, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return mintedSecret{}, unavailable("reading the credential", errNotUnderstood)
	}
	return mintedSecret{secret: string(text), name: name, digest: digest}, nil
}

func tokenOf(w *wrapped) (mintedSecret, error) {
	// Vault puts "token-" in front of a token's display name.
	return handOver(struct {
		Token    string `json:"token"`
		Accessor string `json:"accessor"`
	}{w.token, w.lease.Accessor}, "token-"+w.intent.ID, sha256.Sum256([]byte(w.token)))
}

type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

func databaseOf(answer *api.Secret) (mintedSecret, error) {
	made, err := read[login](answer)
	if err != nil {
		return mintedSecret{}, err
	}
	if made.Username == "" || made.Password == "" {
		return mintedSecret{}, fmt.Errorf("%w: the login has no username or no password", broker.ErrMintMismatch)
	}
	return handOver(made, made.Username, sha256.Sum256([]byte(made.Password)))
}

// storedOf returns a secret that somebody stored, with its version if the engine keeps versions. It sets no digest, because the
// secret could be guessed from it.
func storedOf(answer *api.Secret) (mintedSecret, error) {
	out := struct {
		Data    map[string]any `json:"data"`
		Version json.Number    `json:"version,omitempty"`
	}{Data: answer.Data}
	inner, isMap := answer.Data["data"].(map[string]any)
	metadata, described := answer.Data["metadata"].(map[string]any)
	version, numbered := metadata["version"].(json.Number)
	name := ""
	if isMap && described && numbered && len(answer.Data) == 2 {
		out.Data, out.Version, name = inner, version, "version "+version.String()
	}
	return handOver(out, name, [32]byte{})
}

// anyOf returns the answer of an arbitrary engine. The credential's name in the target system is the first of the usual members
// that is present.
func anyOf(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	name := path.Base(answer.LeaseID)
	if answer.LeaseID == "" {
		name = ""
	}
	if known := firstText(answer.Data, "username", "access_key", "client_id"); known != "" {
		name = known
	}
	object := struct {
		Data map[string]any `json:"data"`
	}{answer.Data}
	var digest [32]byte
	if !intent.Grant.Static {
		digest = digestOf(answer.Data)
	}
	return handOver(object, name, digest)
}

// digestOf returns the digest of the secret member, which is what a finder would hold. Without a known member it is the digest of
// the whole data.
func digestOf(data map[string]any) [32]byte {
	text := firstText(data, "password", "secret_key", "client_secret", "private_key_data", "private_key", "token")
	if text == "" {
		all, _ := json.Marshal(data) // it has come from JSON
		text = string(all)
	}
	return sha256.Sum256([]byte(text))
}

func firstText(data map[string]any, names ...string) string {
	for _, name := range names {
		if text, _ := data[name].(string); text != "" {
			return text
		}
	}
	return ""
}
