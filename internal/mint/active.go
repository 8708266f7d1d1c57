package mint

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/hashicorp/vault/api"
	"golang.org/x/sync/singleflight"
)

// A standby of OpenBao 2.5 and later, and a performance standby of Vault Enterprise, answers what it can from its own storage, which
// lags. It says that a new token does not exist, and that there is nothing to revoke. So a "no" counts only if it comes from the active
// node.
//
// A call with a token of limited uses costs a write, because Vault counts the use first. Only the active node can write, so every standby
// passes such a call on, and a node that has lost its leadership without knowing cannot answer it.
const (
	// activeUses and activeLife are the limits of such a token. policy.hcl allows no others.
	activeUses = 1000
	// spareUses are left when another token takes over. Vault revokes a token at its last use, and then returns no lease.
	spareUses  = 100
	activeLife = 10 * time.Minute
	// answerFor is for how long Vault's answer holds whether it has standbys.
	answerFor = time.Minute
	// noAnswerFor is for how long Vault counts as having standbys if it has not answered.
	noAnswerFor = time.Second
	// freshFor is for how long after its creation a token may be unknown to a standby.
	freshFor = 5 * time.Second
)

// freshPauses are the pauses between the attempts with a token that a standby may not know yet, in milliseconds.
var freshPauses = []time.Duration{50, 100, 200, 300, 400, 500, 500, 500}

// active is how the minter reaches the active node.
type active struct {
	// single and several are until when Vault has no standbys, or has some, in nanoseconds since 1970.
	single, several atomic.Int64
	// doubtful is set if Vault has sent a call elsewhere, or failed at it: then there may be no active node.
	doubtful atomic.Bool
	// asking merges equal calls that are for all callers: each caller waits for as long as its own call may take.
	asking singleflight.Group

	mu    sync.Mutex
	token string
	made  time.Time
	uses  int // until another one takes over
}

// hasStandbys reports whether Vault may have standbys. It asks Vault once a minute, and a second after no answer.
func (m *Minter) hasStandbys(ctx context.Context) bool {
	now := m.cfg.Now().UnixNano()
	if single := now < m.active.single.Load(); single || now < m.active.several.Load() {
		return !single
	}
	answer := m.active.asking.DoChan("standbys", func() (any, error) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Timeout)
		defer cancel()
		have, err := haveStandbys(bounded, m.childClient)
		switch now := m.cfg.Now(); {
		case err != nil:
			m.active.several.Store(now.Add(noAnswerFor).UnixNano())
		case have:
			m.active.several.Store(now.Add(answerFor).UnixNano())
		default:
			m.active.single.Store(now.Add(answerFor).UnixNano())
		}
		return err != nil || have, nil
	})
	select {
	case got := <-answer:
		return got.Val != false
	case <-ctx.Done():
		return true
	}
}

// haveStandbys asks Vault whether it has standbys.
func haveStandbys(ctx context.Context, client *api.Client) (bool, error) {
	client = client.WithRequestCallbacks(func(r *api.Request) {
		r.Headers.Del(api.NamespaceHeaderName) // no namespace has this path
		r.ClientToken = ""
	})
	answer, err := client.Logical().ReadRawWithContext(ctx, "sys/leader")
	if err != nil {
		return false, err
	}
	defer func() { _ = answer.Body.Close() }()
	var leader struct {
		HA *bool `json:"ha_enabled"`
	}
	if json.NewDecoder(answer.Body).Decode(&leader) != nil || leader.HA == nil {
		return false, errNotUnderstood
	}
	return *leader.HA, nil
}

