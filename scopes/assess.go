package scopes

import "time"

// Assess is Decide for asks whose keys are not at hand: recorded ones, examples, and those that a person only wonders
// about. When the scope certifies a key of the caller's, or binds its token to one, one that fits is taken for sent. Nothing can be minted by the
// answer: its Grant is nil.
func (c *Catalogue) Assess(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judge)
}

// AssessApproved is Assess for an ask that people have approved, as DecideApproved is Decide.
func (c *Catalogue) AssessApproved(who Subject, ask Ask, now time.Time) (Decision, error) {
	return c.assess(who, ask, now, c.judgeApproved)
}

func (c *Catalogue) assess(who Subject, ask Ask, now time.Time, judge judge) (Decision, error) {
	sent := c.takenForSent(ask.Scope)
	ask.CSR, ask.PublicKey = "", ""
	if def, ok := c.scopes[ask.Scope]; ok && def.scope.Credential.Bind == BindDPoP {
		who.Proved = true
	}
	d, err := c.decide(who, ask, sent, now, judge)
	if err != nil {
		return Decision{}, err
	}
	var then Outcome
	if d.Outcome == Deny {
		d.Narrowest, then = c.narrowest(ask, d, func(candidate Ask) (Decision, error) {
			return c.decide(who, candidate, sent, now, judge)
		})
	}
	d.Grant, d.Explanation = nil, explain(ask, d, then)
	return d, nil
}

// takenForSent says which key would come with an ask for a scope.
func (c *Catalogue) takenForSent(scope string) keyProofs {
	sent := newKeyProofs(Ask{})
	if def, ok := c.scopes[scope]; ok {
		sent.csr, sent.publicKey = def.scope.Credential.certifies()
	}
	return sent
}
