package resourceserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/token"
)

const (
	// usual is how long keys are cached if the issuer gives no lifetime.
	usual = time.Minute
	// unsure is how much longer keys are used while the issuer can't be reached.
	unsure = 10 * time.Minute
)

// newKeys returns the cache of the issuer's keys.
func newKeys(cfg Config) *kept[token.KeySet] {
	client := clientOf(cfg)
	return &kept[token.KeySet]{now: cfg.Now, ask: func(ctx context.Context) (told[token.KeySet], error) {
		now := cfg.Now()
		body, header, err := fetch(ctx, client, cfg.JWKS)
		if err != nil {
			return told[token.KeySet]{}, err
		}
		set, err := token.Parse(body)
		fresh := now.Add(ageOf(header))
		return told[token.KeySet]{set, fresh, fresh.Add(unsure)}, err
	}}
}

// ageOf returns how long a response may be cached (RFC 9111, section 5.2.2.1), within bounds.
func ageOf(h http.Header) time.Duration {
	for directive := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		if text, ok := strings.CutPrefix(strings.TrimSpace(directive), "max-age="); ok {
			if n, err := strconv.ParseUint(text, 10, 31); err == nil {
				return min(max(time.Duration(n)*time.Second, shortest), longest)
			}
		}
	}
	return usual
}
