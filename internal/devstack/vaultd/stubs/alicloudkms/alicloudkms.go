// Package alicloudkms stands in for the wrapper of the same name. Vault's configuration compiles against it; the development core is sealed by
// a key share and never uses it.
package alicloudkms

import (
	"context"
	"errors"

	wrapping "github.com/hashicorp/go-kms-wrapping/v2"
)

var errLeftOut = errors.New("alicloudkms is left out of the development core")

// The environment variables that Vault reads the wrapper's settings from.
const (
	EnvAliCloudKmsWrapperKeyId   = "ALICLOUDKMS_WRAPPER_KEY_ID"
	EnvVaultAliCloudKmsSealKeyId = "VAULT_ALICLOUDKMS_SEAL_KEY_ID"
)

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
