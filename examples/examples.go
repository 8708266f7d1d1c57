// Package examples holds what a new user starts from: the catalogue that the dev stack seeds.
//
// It must never be what a deployment serves from: its trust domain is acme.example.
package examples

import "embed"

// Catalog is the example catalogue, in the folder catalog.
//
//go:embed catalog
var Catalog embed.FS
