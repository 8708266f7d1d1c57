# OpenBao for Brevet: TLS, one node, audited, unsealed by a key in a file.

api_addr     = "https://openbao:8200"
cluster_addr = "https://openbao:8201"
ui           = false

storage "raft" {
  path    = "/openbao/file"
  node_id = "openbao-1"
}

listener "tcp" {
  address         = "0.0.0.0:8200"
  tls_cert_file   = "/etc/openbao/tls.pem"
  tls_key_file    = "/run/secrets/openbao-key"
  tls_min_version = "tls13"
}

# Whoever has this key and the volume can read everything in it. docs/deploy.md says how to use a KMS instead.
seal "static" {
  current_key_id = "1"
  current_key    = "file:///run/secrets/openbao-seal-key"
}

audit "file" "stdout" {
  description = "Every request, with secrets as HMACs, in the container's log."
  options {
    file_path = "stdout"
  }
}

# What follows happens once, at the first start on an empty volume, by a root token that is revoked right after.

# For `brevet bootstrap`. Writing policies and roles amounts to being an admin, so its token lives for one hour.
initialize "bootstrap" {
  request "policy" {
    operation = "update"
    path      = "sys/policies/acl/brevet-bootstrap"
    data = {
      policy = <<-EOT
        path "sys/mounts/transit" { capabilities = ["create", "update"] }
        path "transit/keys/brevet" { capabilities = ["create", "update", "read"] }
        path "transit/keys/brevet-eddsa" { capabilities = ["create", "update", "read"] }
        path "transit/keys/brevet-rs256" { capabilities = ["create", "update", "read"] }
        path "transit/keys/brevet-log" { capabilities = ["create", "update", "read"] }
        path "sys/mounts/brevet-github" { capabilities = ["create", "update"] }
        path "sys/mounts/brevet-github-tokens" { capabilities = ["create", "update"] }
        path "brevet-github/wrapping_key" { capabilities = ["read"] }
        path "brevet-github/keys/*" { capabilities = ["create", "update", "read"] }
        path "sys/auth/approle" { capabilities = ["create", "update", "sudo"] }
        path "sys/policies/acl/brevet" { capabilities = ["create", "read", "update"] }
        path "sys/policies/acl/brevet-scope.*" { capabilities = ["create", "update"] }
        path "auth/token/create" { capabilities = ["update"] }
        path "auth/token/roles/brevet" { capabilities = ["create", "update"] }
        path "auth/approle/role/brevet" { capabilities = ["create", "update"] }
        path "auth/approle/role/brevet/role-id" { capabilities = ["read"] }
        path "auth/approle/role/brevet/secret-id" { capabilities = ["create", "update", "list"] }
        path "auth/approle/role/brevet/secret-id-accessor/destroy" { capabilities = ["create", "update"] }
      EOT
    }
  }
  request "token" {
    operation = "update"
    path      = "auth/token/create-orphan"
    data = {
      id = {
        eval_source = "file"
        eval_type   = "string"
        path        = "/run/secrets/openbao-bootstrap-token"
      }
      display_name     = "brevet-bootstrap"
      policies         = ["brevet-bootstrap"]
      ttl              = "1h"
      explicit_max_ttl = "1h"
      renewable        = false
    }
  }
}

# For people: no root token and no recovery keys are left behind, so this is the only way in later.
initialize "operator" {
  request "policy" {
    operation = "update"
    path      = "sys/policies/acl/operator"
    data = {
      policy = <<-EOT
        path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }
      EOT
    }
  }
  request "userpass" {
    operation = "update"
    path      = "sys/auth/userpass"
    data = {
      type = "userpass"
    }
  }
  request "user" {
    operation = "update"
    path      = "auth/userpass/users/operator"
    data = {
      password = {
        eval_source = "file"
        eval_type   = "string"
        path        = "/run/secrets/openbao-operator-password"
      }
      token_policies = ["operator"]
      token_ttl      = "15m"
      token_max_ttl  = "1h"
    }
  }
}
