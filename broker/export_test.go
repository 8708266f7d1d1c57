package broker

import "time"

// Places assigns places in status lists.
type Places struct{ places }

// Take returns the list and the index for the next token of a trust domain.
func (p *Places) Take(trustDomain string, now time.Time) (string, int, error) {
	in, err := p.take(trustDomain, now)
	return in.list, in.index, err
}
