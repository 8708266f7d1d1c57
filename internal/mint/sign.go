package mint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"
)

// leeway is the accepted difference between the clock of this replica and the clock of the replica that wrote the claims.
const leeway = 5 * time.Second

// Mint carries out an order, which is possible only once. It asks Vault to sign the claims of a JWT or to make a dynamic
// credential. See broker.Minter for the errors.
func (m *Minter) Mint(ctx context.Context, order *broker.Order) (broker.Credential, error) {
	intent, key, err := order.Spend()
	if err != nil {
		return broker.Credential{}, err
	}
	if intent.Grant != nil {
		return m.mintGrant(ctx, intent)
	}
	input, err := signingInput(intent, key)
	if err != nil {
		return broker.Credential{}, err
	}
	of, v, err := m.find(key)
	if err != nil {
		return broker.Credential{}, err
	}
	signature, err := m.sign(ctx, &of.signings, v, input)
	if err != nil {
		return broker.Credential{}, err
	}
	if err := checkClaims(intent, m.cfg.Now()); err != nil {
		return broker.Credential{}, err
	}
	return broker.Credential{Secret: secret.New(input + "." + base64.RawURLEncoding.EncodeToString(signature))}, nil
}

// checkClaims checks the claims against the intent and the clock, as a resource server would.
func checkClaims(intent broker.Intent, now time.Time) error {
	var claims struct {
		Audience  string `json:"aud"`
		Expires   int64  `json:"exp"`
		IssuedAt  int64  `json:"iat"`
		NotBefore int64  `json:"nbf"`
	}
	switch err := json.Unmarshal(intent.Claims, &claims); {
	case err != nil:
		return fmt.Errorf("%w: the claims are not those of a token", broker.ErrMintMismatch) // leave out the cause: it quotes them
	case claims.Audience == "" || claims.Audience != intent.Audience:
		return fmt.Errorf("%w: the token is for another audience", broker.ErrMintMismatch)
	case claims.Expires != intent.Expires.Unix():
		return fmt.Errorf("%w: the token has another expiry", broker.ErrMintMismatch)
	case now.Add(leeway).Before(time.Unix(max(claims.IssuedAt, claims.NotBefore), 0)):
		return fmt.Errorf("%w: the token is not valid yet", broker.ErrMintMismatch)
	case !now.Add(-leeway).Before(intent.Expires):
		return fmt.Errorf("%w: it signed when the token had expired already", broker.ErrVaultUnavailable)
	}
	return nil
}

// Sign asks Vault to sign a JWS signing input with exactly the version that key names. It verifies the signature and returns the
// third part of the JWS. It asks at most once. Errors are as for Mint.
func (m *Minter) Sign(ctx context.Context, key broker.Key, signingInput string) (string, error) {
	of, v, err := m.find(key)
	if err != nil {
		return "", err
	}
	signature, err := m.sign(ctx, &of.signings, v, signingInput)
	return base64.RawURLEncoding.EncodeToString(signature), err
}

// signingInput returns the part of the JWS that gets signed. It takes the claims byte for byte from the intent.
func signingInput(intent broker.Intent, key broker.Key) (string, error) {
	switch {
	case intent.Kind != "jwt":
		return "", fmt.Errorf("%w: the intent is not for a JWT", broker.ErrMintMismatch)
	case intent.KeyID != key.ID || intent.Algorithm != key.Algorithm:
		return "", fmt.Errorf("%w: the intent names another key than the order", broker.ErrMintMismatch)
	case sha256.Sum256(intent.Claims) != intent.ClaimsDigest:
		return "", fmt.Errorf("%w: the claims are not those of the digest", broker.ErrMintMismatch)
	case intent.Type != "" && intent.Type != "JWT":
		return "", fmt.Errorf("%w: the intent is for a JWT of an unknown type", broker.ErrMintMismatch)
	}
	// No value needs an escape: the names of algorithms and types are constants, and the id of a key is base64url.
	head := `{"alg":"` + key.Algorithm + `","kid":"` + key.ID + `","typ":"` + cmp.Or(intent.Type, "at+jwt") + `"}`
	return base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString(intent.Claims), nil
}

// maxSigned is the largest number of texts in one request to Vault. It keeps the answer far below longestAnswer.
const maxSigned = 256

// signings queues the texts that Vault is to sign with one key. Texts that arrive during a request go with the next one, so a
// busy broker shares requests and an idle one never waits.
type signings struct {
	key     string // name in Transit
	mu      sync.Mutex
	waiting []*toSign
	busy    bool
}

// toSign is one text that waits for its signature.
type toSign struct {
	version version
	input   string
	// left is set when the caller has stopped waiting.
	left atomic.Bool
	done chan signed // has room for the one answer
}

type signed struct {
	signature []byte
	err       error
}

