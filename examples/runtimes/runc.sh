#!/bin/sh
# Runs a program in runc, without a network, behind a gateway: runc.sh FOLDER PROGRAM [ARGUMENT...]
#
# FOLDER is that of a running gateway's socket: brevet egress --task TASK --listen none --socket FOLDER/egress.sock
# The container sees the host's /usr, read-only. It needs root, jq and runc, or another OCI runtime that RUNTIME names with its
# global options.
set -eu
folder=$1
shift
runtime=${RUNTIME:-runc}
brevet=${BREVET:-$(command -v brevet)}
bundle=$(mktemp -d)
trap 'rm -rf "$bundle"' EXIT
mkdir -p "$bundle/rootfs/usr" "$bundle/rootfs/etc" "$bundle/rootfs/run/brevet" "$bundle/rootfs/tmp"
for dir in bin lib lib64; do ln -s "usr/$dir" "$bundle/rootfs/$dir"; done
# shellcheck disable=SC2086 # words
$runtime spec --bundle "$bundle"
# The namespaces of the runtime's spec have a network of their own, which nothing connects.
words='[]'
for word in "$@"; do words=$(jq -cn --argjson words "$words" --arg word "$word" '$words + [$word]'); done
jq --argjson words "$words" --arg brevet "$brevet" --arg folder "$folder" '
  .process.terminal = false
  | .process.args = ["/run/brevet/bin", "egress", "connect", "--socket", "/run/brevet/gateway/egress.sock", "--"] + $words
  | .process.env = ["PATH=/usr/bin:/bin", "HOME=/tmp"]
  | .process.capabilities = {}
  | .process.noNewPrivileges = true
  | .mounts += [
      {destination: "/usr", type: "none", source: "/usr", options: ["rbind", "ro"]},
      {destination: "/etc/alternatives", type: "none", source: "/etc/alternatives", options: ["rbind", "ro"]},
      {destination: "/tmp", type: "tmpfs", source: "tmpfs", options: ["nosuid", "nodev"]},
      {destination: "/run/brevet/bin", type: "none", source: $brevet, options: ["bind", "ro"]},
      {destination: "/run/brevet/gateway", type: "none", source: $folder, options: ["bind", "ro"]}
    ]' "$bundle/config.json" >"$bundle/new.json"
mv "$bundle/new.json" "$bundle/config.json"
# The relay keeps the sandbox from your files, your terminal and your session.
# shellcheck disable=SC2086 # words
"$brevet" egress relay -- $runtime run --bundle "$bundle" "brevet-$$"
