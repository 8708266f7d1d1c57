package execenv

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// place is where a program finds a credential.
type place struct {
	// put delivers a credential: the first one before the program starts, and the others while it runs.
	put func(token *client.Token) error
	// variables returns the variables that the program gets, once there is a credential.
	variables func() []string
	// remove deletes what is left of the credential.
	remove func()
	// hides are the variables that would lead the program to another credential. It does not get them from its environment.
	hides []string
	// git are settings of git, each a key and a value.
	git [][2]string
	// env says whether the credential is in a variable, which cannot change while the program runs.
	env inVariable
}

// inVariable says when a place is an environment variable.
type inVariable int

const (
	never inVariable = iota
	always
	unlessJWT // a JWT is in a file, and any other kind in a variable
)

// of reports whether a credential of this kind is in a variable.
func (v inVariable) of(kind string) bool {
	return v == always || v == unlessJWT && kind != "" && kind != kindJWT
}

// extract returns the part of a credential that a program needs.
type extract func(token *client.Token) (secret.Text, error)

// kindJWT is the only kind whose credential is a single word.
const kindJWT = "jwt"

// membersOf returns the members of a credential that is not a JWT. In a stored secret and an answer of another engine of Vault,
// they are one level down. A string is its text, and any other value is JSON.
func membersOf(token *client.Token) map[string]secret.Text {
	members := map[string]secret.Text{}
	if token.Kind != "kv" && token.Kind != "vault" {
		for _, name := range token.Fields() {
			members[name] = token.Field(name)
		}
		return members
	}
	var inner map[string]json.RawMessage
	_ = json.Unmarshal([]byte(token.Field("data").Reveal()), &inner) // what is not an object has no members
	for name, value := range inner {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			text = string(value)
		}
		members[name] = secret.New(text)
	}
	return members
}

// extractField returns one field of the credential. If field is empty, it returns the token of a JWT, or any other credential
// as JSON.
func extractField(field string) extract {
	return func(token *client.Token) (secret.Text, error) {
		members := membersOf(token)
		text, ok := members[field]
		switch {
		case field == "":
			return token.Secret, nil
		case slices.Contains(token.Fields(), field):
			return token.Field(field), nil
		case ok:
			return text, nil
		case token.Kind == kindJWT:
			return secret.Text{}, fmt.Errorf("%s is a JWT, which has no field %q", token.Scope, field)
		}
		return secret.Text{}, fmt.Errorf("%s has no field %q: use one of %s", token.Scope, field, strings.Join(slices.Sorted(maps.Keys(members)), ", "))
	}
}

