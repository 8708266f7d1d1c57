package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/dpop"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// RequestCmd is `brevet request`.
type RequestCmd struct {
	CallerFlags
	KeyFlags
	Scope  string        `arg:"" optional:"" help:"Scope to request, such as github.issues.read."`
	Params []string      `arg:"" optional:"" help:"Scope parameters, as name=value. The scope says whether a value is a text, a number or a boolean."`
	Task   string        `help:"Task of the credential." required:"" env:"BREVET_TASK"`
	TTL    time.Duration `help:"Time to live of the credential. Default: that of the scope."`
	Reason string        `help:"Reason for the record, in one sentence."`
	ID     string        `help:"Get the credential of this request, which was made earlier and needs approval, instead of requesting a scope. Repeat only the keys: --csr, --public-key, --dpop-key." name:"id"`
	Key    string        `help:"Idempotency key: repeated requests with the same key issue one credential, for good." name:"idempotency-key"`
	CSR    string        `help:"File with a certificate signing request in PEM, for scopes that certify your own key." name:"csr" type:"existingfile"`
	Wait   bool          `help:"If approval is required, wait for it and then print the credential. An interrupt withdraws the request, unless it was made earlier."`
	Person string        `help:"File with an ID token of the person on whose behalf the sandbox makes the request." name:"on-behalf-of-file"`
	Public string        `help:"File with a public key as OpenSSH writes it, for scopes that certify your own key." name:"public-key" type:"existingfile"`
}

// KeyFlags name the key to which tokens are bound.
type KeyFlags struct {
	DPoPKey string `help:"File with a private key (PEM, P-256) to bind the token to (DPoP, RFC 9449). The token works only with proofs by this key." name:"dpop-key" type:"path"`
}

// signer returns a DPoP signer for the key, or nil if no key is named.
func (f KeyFlags) signer() (*dpop.Signer, error) {
	if f.DPoPKey == "" {
		return nil, nil
	}
	text, err := secret.ReadFile(f.DPoPKey)
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %w", err)
	}
	key, err := parsePrivateKey([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %s %w", f.DPoPKey, err)
	}
	signer, err := dpop.NewSigner(key, time.Now)
	if err != nil {
		return nil, fmt.Errorf("--dpop-key: %s holds an unsupported key type: use P-256", f.DPoPKey)
	}
	return signer, nil
}

// parsePrivateKey reads the first private key of a PEM file, in which OpenSSL writes the name of the curve before the key.
func parsePrivateKey(text []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		if signer, ok := key.(crypto.Signer); ok && err == nil {
			return signer, nil
		}
		return nil, errors.New("holds a private key that cannot be read") // the cause may quote the key
	}
	return nil, errors.New("holds no private key in PEM; create one with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
}

// tokenFile is a file with an ID token. A program that keeps the token fresh may replace the file between two requests.
type tokenFile string

// IDToken reads the file.
func (f tokenFile) IDToken(context.Context) (string, error) {
	token, err := secret.ReadFile(string(f))
	if err != nil {
		return "", fmt.Errorf("--on-behalf-of-file: %w", err)
	}
	if strings.Count(token, ".") != 2 { // anything else must not leave this machine
		return "", fmt.Errorf("--on-behalf-of-file: %s does not hold an ID token (three parts separated by dots)", string(f))
	}
	return token, nil
}

// maxKeyFile is the size of the largest key file that the broker accepts, in bytes.
const maxKeyFile = 8 << 10

// readKeyFile reads a public key or CSR. It refuses a private key, which a user may name by mistake.
func readKeyFile(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "", err
	case len(data) > maxKeyFile:
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxKeyFile)
	case strings.Contains(string(data), "PRIVATE KEY"):
		return "", fmt.Errorf("%s holds a private key, which must stay private: use the file with the public key", path)
	}
	return string(data), nil
}

// Validate requires a scope and a task, or an id.
func (c *RequestCmd) Validate(command *kong.Context) error {
	switch {
	case c.ID == "" && c.Scope == "":
		return errors.New("name a scope, or with --id a request that was made earlier")
	case c.ID == "":
		return nil
	case c.Scope != "" || c.TTL != 0 || c.Reason != "" || c.Key != "" || c.Person != "":
		return errors.New("--id names a request that was made: besides it, only --wait and the keys of that request can be given")
	}
	for _, flag := range command.Flags() {
		if flag.Name == "task" {
			flag.Required = false
		}
	}
	return nil
}

