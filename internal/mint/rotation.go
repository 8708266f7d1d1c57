package mint

import (
	"crypto"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// version is one version of the signing key.
type version struct {
	key     broker.Key
	public  crypto.PublicKey
	created time.Time
}

// slack covers clock differences between Vault and the replicas, and signatures in progress.
const slack = 15 * time.Second

// overlap holds the two waiting times of a rotation. They depend on configuration alone, so replicas that see the same versions
// agree without talking to each other.
type overlap struct {
	// settle is the time from a version's creation until every verifier must have seen it: each replica reads the versions within
	// Refresh, and each verifier caches the JWKS for JWKSMaxAge.
	settle time.Duration
	// keep is how long a replaced version stays published: the longest life of a token that it signed.
	keep time.Duration
}

func overlapOf(cfg Config) overlap {
	return overlap{settle: cfg.Refresh + cfg.JWKSMaxAge + slack, keep: cfg.MaxTTL + slack}
}

// signing picks the version to sign with: the newest one that every verifier must have seen or, if there is none, the oldest.
// Versions are in ascending order. Versions below floor may not sign.
func signing(versions []version, floor int, now time.Time, wait overlap) (version, bool) {
	var chosen version
	var found bool
	for _, v := range versions {
		if v.key.Version < floor {
			continue
		}
		if !found || !now.Before(v.created.Add(wait.settle)) {
			chosen, found = v, true
		}
	}
	return chosen, found
}

// published picks the versions that verifiers need: the signing version, newer ones, and each replaced version for as long as a
// token that it signed may live. A version is replaced when the first newer one has settled.
func published(versions []version, now time.Time, wait overlap) []version {
	var out []version
	for i, v := range versions {
		needed := true
		for _, newer := range versions[i+1:] {
			if replaced := newer.created.Add(wait.settle); !now.Before(replaced.Add(wait.keep)) {
				needed = false
			}
		}
		if needed {
			out = append(out, v)
		}
	}
	return out
}
