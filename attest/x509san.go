package attest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var (
	oidKeyUsage       = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
)

const tagURI = 6 // uniformResourceIdentifier, RFC 5280, 4.2.1.6

// workloadID returns the ID in the one URI name of a leaf. It reads the signed bytes: crypto/x509 returns a parsed URL, and
// printing that drops an empty fragment and lowers the case of the scheme. An ID that the specification forbids would then look
// like an allowed one.
func workloadID(leaf *x509.Certificate) (spiffeid.ID, error) {
	uris, err := uriNames(leaf)
	if err != nil {
		return spiffeid.ID{}, err
	}
	if len(uris) != 1 {
		return spiffeid.ID{}, fmt.Errorf("%w: %d URI names, not one", ErrProfile, len(uris))
	}
	return ParseID(uris[0])
}

func uriNames(leaf *x509.Certificate) ([]string, error) {
	ext, ok := extension(leaf, oidSubjectAltName)
	if !ok {
		return nil, nil
	}
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(ext.Value, &names); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("%w: subject alternative names", ErrMalformed)
	}
	var uris []string
	for _, name := range names {
		if name.Class == asn1.ClassContextSpecific && name.Tag == tagURI {
			uris = append(uris, string(name.Bytes))
		}
	}
	return uris, nil
}

func keyUsageCritical(leaf *x509.Certificate) bool {
	ext, ok := extension(leaf, oidKeyUsage)
	return ok && ext.Critical
}

// extension finds an extension. crypto/x509 rejects a certificate that has one twice.
func extension(leaf *x509.Certificate, oid asn1.ObjectIdentifier) (pkix.Extension, bool) {
	for _, ext := range leaf.Extensions {
		if ext.Id.Equal(oid) {
			return ext, true
		}
	}
	return pkix.Extension{}, false
}
