#!/bin/sh
# Runs a program in bubblewrap, without a network, behind a gateway: bubblewrap.sh FOLDER PROGRAM [ARGUMENT...]
#
# FOLDER is that of a running gateway's socket: brevet egress --task TASK --listen none --socket FOLDER/egress.sock
set -eu
folder=$1
shift
brevet=${BREVET:-$(command -v brevet)}
# The relay keeps the sandbox from your files, your terminal and your session. The environment of the first process is readable inside.
exec env -i PATH="$PATH" "$brevet" egress relay -- \
  bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --clearenv \
  --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
  --ro-bind-try /etc/alternatives /etc/alternatives --ro-bind-try /etc/ssl /etc/ssl \
  --proc /proc --dev /dev --tmpfs /tmp --setenv PATH /usr/bin:/bin --setenv HOME /tmp --chdir /tmp \
  --ro-bind "$brevet" /run/brevet/bin --ro-bind "$folder" /run/brevet/gateway \
  -- /run/brevet/bin egress connect --socket /run/brevet/gateway/egress.sock -- "$@"
