package mint

import (
	"context"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
	"golang.org/x/sync/singleflight"
)

const (
	// carrierSpan is for how long one carrier gets new logins, and by how much it outlives the longest of them. So Vault lets carriers
	// live longer than any credential, by this span.
	carrierSpan = 15 * time.Minute
	// carrierSlack is the shortest time between the end of a login and the end of its carrier.
	carrierSlack = time.Minute
)

// carriers are the tokens that database logins are made with. Vault ends a lease with the token that it was made with, so that a
// lease without a carrier needs a token of its own: two more calls.
//
// There is one carrier for each policy of a scope, and it may do what a wrapper token of that scope may do. It is never renewed, and
// never revoked: that would end the logins of everybody. It is replaced before it could end one of them.
//
// A carrier does not end a login whose answer was lost, and its lease is unknown. So only a login that ends unrenewed within
// UnrenewedLife gets a carrier. Vault says so in each answer. The first login of a role has a wrapper token, because nothing is known
// of the role.
type carriers struct {
	mu       sync.Mutex
	byPolicy map[string]carrier
	// unrenewed holds the seconds for which a login lasts without renewal, by its path. It lacks roles whose logins need a wrapper.
	unrenewed map[string]int
	making    singleflight.Group
}

type carrier struct {
	token string    // empty if Vault did not make one
	made  time.Time // when Vault made it
	until time.Time // when Vault ends it; without a token, when to ask again
}

// carrier returns a token for a login, and the seconds for which the login will last without renewal. The token is "" if the
// login needs a wrapper token.
func (m *Minter) carrier(ctx context.Context, intent broker.Intent) (have carrier, lasts int) {
	if intent.Kind != scopes.KindDatabase {
		return carrier{}, 0
	}
	c, policy, needed := &m.carriers, intent.Grant.Policy, intent.Expires.Add(carrierSlack)
	c.mu.Lock()
	lasts, have = c.unrenewed[intent.Grant.Path], c.byPolicy[policy]
	c.mu.Unlock()
	if lasts == 0 {
		return carrier{}, 0
	}
	if have.until.Before(needed) && (have.token != "" || have.until.Before(m.cfg.Now())) {
		made := c.making.DoChan(policy, func() (any, error) {
			// The carrier is for others too, so it does not depend on the caller.
			made := m.newCarrier(context.WithoutCancel(ctx), policy, m.left(intent.Expires))
			c.mu.Lock()
			defer c.mu.Unlock()
			c.byPolicy[policy] = made
			return made, nil
		})
		select {
		case got := <-made:
			have, _ = got.Val.(carrier)
		case <-ctx.Done():
			return carrier{}, 0
		}
	}
	if have.until.Before(needed) || lasts > m.left(intent.Expires) { // the login would outlive its carrier or its grant
		return carrier{}, 0
	}
	return have, lasts
}

// newCarrier asks Vault for a carrier for logins that live for at most the given number of seconds. Without one, logins get wrapper
// tokens, so an error is no more than a warning.
func (m *Minter) newCarrier(ctx context.Context, policy string, left int) carrier {
	ttl := left + int(carrierSpan/time.Second)
	until := m.cfg.Now().Add(time.Duration(ttl) * time.Second)
	answer, err := m.exchange(ctx, "creating a carrier", m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, "auth/token/create/"+m.cfg.TokenRole, map[string]any{
			"policies": []string{policy}, "no_default_policy": true,
			"display_name": "brevet", "meta": map[string]string{"carrier": policy},
			"ttl": seconds(ttl), "explicit_max_ttl": seconds(ttl), "renewable": false, "num_uses": 0,
		})
	})
	retry := carrier{until: m.cfg.Now().Add(carrierSlack)}
	if err == nil && (answer == nil || answer.Auth == nil || answer.Auth.Accessor == "" || answer.Auth.ClientToken == "") {
		err = unavailable("creating a carrier", errNotUnderstood)
	}
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "no carrier for database logins: each takes more calls to vault", "policy", policy, "error", err)
		return retry
	}
	err = checkToken(answer.Auth, policy, ttl, false)
	short := answer.Auth.LeaseDuration < ttl-renewSlack
	if err == nil && !short {
		return carrier{token: answer.Auth.ClientToken, made: m.cfg.Now(), until: until.Add(-renewSlack * time.Second)}
	}
	m.cfg.Log.WarnContext(ctx, "no carrier for database logins: each takes more calls to vault. Run brevet bootstrap again: "+
		"the token role may not let tokens live long enough", "policy", policy, "life", answer.Auth.LeaseDuration, "wanted", ttl, "error", err)
	if err := m.Revoke(ctx, broker.VaultLease{Accessor: answer.Auth.Accessor}); err != nil {
		m.cfg.Log.WarnContext(ctx, "useless carrier not revoked: it expires", "error", err)
	}
	return carrier{until: m.cfg.Now().Add(carrierSpan)}
}

// learn notes for how long a new login lasts without renewal, at most. Vault answers with the rest of that time, rounded, so the role
// may give more by the time that the call took.
func (c *carriers) learn(path string, answer *api.Secret, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const longest = int(broker.UnrenewedLife / time.Second)
	if answer.Renewable && answer.LeaseDuration > 0 && answer.LeaseDuration <= longest {
		c.unrenewed[path] = min(answer.LeaseDuration+int((took+time.Second-1)/time.Second), longest)
	} else {
		delete(c.unrenewed, path)
	}
}

// lose forgets a carrier that Vault has refused. It reports whether the refusal is about the token: then Vault has not passed the call
// to the engine, and made nothing.
func (c *carriers) lose(policy, token string, err error) bool {
	if !denied(err) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPolicy[policy].token == token {
		delete(c.byPolicy, policy)
	}
	return true
}
