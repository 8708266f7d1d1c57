#!/usr/bin/env bash
# Sees that the PostgreSQL server's programs are here, and with the argument "test" what the tests run besides: Node.js for an
# OpenID provider, nginx as a gateway, Chromium for the console's pages, and the programs that brevet exec gives credentials to.
# Debian and Ubuntu as root: installs them, without creating or starting a cluster or a service of its own. Elsewhere: says what to
# install.
set -euo pipefail

# need TEST WHAT HINT PACKAGE...: unless the test succeeds, installs the packages, or says the hint.
need() {
  local test=$1 what=$2 hint=$3
  shift 3
  if "$test"; then return; fi
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    echo "installing $what (apt) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  fi
  if ! "$test"; then
    echo "$hint" >&2
    exit 1
  fi
}

have_node() {
  command -v npm >/dev/null 2>&1 && node -e 'const [a, b] = process.versions.node.split(".").map(Number);
    process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

have_nginx() { command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]; }

have_chromium() {
  command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1
}

# What only tests on Linux run.
linux_programs() { if [ "$(uname)" = Linux ]; then echo ip:iproute2 pgrep:procps unshare:util-linux python3:python3 bwrap:bubblewrap runc:runc podman:podman; fi; }

# The program and the package that it is in.
missing_programs() {
  for pair in curl:curl git:git jq:jq openssl:openssl ssh:openssh-client kubectl:kubernetes-client gh:gh skopeo:skopeo $(linux_programs); do
    command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair##*:}"
  done
  python3 -c 'import boto3' 2>/dev/null || echo python3-boto3
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
}

have_programs() { [ -z "$(missing_programs)" ]; }

have_postgres() {
  command -v initdb >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# nginx is for its program alone: the service is masked before it is there, so that nothing starts it now or at boot.
mask_nginx() {
  if have_nginx || [ "$(id -u)" -ne 0 ]; then return; fi
  mkdir -p /etc/systemd/system
  [ -e /etc/systemd/system/nginx.service ] || ln -s /dev/null /etc/systemd/system/nginx.service
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
}

if [ "${1:-}" = test ]; then
  need have_node "Node.js" "The tests need Node.js 20.19 or newer with npm. Install it (https://nodejs.org), and run this again." nodejs npm
  mask_nginx
  need have_nginx "nginx" "The tests need nginx 1.19.4 or newer with its auth_request module. Install it, and run this again." nginx-light
  need have_chromium "Chromium" "The tests need Chromium for the console's pages. Install it, and run this again." chromium
  # shellcheck disable=SC2046 # one word for each package
  need have_programs "$(echo $(missing_programs))" "The tests need curl, git, jq, openssl, ssh, kubectl, gh, skopeo and Python 3 with boto3 and pip. Install what is missing, and run this again." $(missing_programs)
fi

if ! have_postgres && command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
fi
need have_postgres "PostgreSQL" "The PostgreSQL server's programs (initdb, postgres) are missing. Install the newest
minor release of PostgreSQL 14 or newer, for example with: brew install postgresql, or: dnf install postgresql-server, or on
Debian and Ubuntu: sudo make deps. Then run this again." postgresql
