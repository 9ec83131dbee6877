#!/usr/bin/env bash
# fuzz.sh runs every fuzz target for a while, one after the other:
#
#   FUZZTIME=10s fuzz.sh              all of them
#   FUZZTIME=1m fuzz.sh driver/redis  those of the packages that contain the text
#   FUZZTIME=1s FUZZPART=4 fuzz.sh    four of them, others for another commit
#
# A part is run with the test binaries of test.sh, so that nothing is compiled for it: its
# inputs are mutations of the seeds, and not guided by what they cover.
#
# What a target fails on is kept in testdata/fuzz of its package: commit it with the
# fix. Plain `go test` runs it, and every seed, each time.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
top=$PWD failed=
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# guided compiles the target's dependencies to see what inputs cover.
guided() { go test -run '^$' -fuzz "^$1\$" -fuzztime "${FUZZTIME:-5s}" .; }

mutated() {
	local binary=$scratch/${PWD//\//_}
	[ -e "$binary" ] || go test -race -c -o "$binary" . &&
		"$binary" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "${FUZZTIME:-5s}" -test.fuzzcachedir "$scratch/cache"
}

mapfile -t targets < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed 's/func //' | sort | grep -F -- "${1-}")
how=guided
if [ -n "${FUZZPART-}" ]; then
	how=mutated first=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || date +%j) * FUZZPART % ${#targets[@]}))
	targets=("${targets[@]:first}" "${targets[@]:0:first}")
	targets=("${targets[@]:0:FUZZPART}")
fi
for target in "${targets[@]}"; do
	dir=$(dirname "${target%%:*}") name=${target##*:}
	echo "$dir $name"
	(cd "$top/$dir" && $how "$name" >"$scratch/log" 2>&1) || {
		cat "$scratch/log"
		failed="$failed $dir:$name"
	}
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
