package scopes

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

const (
	maxKeyText = 8 << 10 // bytes of a CSR or a public key
	minRSABits = 2048
	maxRSABits = 8192 // verifying a signature by a longer key takes too long
)

const (
	keyTypes = "an RSA key of 2048 to 8192 bits, an ECDSA key on P-256, P-384 or P-521, or an Ed25519 key"
	csrForm  = "must be one PEM block with a certificate signing request whose signature is valid"
	csrNames = "must contain only the common name and the DNS names of this scope, and no other name, extension or attribute"
	sshForm  = "must be one line in the format of an OpenSSH .pub file, without options: " + keyTypes
)

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
)

// csrAlgorithms omits SHA-1, which Go still accepts in a request.
var csrAlgorithms = []x509.SignatureAlgorithm{
	x509.SHA256WithRSA, x509.SHA384WithRSA, x509.SHA512WithRSA,
	x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS, x509.SHA512WithRSAPSS,
	x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512, x509.PureEd25519,
}

// request is a CSR that is valid by itself, with every name in it.
type request struct {
	pem                   string // encoded again, so that nothing else is forwarded
	commonNames, dnsNames []string
}

// parseCSR reads one PEM block. Nothing in the caller's request but its key may reach the certificate (H56), so parseCSR
// rejects a request that contains anything else but names.
func parseCSR(text string) (request, *InvalidAsk) {
	bad := invalid("csr", csrForm)
	text = strings.TrimSpace(text)
	block, rest := pem.Decode([]byte(text))
	if block == nil || !strings.HasPrefix(text, "-----BEGIN ") || len(bytes.TrimSpace(rest)) > 0 || len(block.Headers) > 0 {
		return request{}, bad
	}
	if block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return request{}, bad
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return request{}, bad
	}
	// Check the key first: its size bounds the cost of verifying the signature.
	if !strongKey(parsed.PublicKey) {
		return request{}, invalid("csr", "must be for %s", keyTypes)
	}
	if !slices.Contains(csrAlgorithms, parsed.SignatureAlgorithm) || parsed.CheckSignature() != nil {
		return request{}, bad
	}
	r := request{pem: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: block.Bytes}))}
	for _, attribute := range parsed.Subject.Names {
		name, ok := attribute.Value.(string)
		if !ok || !attribute.Type.Equal(oidCommonName) {
			return request{}, invalid("csr", csrNames)
		}
		r.commonNames = append(r.commonNames, name)
	}
	var ok bool
	if r.dnsNames, ok = requestedNames(parsed.Extensions); !ok || !onlyExtensions(parsed.RawTBSCertificateRequest) {
		return request{}, invalid("csr", csrNames)
	}
	return r, nil
}

// requestedNames parses the names itself, because x509 ignores kinds of names that it does not know.
func requestedNames(extensions []pkix.Extension) (names []string, only bool) {
	const tagDNSName = 2
	for _, extension := range extensions {
		var values []asn1.RawValue
		rest, err := asn1.Unmarshal(extension.Value, &values)
		if err != nil || len(rest) > 0 || !extension.Id.Equal(oidSubjectAltName) {
			return nil, false
		}
		for _, value := range values {
			if value.Class != asn1.ClassContextSpecific || value.Tag != tagDNSName {
				return nil, false
			}
			names = append(names, string(value.Bytes))
		}
	}
	return names, true
}

// onlyExtensions reports whether the request has no attribute except the one that holds extensions. x509 ignores other
// attributes, but other programs may not.
func onlyExtensions(tbs []byte) bool {
	var body struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	if rest, err := asn1.Unmarshal(tbs, &body); err != nil || len(rest) > 0 || len(body.Attributes) > 1 {
		return false
	}
	return !slices.ContainsFunc(body.Attributes, func(raw asn1.RawValue) bool {
		var attribute struct {
			ID     asn1.ObjectIdentifier
			Values []asn1.RawValue `asn1:"set"`
		}
		rest, err := asn1.Unmarshal(raw.FullBytes, &attribute)
		return err != nil || len(rest) > 0 || len(attribute.Values) != 1 || !attribute.ID.Equal(oidExtensionRequest)
	})
}

func strongKey(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSABits && k.N.BitLen() <= maxRSABits && k.E >= 3
	case *ecdsa.PublicKey:
		return k.Curve == elliptic.P256() || k.Curve == elliptic.P384() || k.Curve == elliptic.P521()
	case ed25519.PublicKey:
		return true
	default:
		return false
	}
}

// parsePublicKey returns the key as OpenSSH writes it, without its comment.
func parsePublicKey(line string) (string, *InvalidAsk) {
	bad := invalid("public_key", sshForm)
	line = strings.TrimSpace(line)
	// The parser would skip a line that is not a key and try the next one.
	if strings.ContainsAny(line, "\r\n") {
		return "", bad
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(options) > 0 || len(rest) > 0 {
		return "", bad
	}
	switch key.Type() {
	// Neither certificates nor security keys.
	case ssh.KeyAlgoRSA, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoED25519:
	default:
		return "", bad
	}
	public, ok := key.(ssh.CryptoPublicKey)
	if !ok || !strongKey(public.CryptoPublicKey()) {
		return "", bad
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}
