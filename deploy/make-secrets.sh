#!/bin/sh
# Makes the passwords, keys and certificates of docker-compose.yml, each where it is missing. Prints no secret.
#   deploy/make-secrets.sh [FOLDER]      default: deploy/secrets
#
# The folder is 0700: nobody else on the host gets past it. The files in it that containers mount are 0644, because a
# mounted file keeps its mode and each container runs as a user of its own; it sees only the files that it is given.
# The keys of the certificate authorities are mounted nowhere (except SPIRE's root) and are 0600.
set -eu
umask 077

command -v openssl >/dev/null || { echo "make-secrets: openssl is needed; install it and run this again" >&2; exit 1; }
dir=${1:-$(cd "$(dirname "$0")" && pwd)/secrets}
mkdir -p "$dir"
chmod 0700 "$dir"
cd "$dir"
work=$(mktemp -d ./.work.XXXXXX)
trap 'rm -rf "$work"' EXIT

say() { echo "made $1" >&2; }

# keep FILE MODE: moves a finished file into place, so that an interrupted run leaves no half of one.
keep() { chmod "$2" "$work/$1" && mv -f "$work/$1" "$1" && say "$1"; }

# random FILE: 256 bits as hex, without a line end: OpenBao would take it as part of the secret.
random() {
  [ -e "$1" ] && return
  openssl rand -hex 32 | tr -d '\n' >"$work/$1"
  keep "$1" 0644
}

# url FILE USER PASSWORD-FILE
url() {
  [ -e "$1" ] && return
  printf 'postgres://%s:%s@postgres:5432/brevet?sslmode=verify-full&sslrootcert=/etc/brevet/ca.pem' \
    "$2" "$(cat "$3")" >"$work/$1"
  keep "$1" 0644
}

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/$1" 2>/dev/null; }

# authority NAME KEY-MODE TITLE: a certificate authority for ten years.
authority() {
  [ -e "$1.pem" ] && return
  key "$1-key"
  printf '[req]\nprompt=no\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\nCN=%s\n[ext]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n' \
    "$3" >"$work/cnf"
  openssl req -x509 -new -sha256 -days 3650 -key "$work/$1-key" -config "$work/cnf" -out "$work/$1.pem"
  keep "$1-key" "$2"
  keep "$1.pem" 0644
}

# leaf NAME AUTHORITY CN EXTENSIONS: a certificate for 397 days, signed by an authority made above.
leaf() {
  [ -e "$1.pem" ] && return
  key "$1-key"
  printf '[req]\nprompt=no\ndistinguished_name=dn\n[dn]\nCN=%s\n' "$3" >"$work/cnf"
  printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n%b' "$4" >"$work/ext"
  openssl req -new -sha256 -key "$work/$1-key" -config "$work/cnf" -out "$work/csr"
  openssl x509 -req -sha256 -days 397 -in "$work/csr" -CA "$2.pem" -CAkey "$2-key" -set_serial "0x$(openssl rand -hex 16)" \
    -extfile "$work/ext" -out "$work/$1.pem" 2>/dev/null
  keep "$1-key" 0644
  keep "$1.pem" 0644
}

random postgres-owner-password
random database-broker-password
random database-auditor-password
random openbao-seal-key
random openbao-bootstrap-token
random openbao-operator-password

url database-owner-url brevet_owner postgres-owner-password
url database-broker-url brevet database-broker-password

# Three authorities, so that none can speak for another: servers of this deployment, SPIRE's root, SPIRE's nodes.
authority ca 0600 'Brevet deployment servers'
authority spire-root 0644 'SPIRE root'
authority spire-nodes 0600 'SPIRE nodes'

leaf postgres ca postgres 'extendedKeyUsage=serverAuth\nsubjectAltName=DNS:postgres\n'
leaf openbao ca openbao 'extendedKeyUsage=serverAuth\nsubjectAltName=DNS:openbao,DNS:localhost,IP:127.0.0.1\n'
leaf spire-agent spire-nodes compose-host 'extendedKeyUsage=clientAuth\n'

echo "secrets are in $dir" >&2
