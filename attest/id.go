package attest

import (
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The limits of SPIFFE-ID, section 2.3, which spiffeid.FromString does not enforce.
const (
	maxIDBytes     = 2048
	maxDomainBytes = 255
)

// ParseID parses the SPIFFE ID of a workload, as spiffeid.FromString does. The ID must also have a path, be at most 2048 bytes
// long and name a trust domain of at most 255 bytes. Errors are ErrID.
func ParseID(s string) (spiffeid.ID, error) {
	if len(s) > maxIDBytes {
		return spiffeid.ID{}, fmt.Errorf("%w: longer than %d bytes", ErrID, maxIDBytes)
	}
	id, err := spiffeid.FromString(s)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%w: %w", ErrID, err)
	}
	if len(id.TrustDomain().Name()) > maxDomainBytes {
		return spiffeid.ID{}, fmt.Errorf("%w: trust domain longer than %d bytes", ErrID, maxDomainBytes)
	}
	if id.Path() == "" {
		return spiffeid.ID{}, fmt.Errorf("%w: it names a trust domain, not a workload", ErrID)
	}
	return id, nil
}