// Run requests a credential. It prints the credential alone on standard output, so that a script can use it.
func (c *RequestCmd) Run(ctx context.Context, con *console) error {
	params, err := parseParams(c.Params)
	if err != nil {
		return err
	}
	ask := client.Ask{Scope: c.Scope, Params: params, TTL: c.TTL, Task: c.Task, Reason: c.Reason, IdempotencyKey: c.Key}
	if ask.CSR, err = readKeyFile(c.CSR); err != nil {
		return fmt.Errorf("--csr: %w", err)
	}
	if ask.PublicKey, err = readKeyFile(c.Public); err != nil {
		return fmt.Errorf("--public-key: %w", err)
	}
	if ask.Signer, err = c.signer(); err != nil {
		return err
	}
	if c.Person != "" {
		ask.OnBehalfOf = tokenFile(c.Person)
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := settleParams(ctx, broker, scopeParams{ask.Scope, ask.Params}); err != nil {
		return refused(ctx, con, c.CallerFlags, err)
	}
	answer, err := c.request(ctx, con, broker, ask)
	switch {
	case err != nil:
		return refused(ctx, con, c.CallerFlags, err)
	case answer.Pending != nil:
		return c.printPending(con, answer.Pending)
	default:
		return printToken(con, answer.Token)
	}
}

// request sends the request, or redeems the one that --id names. With --wait, it shows who must approve the request, waits for that, and
// redeems the approval.
func (c *RequestCmd) request(ctx context.Context, con *console, broker *client.Client, ask client.Ask) (answer client.Answer, err error) {
	calling := ctx
	if c.Wait { // an interrupt must not lose the answer: Await withdraws the request that is in it
		calling = context.WithoutCancel(ctx)
	}
	if c.ID != "" {
		answer, err = broker.Redeem(calling, c.ID, ask)
	} else {
		answer, err = broker.Request(calling, ask)
	}
	p := answer.Pending
	if err != nil || p == nil || !c.Wait {
		return answer, err
	}
	if !con.json {
		c.sayPending(con, p)
	}
	stop := showWaiting(con, "waiting for "+safetext.Text(p.Group), p.Expires)
	_, err = broker.Await(ctx, p)
	stop()
	if err != nil {
		return answer, err
	}
	return broker.Redeem(ctx, p.ID, ask)
}

// WithdrawCmd is `brevet withdraw`.
type WithdrawCmd struct {
	CallerFlags
	ID string `arg:"" help:"ID of the request."`
}

// Run withdraws the request.
func (c *WithdrawCmd) Run(ctx context.Context, con *console) error {
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := broker.Withdraw(ctx, c.ID); err != nil {
		return refused(ctx, con, c.CallerFlags, err)
	}
	if con.json {
		return con.encode(map[string]any{"id": c.ID, "status": openapi.StatusWithdrawn})
	}
	_, err = fmt.Fprintf(con.out, "%s is withdrawn\n", safetext.Text(c.ID))
	return err
}

func printToken(con *console, token *client.Token) error {
	if con.json {
		return con.encode(tokenDocument(token))
	}
	for _, clamp := range token.Clamped {
		fmt.Fprintf(con.err, "shortened from %s to %s by %s\n", spell(seconds(clamp.From)), spell(seconds(clamp.To)), safetext.Text(clamp.Bound))
	}
	fmt.Fprintf(con.err, "%s on %s until %s, issuance %s\n",
		safetext.Text(token.Scope), safetext.Text(token.Resource), token.Expires.Local().Format(time.TimeOnly), safetext.Text(token.ID))
	if token.OnBehalfOf != "" {
		fmt.Fprintf(con.err, "on behalf of %s\n", safetext.Text(token.OnBehalfOf))
	}
	if token.BreakGlass {
		fmt.Fprintln(con.err, "Approved by break-glass, not by the group of the scope.")
	}
	if token.Static {
		fmt.Fprintln(con.err, "This is a static secret: it stays valid after that time until its owner rotates it.")
	}
	if token.Type == "DPoP" {
		fmt.Fprintln(con.err, "The token requires DPoP proofs with your key.")
	}
	if token.Kind == client.KindNone {
		_, err := fmt.Fprintln(con.err, "The scope has no credential: it only opens hosts. An egress gateway asks for such a permit itself, and does not need this one.")
		return err
	}
	if token.Kind == kindJWT {
		_, err := fmt.Fprintln(con.out, token.Secret.Reveal())
		return err
	}
	return printFields(con, token)
}

// kindJWT is the only kind whose credential is a single word.
const kindJWT = "jwt"

// tokenDocument returns the response with the server's field names.
func tokenDocument(token *client.Token) map[string]any {
	document := map[string]any{
		"id": token.ID, "kind": token.Kind, "expires_at": token.Expires,
		"scope": token.Scope, "resource": token.Resource, "task": token.Task, "ttl": int(token.TTL.Seconds()),
		"clamped": token.Clamped, "policies": token.Policies, "catalogue": token.Catalogue,
	}
	switch token.Kind {
	case client.KindNone:
	case kindJWT:
		document["token"], document["token_type"] = token.Secret.Reveal(), token.Type
	default:
		document["credential"] = json.RawMessage(token.Secret.Reveal())
	}
	for name, value := range map[string]any{
		"name": token.Name, "static": token.Static, "break_glass": token.BreakGlass, "on_behalf_of": token.OnBehalfOf,
	} {
		if value != "" && value != false {
			document[name] = value
		}
	}
	return document
}

// printFields prints each field of a credential. A value of several lines, such as a certificate, starts on a new line.
func printFields(con *console, token *client.Token) error {
	for _, name := range token.Fields() {
		value := strings.TrimRight(token.Field(name).Reveal(), "\n")
		if strings.Contains(value, "\n") {
			value = "\n" + value
		}
		if _, err := fmt.Fprintf(con.out, "%s=%s\n", safetext.Text(name), value); err != nil {
			return err
		}
	}
	return nil
}

// printPending says what a request waits for, and how to get its credential. The next command is for the shell that ran this one.
func (c *RequestCmd) printPending(con *console, p *client.Pending) error {
	if !con.json {
		c.sayPending(con, p)
	} else if err := con.encode(struct {
		ID         string         `json:"id"`
		Status     openapi.Status `json:"status"`
		Group      string         `json:"group"`
		Quorum     int            `json:"quorum"`
		BreakGlass string         `json:"break_glass,omitempty"`
		Expires    time.Time      `json:"expires_at"`
		Earlier    bool           `json:"earlier"`
		URL        string         `json:"url,omitempty"`
		Approve    string         `json:"approve"`
		Collect    string         `json:"collect"`
	}{
		p.ID, openapi.StatusPending, p.Group, p.Quorum, p.BreakGlass, p.Expires, p.Earlier, p.URL, approveCommand(p.ID), c.collectCommand(p.ID),
	}); err != nil {
		return err
	}
	return exitError{err: fmt.Errorf("request %s is pending approval", p.ID), code: exitPending}
}

// sayPending says who must approve a request and how, and how to get its credential then.
func (c *RequestCmd) sayPending(con *console, p *client.Pending) {
	fmt.Fprintf(con.err, "Approval required: %d of %s%s, until %s.\n", p.Quorum, safetext.Text(p.Group),
		safetext.Text(standIn(p.BreakGlass)), p.Expires.Local().Format(time.TimeOnly))
	request := p.ID
	if p.Earlier {
		request += " (made earlier)"
	}
	lines := [][2]string{{"request", request}, {"approve", approveCommand(p.ID)}, {"console", p.URL}}
	if !c.Wait {
		lines = append(lines, [2]string{"then", "run the same command again, or " + c.collectCommand(p.ID)})
	}
	for _, line := range lines {
		if line[1] != "" {
			fmt.Fprintf(con.err, "  %-10s %s\n", line[0], safetext.Text(line[1]))
		}
	}
}

// approveCommand is the command that approves a request.
func approveCommand(id string) string { return "brevet approvals approve " + quote(id) }

// collectCommand is the command that gets the credential of a request once people have approved it.
func (c *RequestCmd) collectCommand(id string) string {
	words := []string{"brevet", "request", "--id", quote(id)}
	for _, file := range [][2]string{{"--csr", c.CSR}, {"--public-key", c.Public}, {"--dpop-key", c.DPoPKey}} {
		if file[1] != "" {
			words = append(words, file[0], quote(file[1]))
		}
	}
	return strings.Join(words, " ")
}

// commandLine returns a request as a command that a person can paste into a shell.
func commandLine(ask openapi.NarrowestAsk) string {
	words := []string{"brevet", "request", quote(ask.Scope)}
	for _, name := range slices.Sorted(maps.Keys(ask.Params)) {
		if text, ok := ask.Params[name].(string); ok {
			words = append(words, quote(name+"="+text))
		} else if value, err := json.Marshal(ask.Params[name]); err == nil { // a value that was decoded from JSON always encodes
			words = append(words, quote(name+":="+string(value)))
		}
	}
	if ask.TTL > 0 {
		words = append(words, "--ttl "+spell(seconds(ask.TTL)))
	}
	for _, name := range slices.Sorted(maps.Keys(ask.Context)) {
		words = append(words, "--"+strings.ReplaceAll(name, "_", "-")+" "+quote(ask.Context[name]))
	}
	return strings.Join(words, " ")
}

// plain matches text to which no shell gives a meaning, at the beginning of a word or inside it.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// quote returns untrusted text as one word for a shell.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
