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

// MostRemembered bounds how many tokens an Attestor remembers.
const MostRemembered = mostRemembered

// Remembered counts the tokens that it does.
func (a *Attestor) Remembered() int {
	a.tokens.mu.Lock()
	defer a.tokens.mu.Unlock()
	return len(a.tokens.found)
}
