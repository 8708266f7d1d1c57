#!/bin/sh
# Runs a program in gVisor, without a network, behind a gateway: gvisor.sh FOLDER PROGRAM [ARGUMENT...]
#
# FOLDER is that of a running gateway's socket: brevet egress --task TASK --listen none --socket FOLDER/egress.sock
# gVisor opens the socket for the sandbox, which nothing else in the host's file system allows. The sandbox sees the host's files;
# its changes are lost.
set -eu
folder=$1
shift
exec "${RUNSC:-runsc}" --network=none --host-uds=open do -- \
  "${BREVET:-$(command -v brevet)}" egress connect --socket "$folder/egress.sock" -- "$@"
