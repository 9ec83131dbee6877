#!/usr/bin/env bash
# test.sh [-short] [MODULE…] runs the tests of the modules, or of all. -short
# leaves out what needs a server, and the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths are left out of what is built, so that the build cache serves every clone.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# Most tests wait for a server or for a lease to end, so more run at once than there
# are processors: two packages, and some tests of each. Results are not taken from the
# cache: the tests look at servers. The race detector need not sleep for a second at the
# end of each process.
flags=(-race -p 2 -parallel 6 -count=1 -timeout 25m)
export GORACE="${GORACE-atexit_sleep_ms=20}"

# What takes longest begins first, so that it is not left running alone at the end.
longest='/(txn/(saga|tcc)|flow/outbox|driver/redis|internal/cli)$'
# What has one goroutine only: the race detector finds nothing there, in ten times as long.
# These packages are tested without it; and the models of those, which do less with it.
single='/twopc/threepc$'
models=(-run 'Model|Exhaustively' ./driver/redis ./flow/sequence ./flow/outbox)

if [ "${1-}" = -short ]; then
	flags=(-short)
	single='^$'
	shift
fi
modules=("$@")
if [ ${#modules[@]} = 0 ]; then
	read -ra modules <<<"$(scripts/modules.sh names)"
fi

# packages lists what is to be tested of one directory with the flags.
packages() {
	local all
	all=$(go list "./$1/..." | grep -vE "$single" || true)
	grep -E "$longest" <<<"$all" || true
	grep -vE "$longest" <<<"$all" || true
}

# run tests one directory. Many tests measure time on a machine that does other
# things too, so a package that failed is run once more, by itself;
# it is named as flaky at the end, because that is a defect as well. What does not
# build is not tried again.
run() {
	local log failing package left=
	log=$(mktemp)
	if packages "$1" | xargs go test "${flags[@]}" | tee "$log"; then
		rm "$log"
		return
	fi
	failing=$(sed -n 's/^FAIL\t\([^\t ]*\)\t[0-9.]*s$/\1/p' "$log")
	if [ -z "$failing" ] || grep -q 'build failed\]$\|setup failed\]$' "$log"; then
		rm "$log"
		return 1
	fi
	rm "$log"
	for package in $failing; do
		echo "== again, by itself: $package"
		if go test "${flags[@]}" "$package"; then
			flaky+=("$package")
		else
			left="$left $package"
		fi
	done
	[ -z "$left" ]
}

flaky=()
failed=()
for module in "${modules[@]}"; do
	dir=$(scripts/modules.sh "$module")
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # nothing in it yet
	echo "== test $module"
	began=$SECONDS
	run "$dir" || failed+=("$module")
	if [ "$module" = root ] && [ "${flags[0]}" = -race ]; then
		go list ./... | grep -E "$single" | xargs go test "${flags[@]:1}" || failed+=("$single")
		go test "${flags[@]:1}" "${models[@]}" || failed+=(models)
	fi
	echo "== $module took $((SECONDS - began)) s"
done
if [ ${#flaky[@]} -gt 0 ]; then
	echo "flaky: failed at first, and passed alone: ${flaky[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
