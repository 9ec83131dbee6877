#!/usr/bin/env bash
# fuzz.sh runs every fuzz target for a while, one after the other:
#
#   FUZZTIME=10s fuzz.sh              all of them
#   FUZZTIME=1m fuzz.sh driver/redis  those of the packages that contain the text
#
# What a target fails on is kept in testdata/fuzz of its package: commit it with the
# fix. Plain `go test` runs it, and every seed, each time.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD failed=
while IFS=: read -r file name; do
	dir=$(dirname "$file")
	[[ $dir == *"${1-}"* ]] || continue
	echo "$dir $name"
	(cd "$top/$dir" && go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-5s}" . >/tmp/fuzz.$$ 2>&1) || {
		cat /tmp/fuzz.$$
		failed="$failed $dir:$name"
	}
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed 's/func //' | sort)
rm -f /tmp/fuzz.$$
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
