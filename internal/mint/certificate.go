package mint

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/hashicorp/vault/api"
	"golang.org/x/crypto/ssh"
)

// certificateOf returns an X.509 certificate after checking that it matches the request exactly.
func certificateOf(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	made, err := read[struct {
		Certificate    string   `json:"certificate"`
		IssuingCA      string   `json:"issuing_ca"`
		CAChain        []string `json:"ca_chain"`
		SerialNumber   string   `json:"serial_number"`
		PrivateKey     string   `json:"private_key,omitempty"`
		PrivateKeyType string   `json:"private_key_type,omitempty"`
	}](answer.Data)
	if err != nil {
		return mintedSecret{}, err
	}
	block, rest := pem.Decode([]byte(made.Certificate))
	if block == nil || strings.TrimSpace(string(rest)) != "" {
		return mintedSecret{}, fmt.Errorf("%w: the certificate is not one PEM block", broker.ErrMintMismatch)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return mintedSecret{}, fmt.Errorf("%w: the certificate does not parse", broker.ErrMintMismatch)
	}

	name := intent.Grant.Data["common_name"]
	asked := list(intent.Grant.Data["alt_names"])
	without := func(names []string) []string {
		return slices.DeleteFunc(unique(names), func(n string) bool { return n == name })
	}
	switch {
	case leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return mintedSecret{}, fmt.Errorf("%w: the certificate is an authority's", broker.ErrMintMismatch)
	case leaf.Subject.CommonName != name:
		return mintedSecret{}, fmt.Errorf("%w: the certificate has another common name", broker.ErrMintMismatch)
	// Vault lists the common name among the DNS names, unless the role says not to.
	case !slices.Equal(without(leaf.DNSNames), without(asked)),
		slices.Contains(asked, name) && !slices.Contains(leaf.DNSNames, name):
		return mintedSecret{}, fmt.Errorf("%w: the certificate has other DNS names", broker.ErrMintMismatch)
	case len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) > 0:
		return mintedSecret{}, fmt.Errorf("%w: the certificate is for more than DNS names", broker.ErrMintMismatch)
	case leaf.NotAfter.After(intent.Expires.Add(time.Second)):
		return mintedSecret{}, fmt.Errorf("%w: the certificate lives too long: its role must not set not_after", broker.ErrMintMismatch)
	}

	// The key is the caller's, or the one that Vault made and returned with the certificate.
	if csr := intent.Grant.Data["csr"]; csr == "" {
		if _, err := tls.X509KeyPair([]byte(made.Certificate), []byte(made.PrivateKey)); err != nil {
			return mintedSecret{}, fmt.Errorf("%w: the private key is not the certificate's", broker.ErrMintMismatch)
		}
	} else {
		if made.PrivateKey != "" {
			return mintedSecret{}, fmt.Errorf("%w: there is a private key, and none was asked for", broker.ErrMintMismatch)
		}
		block, _ := pem.Decode([]byte(csr))
		if block == nil {
			return mintedSecret{}, fmt.Errorf("%w: the signing request is no PEM", broker.ErrMintMismatch)
		}
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return mintedSecret{}, fmt.Errorf("%w: the signing request does not parse", broker.ErrMintMismatch)
		}
		if key, ok := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(leaf.PublicKey) {
			return mintedSecret{}, fmt.Errorf("%w: the certificate is for another key", broker.ErrMintMismatch)
		}
	}
	if made.CAChain == nil {
		made.CAChain = []string{}
	}
	return handOver(made, made.SerialNumber, sha256.Sum256(leaf.Raw))
}

// sshOf returns an OpenSSH user certificate after checking that it is for exactly the requested key and principals.
func sshOf(intent broker.Intent, answer *api.Secret) (mintedSecret, error) {
	made, err := read[struct {
		SignedKey    string `json:"signed_key"`
		SerialNumber string `json:"serial_number"`
	}](answer.Data)
	if err != nil {
		return mintedSecret{}, err
	}
	asked, _, _, _, err := ssh.ParseAuthorizedKey([]byte(intent.Grant.Data["public_key"]))
	if err != nil {
		return mintedSecret{}, fmt.Errorf("%w: the public key does not parse", broker.ErrMintMismatch)
	}
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(made.SignedKey))
	cert, ok := key.(*ssh.Certificate)
	if err != nil || !ok || len(rest) > 0 {
		return mintedSecret{}, fmt.Errorf("%w: the signed key is not one certificate", broker.ErrMintMismatch)
	}
	principals := unique(list(intent.Grant.Data["valid_principals"]))
	switch {
	case cert.CertType != ssh.UserCert:
		return mintedSecret{}, fmt.Errorf("%w: the certificate is not a user's", broker.ErrMintMismatch)
	// A certificate without principals would be valid for every user.
	case len(principals) == 0 || !slices.Equal(unique(cert.ValidPrincipals), principals):
		return mintedSecret{}, fmt.Errorf("%w: the certificate has other principals", broker.ErrMintMismatch)
	case !slices.Equal(cert.Key.Marshal(), asked.Marshal()):
		return mintedSecret{}, fmt.Errorf("%w: the certificate is for another key", broker.ErrMintMismatch)
	// Vault computes the expiry from its own clock, so allow the leeway.
	case cert.ValidBefore > math.MaxInt64 || time.Unix(int64(cert.ValidBefore), 0).After(intent.Expires.Add(leeway)):
		return mintedSecret{}, fmt.Errorf("%w: the certificate lives too long", broker.ErrMintMismatch)
	case !strings.Contains(cert.KeyId, intent.ID):
		return mintedSecret{}, fmt.Errorf("%w: the key id does not hold the issuance: its role must not set key_id_format without {{token_display_name}}", broker.ErrMintMismatch)
	}
	return handOver(made, cert.KeyId, sha256.Sum256(cert.Marshal()))
}

// list splits a comma-separated list.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// unique returns a sorted list without duplicates.
func unique(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
