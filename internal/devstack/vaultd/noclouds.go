//go:build !clouds

package main

import "github.com/hashicorp/vault/sdk/logical"

// cloudEngines are built with the tag clouds.
var cloudEngines map[string]logical.Factory
