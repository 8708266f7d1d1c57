// Package broker turns a sandbox's request into a credential: it decides, commits a record and mints, in that order. It also
// defines the types and the interfaces that the other packages implement.
//
// It must never release a credential before its record is durable, never mint what policy did not permit, and never treat an
// error or an unknown result as an approval.
package broker
