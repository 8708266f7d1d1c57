// Package openapi holds the description of the HTTP interface, openapi.yaml, and the types generated from it.
// Servers and clients share it.
//
// It must never hold anything that the description does not say, and never import a server or a router: a
// client links it.
package openapi

import _ "embed"

//go:generate ./generate.sh

// Spec is the description, as served.
//
//go:embed openapi.yaml
var Spec []byte

// problemBase is the start of every problem's type URI. Clients compare these: never change it.
const problemBase = "https://brevet.dev/problems/"

// Type is the problem type URI of RFC 9457 for this code.
func (c ProblemCode) Type() string { return problemBase + string(c) }
