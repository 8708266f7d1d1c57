// Package wait sleeps until a duration has passed or a context has ended.
package wait

import (
	"context"
	"time"
)

// For returns true once d has passed, or false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
