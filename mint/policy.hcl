# What the broker may do in Vault: sign with one key, in one form, see that key's public half, and look after
# its own token. Every path is exact.

path "{{mount}}/sign/{{key}}" {
  capabilities = ["update"]
  allowed_parameters = {
    "input"                = []
    "key_version"          = []
    "marshaling_algorithm" = ["jws"]
    "prehashed"            = []
  }
}

path "{{mount}}/keys/{{key}}" {
  capabilities = ["read"]
}

path "auth/token/lookup-self" {
  capabilities = ["read"]
}

path "auth/token/renew-self" {
  capabilities = ["update"]
}