var (
	// targetField splits NAME=FIELD at the last =. Without a field after it, all of the text is the name.
	targetField  = regexp.MustCompile(`(?s)^(.*)=([A-Za-z0-9_.-]+)$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// variable is an environment variable.
func variable(name string, of extract) *place {
	var value secret.Text
	return &place{
		put: func(token *client.Token) (err error) {
			value, err = of(token)
			if err == nil && strings.Contains(value.Reveal(), "\x00") {
				return fmt.Errorf("%s: a variable cannot hold this credential, which has a NUL byte: use --file", name)
			}
			return err
		},
		variables: func() []string { return []string{name + "=" + value.Reveal()} },
		remove:    func() {},
		env:       always,
	}
}

// file is a file that only its owner can read. Programs that open it always find one whole credential.
func file(path string, of extract, variables ...string) *place {
	var there bool // this process wrote the file at path
	return &place{
		put: func(token *client.Token) error {
			content, err := of(token)
			if err != nil {
				return err
			}
			if _, err := os.Lstat(path); err == nil && !there {
				return fmt.Errorf("%s already exists, and would be removed when the program ends: use another path", path)
			}
			if err := secret.WriteFile(path, content.Reveal()); err != nil {
				return fmt.Errorf("writing a credential: %w", err)
			}
			there = true
			return nil
		},
		variables: func() []string { return variables },
		remove: func() {
			if there {
				_ = os.Remove(path)
			}
		},
	}
}

// answerWithin is how long a connection may take to read a credential.
const answerWithin = 5 * time.Second

// socket is a Unix socket that sends the newest credential to each connection, and closes it.
func socket(path string, of extract) *place {
	var current atomic.Pointer[secret.Text]
	return served(path, func(token *client.Token) error {
		content, err := of(token)
		if err == nil {
			current.Store(&content)
		}
		return err
	}, func(conn net.Conn) {
		late := time.AfterFunc(answerWithin, func() { _ = conn.Close() })
		defer late.Stop()
		_, _ = io.WriteString(conn, current.Load().Reveal())
		if half, ok := conn.(*net.UnixConn); ok && half.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, conn) // closing with unread input could cut off the credential
		}
	})
}

// served is a Unix socket that answers each connection, once take has accepted a credential.
func served(path string, take func(*client.Token) error, answer func(net.Conn), variables ...string) *place {
	var listener net.Listener
	return &place{
		put: func(token *client.Token) (err error) {
			if err := take(token); err != nil || listener != nil {
				return err
			}
			if listener, err = private.Listen(path); err != nil {
				return err
			}
			go func(from net.Listener) {
				for conn, err := from.Accept(); err == nil; conn, err = from.Accept() { // until it is closed
					go func() {
						defer func() { _ = conn.Close() }()
						answer(conn)
					}()
				}
			}(listener)
			return nil
		},
		variables: func() []string { return variables },
		remove: func() {
			if listener != nil {
				_ = listener.Close()
			}
		},
	}
}

// pgService returns a connection service file of PostgreSQL. Clients read it for each connection, so the user may change.
func pgService(token *client.Token) (secret.Text, error) {
	user, password := token.Field("username").Reveal(), token.Field("password").Reveal()
	if user == "" || password == "" {
		return secret.Text{}, fmt.Errorf("%s is not a database login: it has no username and password", token.Scope)
	}
	if !oneWord(user) || !oneWord(password) {
		return secret.Text{}, fmt.Errorf("%s: the login has characters that a service file does not support", token.Scope)
	}
	return secret.New("[brevet]\nuser=" + user + "\npassword=" + password + "\n"), nil
}

// curlConfig returns a configuration file of curl, which keeps the token out of arguments and off unencrypted connections.
func curlConfig(token *client.Token) (secret.Text, error) {
	bearer, err := bearerOf(token)
	return secret.New("proto = \"=https\"\nheader = \"Authorization: Bearer " + bearer.Reveal() + "\"\n"), err
}

// bearerOf returns a bearer token. It returns an error for any other kind of credential or type of token.
func bearerOf(token *client.Token) (secret.Text, error) {
	switch {
	case token.Kind != kindJWT:
		return secret.Text{}, fmt.Errorf("%s issues a credential of the kind %s, which is not supported: use a scope that issues a JWT",
			token.Scope, token.Kind)
	case !strings.EqualFold(token.Type, "Bearer"):
		return secret.Text{}, fmt.Errorf("%s issues a token of the type %s, which is not supported: use a bearer token",
			token.Scope, token.Type)
	case !oneWord(token.Secret.Reveal()):
		return secret.Text{}, errors.New("the token has characters that are not supported")
	}
	return token.Secret, nil
}

// oneWord reports whether every program reads text as one word: printable ASCII without blanks, quotes and backslashes.
func oneWord(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r)
	})
}

// newKubeconfig adds the user brevet to the configuration of kubectl. The token is in a file, which kubectl rereads, so a
// renewal reaches it.
func newKubeconfig(tokenFile, config, others string) (*place, error) {
	const text = "apiVersion: v1\nkind: Config\nusers:\n- name: brevet\n  user:\n    tokenFile: %q\n"
	if err := os.WriteFile(config, fmt.Appendf(nil, text, tokenFile), 0o600); err != nil {
		return nil, err
	}
	if home, err := os.UserHomeDir(); others == "" && err == nil {
		others = filepath.Join(home, ".kube", "config")
	}
	return file(tokenFile, bearerOf, "KUBECONFIG="+config+string(os.PathListSeparator)+others), nil
}

// newAgent returns an SSH agent with one key, which is generated here and never written to a file.
func (c *Credential) newAgent(path string) (*place, error) {
	if c.Ask.PublicKey != "" {
		return nil, errors.New("set --for ssh only once for each --scope")
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	encoded, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	c.Ask.PublicKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(encoded)))
	keys := agent.NewKeyring()
	to := served(path, func(token *client.Token) error {
		parsed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(token.Field("signed_key").Reveal()))
		certificate, ok := parsed.(*ssh.Certificate)
		if err != nil || !ok {
			return fmt.Errorf("%s does not issue an SSH certificate", token.Scope)
		}
		if err := keys.Add(agent.AddedKey{ // until it expires
			PrivateKey: key, Certificate: certificate, Comment: "brevet " + token.ID,
			LifetimeSecs: uint32(max(1, token.TTL/time.Second)),
		}); err != nil {
			return fmt.Errorf("adding an SSH certificate: %w", err)
		}
		return nil
	}, func(conn net.Conn) { _ = agent.ServeAgent(keys, conn) }, "SSH_AUTH_SOCK="+path)
	stop := to.remove
	to.remove = func() {
		stop()
		_ = keys.RemoveAll()
	}
	return to, nil
}
