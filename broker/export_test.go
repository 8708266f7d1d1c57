package broker

// Next is the state machine of what waits for people, for tests of what it says without a ledger.
func (e Electorate) Next(c *Case, v Vote) (Status, error) { return e.next(c, v) }
