package safehttp

import "net/netip"

// Callable tells whether an address may be called when no private ones are open.
func Callable(addr netip.Addr) error { return callable(addr, nil) }
