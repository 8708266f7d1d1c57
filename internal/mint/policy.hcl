# What the broker may do in Vault: sign tokens with three keys and checkpoints of the ledger with another, each in one form, read their
# public halves, renew its own token, create tokens of one role (its policies and lifetime are set in bootstrap.go), and look up, renew
# and end what it knows the accessor or lease of. Every path is exact.

path "{{mount}}/sign/{{key}}" {
  capabilities = ["update"]
  allowed_parameters = {
    "batch_input"          = []
    "key_version"          = []
    "marshaling_algorithm" = ["jws"]
    "prehashed"            = [true]
  }
}

path "{{mount}}/keys/{{key}}" {
  capabilities = ["read"]
}

path "{{mount}}/sign/{{key}}-eddsa" {
  capabilities = ["update"]
  allowed_parameters = {
    "batch_input"          = []
    "key_version"          = []
    "marshaling_algorithm" = ["jws"]
    "prehashed"            = [false]
  }
}

path "{{mount}}/keys/{{key}}-eddsa" {
  capabilities = ["read"]
}

path "{{mount}}/sign/{{key}}-rs256" {
  capabilities = ["update"]
  allowed_parameters = {
    "batch_input"          = []
    "key_version"          = []
    "marshaling_algorithm" = ["jws"]
    "prehashed"            = [true]
    "signature_algorithm"  = ["pkcs1v15"]
    "hash_algorithm"       = ["sha2-256"]
  }
}

path "{{mount}}/keys/{{key}}-rs256" {
  capabilities = ["read"]
}

path "{{mount}}/sign/{{key}}-log" {
  capabilities = ["update"]
  allowed_parameters = {
    "batch_input"          = []
    "key_version"          = []
    "marshaling_algorithm" = ["jws"]
    "prehashed"            = []
  }
}

path "{{mount}}/keys/{{key}}-log" {
  capabilities = ["read"]
}

path "auth/token/lookup-self" {
  capabilities = ["read"]
}

path "auth/token/renew-self" {
  capabilities = ["update"]
}

path "auth/token/create/{{token_role}}" {
  capabilities = ["update"]
  allowed_parameters = {
    "policies"          = []
    "no_default_policy" = [true]
    "display_name"      = []
    "meta"              = []
    "ttl"               = []
    "explicit_max_ttl"  = []
    "renewable"         = []
    "num_uses"          = []
  }
  required_parameters = ["policies", "explicit_max_ttl"]
}

# A token for calls that only the active node may answer. It ends with the broker's own.
path "auth/token/create" {
  capabilities = ["update"]
  allowed_parameters = {
    "num_uses"          = ["1000"]
    "ttl"               = ["600s"]
    "explicit_max_ttl"  = ["600s"]
    "renewable"         = [false]
    "no_default_policy" = [true]
    "display_name"      = ["brevet-active"]
  }
  required_parameters = ["num_uses", "explicit_max_ttl", "no_default_policy"]
}

path "auth/token/renew-accessor" {
  capabilities = ["update"]
}

path "auth/token/revoke-accessor" {
  capabilities = ["update"]
}

path "auth/token/lookup-accessor" {
  capabilities = ["update"]
}

# The tokens of GitHub that are to be revoked. The engine is mounted if a scope issues such tokens.
path "brevet-github-tokens/+" {
  capabilities = ["create", "update", "read", "delete"]
}

# What of the above is missing.
path "sys/capabilities-self" {
  capabilities = ["update"]
}

path "sys/leases/renew" {
  capabilities = ["update"]
}

path "sys/leases/revoke" {
  capabilities = ["update"]
}

path "sys/leases/lookup" {
  capabilities = ["update"]
}
