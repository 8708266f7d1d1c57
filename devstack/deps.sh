#!/usr/bin/env bash
# Sees that the PostgreSQL server's programs are here. Debian and Ubuntu as root: installs them, without creating
# or starting a cluster of its own. Elsewhere: says what to install.
set -euo pipefail

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
