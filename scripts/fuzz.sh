#!/usr/bin/env bash
# fuzz.sh [TEXT] runs every fuzz target, or those of the packages whose path contains TEXT, one
# after the other, guided by coverage, for FUZZTIME each: 5s, or as it is set.
#
# go test -exec 'fuzz.sh -beside' runs the tests of each package, and beside them 1,000 mutations
# of the seeds of each of its targets, with the same binary.
#
# If a target fails, its input is printed and is in testdata/fuzz of its package: commit it
# with the fix. Plain `go test` runs these inputs and every seed.
set -euo pipefail
scratch=$(mktemp -d -p "${GOTMPDIR:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$scratch"' EXIT

# mutations tests with 1,000 mutations for each target of the package.
mutations() {
	local name
	for name in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\).*/\1/p' ./*_test.go); do
		GOMAXPROCS=1 nice -n 19 timeout 10m "$1" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime 1000x -test.parallel 1 -test.fuzzcachedir "$scratch"
	done
}

if [ "${1-}" = -beside ]; then
	shift
	mutations "$1" >"$scratch/log" 2>&1 &
	failed=0
	"$@" || failed=$?
	wait $! || { failed=$? && cat "$scratch/log"; }
	exit "$failed"
fi
cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

failed=
while IFS=: read -r file name; do
	dir=$(dirname "$file")
	echo "$dir $name"
	pushd "$dir" >/dev/null
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-5s}" . >"$scratch/log" 2>&1 || {
		cat "$scratch/log"
		failed="$failed $dir:$name"
		input=$(sed -n 's/^ *Failing input written to //p' "$scratch/log")
		if [ -n "$input" ]; then
			printf '%s:\n%s\nrepeat it with: cd %s && go test -run=%s .\n' "$dir/$input" "$(<"$input")" "$dir" "${input#testdata/fuzz/}"
		fi
	}
	popd >/dev/null
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sed 's/func //' | sort | grep -F -- "${1-}")
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
