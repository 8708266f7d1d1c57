package attest

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// maxBundleBytes leaves room for some thousand keys.
const maxBundleBytes = 4 << 20

// parseBundle parses a document in the SPIFFE bundle format. An empty list of keys is a valid bundle: by the specification, a
// trust domain revokes all its keys that way, so keeping the old keys would trust revoked ones. A list without any usable key is
// an error: it is more likely another kind of document.
func parseBundle(td spiffeid.TrustDomain, doc []byte) (*spiffebundle.Bundle, error) {
	// encoding/json, which go-spiffe uses, takes the last of two members with the same name. This parser rejects them.
	var strict struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(doc, &strict); err != nil {
		return nil, fmt.Errorf("parsing bundle of %s: %w", td, err)
	}
	bundle, err := spiffebundle.Parse(td, doc)
	if err != nil {
		return nil, fmt.Errorf("parsing bundle of %s: %w", td, err)
	}
	if len(strict.Keys) > 0 && len(bundle.X509Authorities()) == 0 && len(bundle.JWTAuthorities()) == 0 {
		return nil, fmt.Errorf("parsing bundle of %s: none of its keys is for an X.509-SVID or a JWT-SVID", td)
	}
	return bundle, nil
}

func readCapped(r io.Reader) ([]byte, error) {
	doc, err := io.ReadAll(io.LimitReader(r, maxBundleBytes+1))
	if err != nil {
		return nil, err
	}
	if len(doc) > maxBundleBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxBundleBytes)
	}
	return doc, nil
}

func readBundleFile(td spiffeid.TrustDomain, path string) (*spiffebundle.Bundle, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading bundle: %w", err)
	}
	doc, err := readCapped(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading bundle %s: %w", path, err)
	}
	return parseBundle(td, doc)
}
