#!/usr/bin/env bash
# busy.sh [MODULE…] runs the tests of the modules, or of all, three times beside four busy
# loops. Nothing is run again: a test that fails on a busy machine is a defect. Nothing
# waits for an idle processor either, as there is none.
set -euo pipefail
cd "$(dirname "$0")/.."

loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
for _ in 1 2 3 4; do
	while :; do :; done &
	loops+=($!)
done
COUNT=3 AGAIN=no NICE=0 scripts/test.sh "$@"
