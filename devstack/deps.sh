#!/usr/bin/env bash
# Sees that the PostgreSQL server's programs are here, and with the argument "test" what the tests run besides: Node.js for an
# OpenID provider, nginx as a gateway, Chromium for the pages, and the programs that brevet exec gives credentials to. Debian and Ubuntu as root: installs them, without creating or starting a cluster
# or a service of its own. Elsewhere: says what to install.
set -euo pipefail

have_node() {
  command -v npm >/dev/null 2>&1 && node -e 'const [a, b] = process.versions.node.split(".").map(Number);
    process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

if [ "${1:-}" = test ] && ! have_node; then
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    echo "installing Node.js (apt) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
  fi
  if ! have_node; then
    echo "The tests need Node.js 20.19 or newer with npm. Install it (https://nodejs.org), and run this again." >&2
    exit 1
  fi
fi

have_nginx() { command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]; }

if [ "${1:-}" = test ] && ! have_nginx; then
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    echo "installing nginx (apt) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    # For its program alone: the service is masked before it is there, so that nothing starts it now or at boot.
    mkdir -p /etc/systemd/system
    [ -e /etc/systemd/system/nginx.service ] || ln -s /dev/null /etc/systemd/system/nginx.service
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
      trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends nginx-light >/dev/null
  fi
  if ! have_nginx; then
    echo "The tests need nginx 1.19.4 or newer with its auth_request module. Install it, and run this again." >&2
    exit 1
  fi
fi

# The program and the package that it is in.
missing_programs() {
  for pair in curl:curl git:git ssh:openssh-client kubectl:kubernetes-client; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair##*:}"
  done
}

if [ "${1:-}" = test ] && [ -n "$(missing_programs)" ]; then
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    echo "installing" $(missing_programs) "(apt) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2046 # one word for each package
    apt-get install -y -qq --no-install-recommends $(missing_programs) >/dev/null
  fi
  if [ -n "$(missing_programs)" ]; then
    echo "The tests need curl, git, ssh and kubectl. Install what is missing, and run this again." >&2
    exit 1
  fi
fi

have_chromium() {
  command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1
}

if [ "${1:-}" = test ] && ! have_chromium; then
  if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
    echo "installing Chromium (apt) ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium >/dev/null
  fi
  if ! have_chromium; then
    echo "The tests need Chromium for the console's pages. Install it, and run this again." >&2
    exit 1
  fi
fi

have_postgres() {
  command -v initdb >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

if have_postgres; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "The PostgreSQL server's programs (initdb, postgres) are missing. Install PostgreSQL 14 or newer, for" >&2
  echo "example with: brew install postgresql, or: dnf install postgresql-server. Then run this again." >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "The PostgreSQL server's programs (initdb, postgres) are missing. Run: sudo make deps" >&2
  exit 1
fi
echo "installing PostgreSQL (apt) ..." >&2
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends postgresql >/dev/null
have_postgres || { echo "apt installed postgresql, but initdb is still not to be found" >&2; exit 1; }
