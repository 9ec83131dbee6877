#!/usr/bin/env bash
# lint.sh runs gofmt, go vet and staticcheck on every module, with their default checks,
# and words.sh.
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
packages=()
for dir in $(scripts/modules.sh); do
	[ -z "$(find "$dir" -name '*.go' -print -quit)" ] || packages+=("$dir/...") # else nothing is in it yet
done
failed=
scripts/words.sh || failed=yes
if grep -rnF 'synctest.Test(' --include='*.go' --exclude-dir=bin . | grep -v '^./internal/virtual/'; then
	echo "use virtual.Test, see there" >&2
	failed=yes
fi
go vet "${packages[@]}" || failed=yes
bin/staticcheck "${packages[@]}" || failed=yes
[ -z "$failed" ]
