package mint

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/golang-jwt/jwt/v5"
)

// leeway is how far the clock of the replica that fixed the claims and the clock of this one may differ.
const leeway = 5 * time.Second

// header is the whole JOSE header of a credential.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// Mint redeems the order once: it asks Vault to sign the claims of a JWT or to make a dynamic credential. See broker.Minter for
// the errors.
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
	v, signature, err := m.ask(ctx, key, input)
	if err != nil {
		return broker.Credential{}, err
	}
	if err := m.verify(input, signature, v, intent); err != nil {
		return broker.Credential{}, err
	}
	token := input + "." + base64.RawURLEncoding.EncodeToString(signature)
	return broker.Credential{Secret: secret.New(token)}, nil
}

// Sign asks Vault to sign a JWS signing input with exactly the version that key names. It verifies the signature and returns the
// third part of the JWS. It asks at most once. Errors are as for Mint.
func (m *Minter) Sign(ctx context.Context, key broker.Key, signingInput string) (string, error) {
	v, signature, err := m.ask(ctx, key, signingInput)
	if err != nil {
		return "", err
	}
	if err := v.verify(signingInput, signature); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(signature), nil
}

// ask requests one signature and returns it unverified.
func (m *Minter) ask(ctx context.Context, key broker.Key, input string) (version, []byte, error) {
	v, ok := m.ring.Load().find(key)
	if !ok {
		return version{}, nil, fmt.Errorf("%w: version %d of the signing key is no longer there", broker.ErrVaultUnavailable, key.Version)
	}
	signature, err := m.askFor(ctx, &m.signings, v, input)
	return v, signature, err
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
	}
	head, err := json.Marshal(header{Algorithm: key.Algorithm, KeyID: key.ID, Type: "at+jwt"})
	if err != nil {
		return "", fmt.Errorf("encoding the header: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(intent.Claims), nil
}

// verify checks the signature over the input, which is what will be delivered. It checks the claims against the intent and the
// clock, as a resource server would.
func (m *Minter) verify(input string, signature []byte, v version, intent broker.Intent) error {
	if err := v.verify(input, signature); err != nil {
		return err
	}
	var claims jwt.RegisteredClaims
	if json.Unmarshal(intent.Claims, &claims) != nil {
		return fmt.Errorf("%w: the claims are not those of a token", broker.ErrMintMismatch)
	}
	err := jwt.NewValidator(
		jwt.WithAudience(intent.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(m.cfg.Now),
	).Validate(claims)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return fmt.Errorf("%w: it signed when the token had expired already", broker.ErrVaultUnavailable)
	case err != nil:
		// The validator's own messages repeat nothing of the token but the name of a claim.
		return fmt.Errorf("%w: %w", broker.ErrMintMismatch, err)
	}
	return nil
}

func (v version) verify(input string, signature []byte) error {
	if jwt.GetSigningMethod(v.key.Algorithm).Verify(input, signature, v.public) != nil {
		return fmt.Errorf("%w: the signature does not verify", broker.ErrMintMismatch)
	}
	return nil
}
