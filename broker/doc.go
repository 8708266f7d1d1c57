// Package broker is the heart of Brevet: it takes a sandbox's request through decision, record and mint,
// in that order, and owns the words and the ports that the other packages implement.
//
// It must never let a credential out before its record is durable, never mint what policy did not permit,
// and never treat an error or an unknown as a yes.
package broker
