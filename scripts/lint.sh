#!/usr/bin/env bash
# lint.sh runs gofmt, go vet and staticcheck on every module, with their
# default checks.
set -euo pipefail
cd "$(dirname "$0")/.."

# As in test.sh: what is built serves every clone.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

echo "== lint"
unformatted=$(find . -name '*.go' -not -path './bin/*' -print0 | xargs -0 gofmt -l)
if [ -n "$unformatted" ]; then
	printf 'not formatted by gofmt:\n%s\n' "$unformatted" >&2
	exit 1
fi
scripts/tools.sh lint staticcheck
failed=
for dir in $(scripts/modules.sh); do
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # nothing in it yet
	go vet "./$dir/..." || failed=yes
	bin/staticcheck "./$dir/..." || failed=yes
done
[ -z "$failed" ]
