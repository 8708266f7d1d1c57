package attest

import (
	"context"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Refresh fetches the bundle of td from its endpoint now, instead of after the returned delay.
func (s *Sources) Refresh(ctx context.Context, td spiffeid.TrustDomain) time.Duration {
	return s.byDomain[td].(*endpoint).refresh(ctx)
}
