//go:build clouds

package main

import (
	kubernetes "github.com/hashicorp/vault-plugin-secrets-kubernetes"
	"github.com/hashicorp/vault/builtin/logical/aws"
	"github.com/hashicorp/vault/sdk/logical"
)

// cloudEngines are built only for tests: the clients of AWS and Kubernetes are 346 packages, which the first demo on a machine would
// otherwise wait for.
var cloudEngines = map[string]logical.Factory{"aws": aws.Factory, "kubernetes": kubernetes.Factory}
