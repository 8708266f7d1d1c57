package broker

import "time"

// Next is the state machine of what waits for people, for tests of what it says without a ledger.
func (e Electorate) Next(c *Case, v Vote) (Status, error) { return e.next(c, v) }

// Places gives out places in status lists.
type Places struct{ places }

// Take is the list and the place of the next token of a trust domain.
func (p *Places) Take(trustDomain string, now time.Time) (string, int, error) {
	in, err := p.take(trustDomain, now)
	return in.list, in.index, err
}
