// Package awskms stands in for the wrapper of the same name. Vault's configuration compiles against it; the development core is sealed by
// a key share and never uses it.
package awskms

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	wrapping "github.com/hashicorp/go-kms-wrapping/v2"
)

var errLeftOut = errors.New("awskms is left out of the development core")

// The environment variables that Vault reads the wrapper's settings from.
const (
	EnvAwsKmsWrapperKeyId   = "AWSKMS_WRAPPER_KEY_ID"
	EnvVaultAwsKmsSealKeyId = "VAULT_AWSKMS_SEAL_KEY_ID"
)

// WithDisallowEnvVars has no effect.
func WithDisallowEnvVars(with bool) wrapping.Option { return wrapping.WithDisallowEnvVars(with) }

// WithLogger has no effect. Vault passes it to the wrapper of its own key share.
func WithLogger(hclog.Logger) wrapping.Option { return wrapping.WithConfigMap(nil) }

// Wrapper refuses everything.
type Wrapper struct{}

// NewWrapper returns a Wrapper.
func NewWrapper() *Wrapper { return &Wrapper{} }

// Type implements wrapping.Wrapper.
func (*Wrapper) Type(context.Context) (wrapping.WrapperType, error) { return "", errLeftOut }

// KeyId implements wrapping.Wrapper.
func (*Wrapper) KeyId(context.Context) (string, error) { return "", errLeftOut }

// SetConfig implements wrapping.Wrapper.
func (*Wrapper) SetConfig(context.Context, ...wrapping.Option) (*wrapping.WrapperConfig, error) {
	return nil, errLeftOut
}

// Encrypt implements wrapping.Wrapper.
func (*Wrapper) Encrypt(context.Context, []byte, ...wrapping.Option) (*wrapping.BlobInfo, error) {
	return nil, errLeftOut
}

// Decrypt implements wrapping.Wrapper.
func (*Wrapper) Decrypt(context.Context, *wrapping.BlobInfo, ...wrapping.Option) ([]byte, error) {
	return nil, errLeftOut
}
