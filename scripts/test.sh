#!/usr/bin/env bash
# test.sh [-short] [MODULE…] runs the tests of the modules, or of all. -short
# leaves out what needs a server, and the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths are left out of what is built, so that the build cache serves every clone.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# Two suites side by side, never more: they measure time, and must not starve
# each other. Within a suite more run at once, because most of them wait for a
# lease to end. Results are not taken from the cache: the tests look at servers.
flags=(-race -p 2 -parallel 4 -count=1 -timeout 25m)
if [ "${1-}" = -short ]; then
	flags=(-short)
	shift
fi
modules=("$@")
if [ ${#modules[@]} = 0 ]; then
	read -ra modules <<<"$(scripts/modules.sh names)"
fi

# run tests one directory. Many tests measure time on a machine that does other
# things too, so a package that failed is run once more, by itself and in no hurry;
# it is named as flaky at the end, because that is a defect as well. What does not
# build is not tried again.
run() {
	local log packages package
	log=$(mktemp)
	if go test "${flags[@]}" "./$1/..." | tee "$log"; then
		rm "$log"
		return
	fi
	packages=$(sed -n 's/^FAIL\t\([^\t ]*\)\t[0-9.]*s$/\1/p' "$log")
	if [ -z "$packages" ] || grep -q 'build failed\]$\|setup failed\]$' "$log"; then
		rm "$log"
		return 1
	fi
	rm "$log"
	for package in $packages; do
		echo "== again, by itself: $package"
		go test "${flags[@]}" -parallel 2 "$package" || return 1
		flaky+=("$package")
	done
}

flaky=()
failed=()
for module in "${modules[@]}"; do
	dir=$(scripts/modules.sh "$module")
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # nothing in it yet
	echo "== test $module"
	began=$SECONDS
	run "$dir" || failed+=("$module")
	echo "== $module took $((SECONDS - began)) s"
done
if [ ${#flaky[@]} -gt 0 ]; then
	echo "flaky: failed at first, and passed alone: ${flaky[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
