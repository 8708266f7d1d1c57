package scopes

import "time"

// Assess is Decide for a request whose keys are not available: a recorded request, an example, or a person's what-if
// question. If the scope certifies the caller's key, or binds its token to one, Assess assumes that a suitable key was
// sent. Its Grant is nil, so nothing can be minted from the result.
func (c *Catalogue) Assess(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judge)
}

// AssessApproved is Assess for a request that people have approved, as DecideApproved is Decide.
func (c *Catalogue) AssessApproved(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judgeApproved)
}

func (c *Catalogue) assess(who Subject, ask Ask, now time.Time, judge judge) (Decision, error) {
	sent := c.takenForSent(ask.Scope)
	ask.CSR, ask.PublicKey = "", ""
	if def, ok := c.scopes[ask.Scope]; ok && def.scope.Credential.Bind == BindDPoP {
		who.Proved = true
	}
	d, err := c.answer(who, ask, sent, now, judge)
	d.Grant = nil
	return d, err
}

// takenForSent returns the keys that a request for a scope would carry.
func (c *Catalogue) takenForSent(scope string) keyProofs {
	sent := newKeyProofs(Ask{})
	if def, ok := c.scopes[scope]; ok {
		sent.csr, sent.publicKey = def.scope.Credential.certifies()
	}
	return sent
}
