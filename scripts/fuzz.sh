#!/usr/bin/env bash
# fuzz.sh [-seeds] [TEXT] runs every fuzz target, or those of the packages whose path
# contains TEXT, one after the other:
#
#   FUZZTIME=1m fuzz.sh driver/redis  for a minute each, guided by coverage; the default is 5s
#   FUZZTIME=1000x fuzz.sh -seeds     1,000 mutations of the seeds each, in about half a second
#
# -seeds takes what test.sh has compiled. Without it every dependency is compiled again, to
# measure coverage.
#
# If a target fails, its input is printed and is in testdata/fuzz of its package: commit it
# with the fix. Plain `go test` runs these inputs and every seed.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
scratch=$(mktemp -d -p "${GOTMPDIR:-${TMPDIR:-/tmp}}") # test binaries are large
trap 'rm -rf "$scratch"' EXIT

how=guided
if [ "${1-}" = -seeds ]; then
	how=seeds
	shift
fi

guided() { go test -run '^$' -fuzz "^$1\$" -fuzztime "${FUZZTIME:-5s}" .; }

# seeds links one binary for all targets of a package, and removes that of the one before.
seeds() {
	if [ "$PWD" != "${linked-}" ]; then
		go test -ldflags='-s -w' -c -o "$scratch/test" .
		linked=$PWD
	fi
	GOMAXPROCS=1 timeout 10m "$scratch/test" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "${FUZZTIME:-5s}" \
		-test.parallel 1 -test.fuzzcachedir "$scratch/cache"
}

failed=
while IFS=: read -r file name; do
	dir=$(dirname "$file")
	echo "$dir $name"
	pushd "$dir" >/dev/null
	$how "$name" >"$scratch/log" 2>&1 || {
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
