package upgrade_test

import (
	"testing"

	"github.com/brevet-dev/brevet/client"
)

// crossing is work that begins at one replica and continues at the other, and work that one step leaves to the next. Whatever
// their versions, each replica has to continue what the other has begun.
type crossing struct {
	*world
	tokens   []*client.Token // not ended yet
	waiting  []string        // requests without a vote
	approved []string        // requests that are not redeemed
}

// cross lets each replica continue what the other one begins, and what earlier steps left.
func (c *crossing) cross(t *testing.T) error {
	t.Helper()
	var at [2]*party
	for i := range at {
		sandbox, err := c.proved("spiffe://acme.test/agents/crossing", c.direct(i))
		if err != nil {
			return err
		}
		at[i] = c.party(t, sandbox, c.direct(i))
	}
	for _, pair := range [][2]*party{{at[0], at[1]}, {at[1], at[0]}} {
		here, there := pair[0], pair[1]
		for _, cross := range []func(here, there *party) error{c.end, c.login, c.approval, c.goOn, c.leave} {
			if err := cross(here, there); err != nil {
				return err
			}
		}
	}
	return nil
}

// seen checks that replicas report a token as active or not.
func seen(token *client.Token, want bool, by ...*party) error {
	for _, p := range by {
		if err := p.introspect(token, want); err != nil {
			return err
		}
	}
	return nil
}

// end revokes at one replica a token that the other issued.
func (c *crossing) end(here, there *party) error {
	token, err := here.ask("issued", "git.issues.read")
	if err == nil {
		err = seen(token, true, there, here)
	}
	if err == nil {
		err = there.revoke(token)
	}
	if err == nil {
		err = seen(token, false, here, there)
	}
	return err
}

// login releases at one replica a login that the other issued.
func (c *crossing) login(here, there *party) error {
	token, err := here.ask("logins", "shop.orders.read")
	if err == nil {
		err = here.opening(token, true)
	}
	if err == nil {
		err = there.release(token)
	}
	if err == nil {
		err = here.opening(token, false)
	}
	return err
}

// approval approves at one replica a request that was made at the other, where it is then redeemed.
func (c *crossing) approval(here, there *party) error {
	id, err := here.request()
	if err == nil {
		err = there.vote(id)
	}
	if err != nil {
		return err
	}
	token, err := here.redeem(id)
	if err == nil {
		err = seen(token, true, there, here)
	}
	return err
}

// goOn checks that what earlier steps left is unchanged, and ends it, votes on it and redeems it.
func (c *crossing) goOn(here, there *party) error {
	for _, token := range c.tokens {
		if err := seen(token, true, here, there); err != nil {
			return err
		}
	}
	if len(c.tokens) > 0 {
		oldest := c.tokens[0]
		c.tokens = c.tokens[1:]
		if err := there.revoke(oldest); err != nil {
			return err
		}
		if err := seen(oldest, false, here, there); err != nil {
			return err
		}
	}
	if len(c.approved) > 0 {
		token, err := here.redeem(c.approved[0])
		if err == nil {
			err = seen(token, true, there)
		}
		if err != nil {
			return err
		}
		c.approved = c.approved[1:]
	}
	if len(c.waiting) > 0 {
		if err := there.vote(c.waiting[0]); err != nil {
			return err
		}
		c.approved, c.waiting = append(c.approved, c.waiting[0]), c.waiting[1:]
	}
	return nil
}

// leave begins the work that the next steps continue.
func (c *crossing) leave(here, _ *party) error {
	for range 2 {
		token, err := here.ask("issued", "git.issues.read")
		if err != nil {
			return err
		}
		c.tokens = append(c.tokens, token)
	}
	id, err := here.request()
	if err == nil {
		c.waiting = append(c.waiting, id)
	}
	return err
}
