package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// newTemplate returns the place where a well-known program looks for a credential by itself.
func (p *part) newTemplate(program string, folder *privateFolder) (place, error) {
	at := func(name string) string { return filepath.Join(folder.path, name) }
	switch program {
	case "psql":
		return &filePlace{
			path: at("pg_service.conf"), of: pgService,
			vars: []string{"PGSERVICEFILE=" + at("pg_service.conf"), "PGSERVICE=brevet"},
		}, nil
	case "curl":
		return &filePlace{path: at(".curlrc"), of: curlConfig, vars: []string{"CURL_HOME=" + folder.path}}, nil
	case "kubectl":
		return newKubeconfig(at("kube-token"), at("kubeconfig"))
	case "ssh":
		return p.newAgent(at("agent.sock"))
	default:
		return nil, fmt.Errorf("unknown program %q: use psql, curl, kubectl or ssh, or --env, --file or --socket for other programs", program)
	}
}

// pgService returns a connection service file of PostgreSQL. Clients read it for each connection, so the user can change
// too, as it does with each new login.
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

// curlConfig returns a configuration file of curl. It keeps the token out of the arguments, and off unencrypted
// connections.
func curlConfig(token *client.Token) (secret.Text, error) {
	bearer, err := bearerOf(token)
	return secret.New("proto = \"=https\"\nheader = \"Authorization: Bearer " + bearer + "\"\n"), err
}

// bearerOf returns a bearer token. It returns an error for any other kind of credential or type of token.
func bearerOf(token *client.Token) (string, error) {
	text := token.Secret.Reveal()
	switch {
	case token.Kind != kindJWT:
		return "", fmt.Errorf("%s issues a credential of the kind %s, which is not supported: use a scope that issues a JWT", token.Scope, token.Kind)
	case !strings.EqualFold(token.Type, "Bearer"):
		return "", fmt.Errorf("%s issues a token of the type %s, which is not supported: use a bearer token", token.Scope, token.Type)
	case !oneWord(text):
		return "", errors.New("the token has characters that are not supported")
	}
	return text, nil
}

// oneWord reports whether text is printable ASCII without blanks, quotes and backslashes. Every program reads such text as
// one word.
func oneWord(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '"' || r == '\'' || r == '\\'
	})
}

// newKubeconfig adds the user brevet to the configuration of kubectl. The user's token is in a file that kubectl reads
// again.
func newKubeconfig(tokenFile, config string) (place, error) {
	const text = "apiVersion: v1\nkind: Config\nusers:\n- name: brevet\n  user:\n    tokenFile: %q\n"
	if err := os.WriteFile(config, fmt.Appendf(nil, text, tokenFile), 0o600); err != nil {
		return nil, err
	}
	others := os.Getenv("KUBECONFIG")
	if home, err := os.UserHomeDir(); others == "" && err == nil {
		others = filepath.Join(home, ".kube", "config")
	}
	return &filePlace{
		path: tokenFile, vars: []string{"KUBECONFIG=" + config + string(os.PathListSeparator) + others},
		of: func(token *client.Token) (secret.Text, error) {
			bearer, err := bearerOf(token)
			return secret.New(bearer), err
		},
	}, nil
}

// agentPlace is an SSH agent with one key. The key is generated here and never written to a file.
type agentPlace struct {
	key      ed25519.PrivateKey
	socket   string
	listener net.Listener // set once there is a certificate
	keys     agent.Agent
}

// newAgent generates the key that will be certified.
func (p *part) newAgent(socket string) (place, error) {
	if p.ask.PublicKey != "" {
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
	p.ask.PublicKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(encoded)))
	return &agentPlace{key: key, socket: socket, keys: agent.NewKeyring()}, nil
}

// put adds a certificate, which the agent removes when it expires.
func (a *agentPlace) put(token *client.Token) error {
	parsed, _, _, _, err := ssh.ParseAuthorizedKey([]byte(token.Field("signed_key").Reveal()))
	certificate, ok := parsed.(*ssh.Certificate)
	if err != nil || !ok {
		return fmt.Errorf("%s does not issue an SSH certificate", token.Scope)
	}
	if err := a.keys.Add(agent.AddedKey{
		PrivateKey: a.key, Certificate: certificate, Comment: "brevet " + token.ID,
		LifetimeSecs: uint32(max(1, token.TTL/time.Second)),
	}); err != nil {
		return fmt.Errorf("adding an SSH certificate: %w", err)
	}
	if a.listener != nil {
		return nil
	}
	if a.listener, err = listenPrivately(a.socket); err != nil {
		return err
	}
	go answerEach(a.listener, func(conn net.Conn) { _ = agent.ServeAgent(a.keys, conn) })
	return nil
}

func (a *agentPlace) environ() []string { return []string{"SSH_AUTH_SOCK=" + a.socket} }

func (a *agentPlace) remove() {
	if a.listener != nil {
		_ = a.listener.Close()
	}
	_ = a.keys.RemoveAll()
}
