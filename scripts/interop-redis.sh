#!/usr/bin/env bash
# interop-redis.sh puts redis-py, which the interop tests of Redis use, into the
# user's cache, by pip. What is there already costs nothing. It says in one line
# that it cannot be had, and fails then only if INTERLOCK_REQUIRE names redis-py.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/interlock
requirements=interop/testdata/redis/redis-py/requirements.txt
to=$cache/redis-py-$(sed -n 's/^redis==//p' $requirements)
[ -d "$to" ] && exit

echo "get redis-py into $to"
mkdir -p "$cache"
part=$(mktemp -d "$cache/.redis-py.XXXXXX")
trap 'rm -rf "$part" "$part.log"' EXIT
# It appears whole or not at all; somebody else may be faster.
if python3 -m pip install --quiet --disable-pip-version-check --no-deps \
	--target "$part" -r $requirements >"$part.log" 2>&1; then
	mv -T "$part" "$to" 2>>"$part.log" || true
fi
[ -d "$to" ] && exit
tail -n 5 "$part.log" >&2
echo "missing: redis-py, and the tests that need it are skipped" >&2
[[ ",${INTERLOCK_REQUIRE-}," != *",redis-py,"* ]]
