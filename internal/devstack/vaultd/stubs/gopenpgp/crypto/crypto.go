// Package crypto stands in for the OpenPGP of plugin archives. The development core runs only what is compiled in: it verifies no archive,
// and so accepts none.
package crypto

import "errors"

var errLeftOut = errors.New("plugin archives are left out of the development core")

// Armor is an encoding.
const Armor int8 = 0

type (
	// Key is empty.
	Key struct{}
	// Handle refuses everything.
	Handle struct{}
	// Builder refuses everything.
	Builder struct{}
	// Signer refuses everything.
	Signer struct{}
	// Result tells of no signature.
	Result struct{}
)

// PGPVerify verifies detached signatures.
type PGPVerify interface {
	VerifyDetached(data, signature []byte, encoding int8) (*Result, error)
}

type verifier struct{}

func (verifier) VerifyDetached([]byte, []byte, int8) (*Result, error) { return nil, errLeftOut }

// SignatureError says that nothing was verified.
func (*Result) SignatureError() error { return errLeftOut }

// NewKeyFromArmored refuses.
func NewKeyFromArmored(string) (*Key, error) { return nil, errLeftOut }

// PGP returns a Handle.
func PGP() *Handle { return &Handle{} }

// Verify returns a Builder.
func (*Handle) Verify() *VerifyBuilder { return &VerifyBuilder{} }

// VerifyBuilder refuses everything.
type VerifyBuilder struct{}

// VerificationKey has no effect.
func (b *VerifyBuilder) VerificationKey(*Key) *VerifyBuilder { return b }

// New refuses.
func (*VerifyBuilder) New() (PGPVerify, error) { return verifier{}, errLeftOut }

// Sign returns a Builder.
func (*Handle) Sign() *Builder { return &Builder{} }

// SigningKey has no effect.
func (b *Builder) SigningKey(*Key) *Builder { return b }

// Detached has no effect.
func (b *Builder) Detached() *Builder { return b }

// New refuses.
func (*Builder) New() (*Signer, error) { return &Signer{}, errLeftOut }

// Sign refuses.
func (*Signer) Sign([]byte, int8) ([]byte, error) { return nil, errLeftOut }

// ClearPrivateParams has no effect.
func (*Signer) ClearPrivateParams() {}

// KeyGeneration returns a builder.
func (*Handle) KeyGeneration() *KeyBuilder { return &KeyBuilder{} }

// KeyBuilder refuses everything.
type KeyBuilder struct{}

// AddUserId has no effect.
func (b *KeyBuilder) AddUserId(string, string) *KeyBuilder { return b }

// New returns the builder.
func (b *KeyBuilder) New() *KeyBuilder { return b }

// GenerateKey refuses.
func (*KeyBuilder) GenerateKey() (*Key, error) { return nil, errLeftOut }

// ToPublic refuses.
func (*Key) ToPublic() (*Key, error) { return nil, errLeftOut }

// Armor refuses.
func (*Key) Armor() (string, error) { return "", errLeftOut }