// atActive makes one call with the broker's rights, which the active node answers.
func (m *Minter) atActive(
	ctx context.Context, doing string, do func(context.Context, *api.Client) (*api.Secret, error),
) (*api.Secret, error) {
	if !m.hasStandbys(ctx) {
		return m.exchange(ctx, doing, m.own(), func(ctx context.Context) (*api.Secret, error) { return do(ctx, m.client) })
	}
	for {
		token, made, err := m.active.take(ctx, m)
		if err != nil {
			return nil, err
		}
		client := m.childClient.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = token })
		answer, err := m.exchange(ctx, doing, bearer{limitedToken, made}, func(ctx context.Context) (*api.Secret, error) {
			return do(ctx, client)
		})
		if !denied(err) || !m.active.lose(token, made, m.cfg.Now()) {
			return answer, err
		}
	}
}

// take returns a token of limited uses for one call.
func (a *active) take(ctx context.Context, m *Minter) (token string, made time.Time, err error) {
	const doing = "creating a token for the active node"
	for {
		if token, made := a.use(m.cfg.Now()); token != "" {
			return token, made, nil
		}
		// The token is for others too, so it does not depend on the caller.
		answer := a.asking.DoChan("token", func() (any, error) { return nil, a.renew(context.WithoutCancel(ctx), m, doing) })
		select {
		case got := <-answer:
			if got.Err != nil {
				return "", time.Time{}, got.Err
			}
		case <-ctx.Done():
			return "", time.Time{}, unavailable(doing, ctx.Err())
		}
	}
}

// use counts one use of the token. It returns "" if another token has to take over.
func (a *active) use(now time.Time) (token string, made time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uses == 0 || now.Sub(a.made) > activeLife/2 {
		return "", time.Time{}
	}
	a.uses--
	return a.token, a.made
}

// renew makes another token.
func (a *active) renew(ctx context.Context, m *Minter, doing string) error {
	now, life := m.cfg.Now(), seconds(int(activeLife/time.Second))
	answer, err := m.exchange(ctx, doing, m.own(), func(ctx context.Context) (*api.Secret, error) {
		return m.client.Logical().WriteWithContext(ctx, "auth/token/create", map[string]any{
			"num_uses": strconv.Itoa(activeUses), "ttl": life, "explicit_max_ttl": life,
			"renewable": false, "no_default_policy": true, "display_name": "brevet-active",
		})
	})
	if err != nil {
		return err
	}
	if answer == nil || answer.Auth == nil || answer.Auth.ClientToken == "" {
		return unavailable(doing, errNotUnderstood)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.made, a.uses = answer.Auth.ClientToken, now, activeUses-spareUses
	return nil
}

// lose forgets a token that Vault has refused. It reports whether another one can help.
func (a *active) lose(token string, made, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token == token {
		a.token, a.uses = "", 0
	}
	return now.Sub(made) >= freshFor
}

// denied reports whether Vault has refused the token of a call. Then Vault has done nothing.
func denied(err error) bool {
	return statusOf(err) == http.StatusForbidden && says(err, "permission denied")
}

// patiently repeats a call while Vault refuses its token, if a standby may not know the token yet: no longer than freshFor after
// the token's creation.
func (m *Minter) patiently(ctx context.Context, since time.Time, do func() error) error {
	err := do()
	for _, pause := range freshPauses {
		if !denied(err) || m.cfg.Now().Sub(since) >= freshFor || !m.hasStandbys(ctx) || !wait.For(ctx, pause*time.Millisecond) {
			break
		}
		err = do()
	}
	return err
}

// certain returns an error if Vault has no active node that can mint. It asks only if a call has failed since the last success. During
// an election a standby answers with a redirect, also after it has passed the call on, so that a mint that gets one may have been
// carried out. A mint that is not sent cannot be.
func (m *Minter) certain(ctx context.Context) error {
	if !m.active.doubtful.Load() || !m.hasStandbys(ctx) {
		return nil
	}
	_, err := m.atActive(ctx, "looking for the active node", func(ctx context.Context, client *api.Client) (*api.Secret, error) {
		return client.Logical().ReadWithContext(ctx, "auth/token/lookup-self")
	})
	if err == nil {
		m.active.doubtful.Store(false)
	}
	return err
}