// sign asks Vault to sign a text with one version of a key, in one request with the other queued texts, and verifies the signature.
// It asks at most once.
func (m *Minter) sign(ctx context.Context, of *signings, v version, input string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, unavailable("signing", err)
	}
	s := &toSign{version: v, input: input, done: make(chan signed, 1)}
	of.mu.Lock()
	of.waiting = append(of.waiting, s)
	first := !of.busy
	of.busy = true
	of.mu.Unlock()
	if first {
		// No request is in flight, so this caller sends one itself: to wake another goroutine takes time, twice. The request has a timeout,
		// and goes on for the others if this caller leaves.
		m.signOwn(of)
	}
	var got signed
	select {
	case got = <-s.done:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil { // also if the signature came too late
		s.left.Store(true)
		return nil, unavailable("signing", err)
	}
	if got.err != nil {
		return nil, got.err
	}
	if jwt.GetSigningMethod(v.key.Algorithm).Verify(input, got.signature, v.public) != nil {
		return nil, fmt.Errorf("%w: the signature does not verify", broker.ErrMintMismatch)
	}
	return got.signature, nil
}

// signOwn sends one request with the caller's text and those that were queued since. It leaves what is queued meanwhile to another
// goroutine, also if it panics.
func (m *Minter) signOwn(of *signings) {
	defer func() {
		if of.more() {
			go m.signAll(of)
		}
	}()
	m.signSome(of)
}

// signAll sends requests until the queue is empty. It runs independently of any caller: each of them may leave while the others
// wait.
func (m *Minter) signAll(of *signings) {
	for {
		m.signSome(of)
		if !of.more() {
			return
		}
	}
}

// signSome sends one request with the oldest texts of the queue, and answers their callers.
func (m *Minter) signSome(of *signings) {
	// The callers of the last request are just waking up. Yield so that they can queue their next texts.
	runtime.Gosched()
	batch := of.take()
	if len(batch) == 0 { // their callers have left
		return
	}
	key := batch[0].version.key
	body := signRequest{Inputs: make([]signInput, len(batch)), KeyVersion: key.Version, Marshaling: "jws", Prehashed: key.Algorithm != edDSA}
	if key.Algorithm == rs256 { // Vault would use PSS
		body.Signature, body.Hash = "pkcs1v15", "sha2-256"
	}
	for i, s := range batch {
		text := []byte(s.input)
		// Vault reads and checks its input several times, so a short input saves time. Ed25519 signs the text itself.
		if body.Prehashed {
			digest := sha256.Sum256(text)
			text = digest[:]
		}
		body.Inputs[i].Input = text
	}
	var answer signAnswer
	err := m.call(context.Background(), "signing", func(ctx context.Context) (err error) {
		if err = m.send(ctx, m.cfg.Mount+"/sign/"+of.key, body, &answer); err == nil && !answer.complete(len(batch)) {
			err = errNotUnderstood
		}
		return err
	})
	for i, s := range batch {
		got := signed{err: err}
		if err == nil {
			got.signature, got.err = answer.Data.Results[i].signature(key.Version)
		}
		s.done <- got
	}
}

// take removes from the queue the oldest text and the others for the same key version, at most maxSigned of them, and the texts whose
// callers have left.
func (s *signings) take() []*toSign {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch, rest []*toSign
	for _, next := range s.waiting {
		switch {
		case next.left.Load():
		case len(batch) == maxSigned, len(batch) > 0 && next.version.key.Version != batch[0].version.key.Version:
			rest = append(rest, next)
		default:
			batch = append(batch, next)
		}
	}
	s.waiting = rest
	return batch
}

// more reports whether texts are queued. If none is, the next caller of sign is the first again.
func (s *signings) more() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = len(s.waiting) > 0
	return s.busy
}

// signRequest is the body of a call of Transit's sign operation.
type signRequest struct {
	Inputs     []signInput `json:"batch_input"`
	KeyVersion int         `json:"key_version"`
	Marshaling string      `json:"marshaling_algorithm"`
	Prehashed  bool        `json:"prehashed"`
	Signature  string      `json:"signature_algorithm,omitzero"`
	Hash       string      `json:"hash_algorithm,omitzero"`
}

type signInput struct {
	Input []byte `json:"input"` // base64 in JSON
}

// signAnswer is Vault's answer to it, with a result for each text.
type signAnswer struct {
	Data struct {
		Results []result `json:"batch_results"`
	} `json:"data"`
}

// result is a signature, or the reason why there is none.
type result struct {
	Text    string `json:"signature"`
	Refusal string `json:"error"`
}

func (a signAnswer) complete(want int) bool {
	return len(a.Data.Results) == want && !slices.Contains(a.Data.Results, result{})
}

// signature extracts the signature from the text that Vault wraps it in. It does not verify the signature.
func (r result) signature(version int) ([]byte, error) {
	if r.Refusal != "" {
		return nil, unavailable("signing", &answerError{status: http.StatusBadRequest, messages: []string{clip(r.Refusal)}})
	}
	encoded, ok := strings.CutPrefix(r.Text, "vault:v"+strconv.Itoa(version)+":")
	if !ok {
		return nil, fmt.Errorf("%w: not signed with version %d", broker.ErrMintMismatch, version)
	}
	// Even the strict decoder skips line breaks. Only a text without them encodes to itself again.
	signature, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || base64.RawURLEncoding.EncodeToString(signature) != encoded {
		return nil, fmt.Errorf("%w: the signature is not plain base64url", broker.ErrMintMismatch)
	}
	return signature, nil
}
