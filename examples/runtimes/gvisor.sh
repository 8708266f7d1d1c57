#!/bin/sh
# Runs a program in gVisor, without a network, behind a gateway: gvisor.sh FOLDER PROGRAM [ARGUMENT...]
#
# FOLDER is that of a running gateway's socket: brevet egress --task TASK --listen none --socket FOLDER/egress.sock
# With --host-uds=open, gVisor opens each Unix socket of the host that the sandbox sees. So the container sees only FOLDER and /usr:
# "runsc do" would show it the whole host, with the sockets of the Workload API and of Docker. It needs root, jq and runsc.
set -eu
export RUNTIME="${RUNSC:-runsc} --network=none --host-uds=open"
exec "$(dirname "$0")/runc.sh" "$@"
