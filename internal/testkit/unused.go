package testkit

import "github.com/brevet-dev/brevet/broker"

// Unused stands for the ports of a broker that a test does not use. Every call of it panics.
type Unused struct {
	broker.EventFeed
	broker.Usage
	broker.Stats
	broker.Tokens
	broker.Signer
	broker.DPoPReplayCache
	broker.Catalogues
	passkeys
}

// passkeys has another name than its method Passkeys.
type passkeys = broker.Passkeys
