package broker

import "sync/atomic"

// Order is the right to mint one credential. Only this package makes one, after the intent is durable,
// and it can be redeemed once.
type Order struct {
	intent Intent
	key    Key
	spent  atomic.Bool
}

// Spend spends the order and returns what to mint. A second call returns ErrOrderSpent.
func (o *Order) Spend() (Intent, Key, error) {
	if o.spent.Swap(true) {
		return Intent{}, Key{}, ErrOrderSpent
	}
	return o.intent, o.key, nil
}
