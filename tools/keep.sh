#!/usr/bin/env bash
# Passes on what a suite prints, and keeps the line that it ends with, "N passed, N failed", in a file that has one line a suite:
#   make hostile | tools/keep.sh hostile docs/results.txt
# The output has to be of the commit that is checked out: what differs from it, other than what suites write, is told as dirty.
set -euo pipefail
suite=$1 file=$2
ended=$(tee /dev/stderr | grep -Eo '^[0-9]+ passed, [0-9]+ failed$' | tail -n 1) || {
	echo "$suite has not said how many passed and failed: nothing is kept" >&2
	exit 1
}
commit=$(git describe --always)
git diff --quiet HEAD -- :/ ":(exclude)$file" ':(top,exclude)docs/faults.md' || commit+=-dirty
touch "$file"
{
	grep -v "^$suite " "$file" || true
	echo "$suite $(date -u +%F) $commit $ended"
} | sort >"$file.new"
mv "$file.new" "$file"
