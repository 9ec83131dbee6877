#!/usr/bin/env bash
# test.sh [-short] [MODULE…] runs the tests of the modules, or of all. -short
# leaves out what needs a server, and the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."

# Two suites side by side, never more: they measure time, and must not starve
# each other. Within a suite more run at once, because most of them wait for a
# lease to end. Results are not taken from the cache: the tests look at servers.
flags=(-race -p 2 -parallel 6 -count=1 -timeout 15m)
if [ "${1-}" = -short ]; then
	flags=(-short)
	shift
fi
modules=("$@")
if [ ${#modules[@]} = 0 ]; then
	read -ra modules <<<"$(scripts/modules.sh names)"
fi

failed=()
for module in "${modules[@]}"; do
	dir=$(scripts/modules.sh "$module")
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # nothing in it yet
	echo "== test $module"
	began=$SECONDS
	go test "${flags[@]}" "./$dir/..." || failed+=("$module")
	echo "== $module took $((SECONDS - began)) s"
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
