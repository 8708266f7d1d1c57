#!/bin/sh
# Runs a program in podman, without a network, behind a gateway: podman.sh FOLDER PROGRAM [ARGUMENT...]
#
# FOLDER is that of a running gateway's socket: brevet egress --task TASK --listen none --socket FOLDER/egress.sock
# IMAGE names the image, PODMAN has podman with its global options, and OPTIONS are further options of podman run.
set -eu
folder=$1
shift
# shellcheck disable=SC2086 # words
exec ${PODMAN:-podman} run --rm --network none --cap-drop all --security-opt no-new-privileges ${OPTIONS:-} \
  -v "${BREVET:-$(command -v brevet)}":/run/brevet/bin:ro -v "$folder":/run/brevet/gateway:ro \
  "$IMAGE" /run/brevet/bin egress connect --socket /run/brevet/gateway/egress.sock -- "$@"
