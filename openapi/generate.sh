#!/bin/sh
# Writes the Go code that openapi.yaml describes. With --check it writes nothing and fails when that code is not current.
set -eu
cd "$(dirname "$0")/.."

generate() {
	go tool -modfile=tools/go.mod oapi-codegen -config openapi/codegen.yaml -o "$1/openapi/types.gen.go" openapi/openapi.yaml
	go tool -modfile=tools/go.mod oapi-codegen -config internal/httpapi/codegen.yaml -o "$1/internal/httpapi/routes.gen.go" openapi/openapi.yaml
}

if [ "${1:-}" != --check ]; then
	generate .
	exit
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir -p "$fresh/openapi" "$fresh/internal/httpapi"
generate "$fresh"
status=0
for file in openapi/types.gen.go internal/httpapi/routes.gen.go; do
	diff -u "$file" "$fresh/$file" || status=1
done
[ $status = 0 ] || echo "generated code is not current: run make generate" >&2
exit $status
