package safehttp

import "net/netip"

// Callable returns an error unless an address may be called with no private networks allowed.
func Callable(addr netip.Addr) error { return callable(addr, nil) }
