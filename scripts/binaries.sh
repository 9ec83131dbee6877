#!/usr/bin/env bash
# binaries.sh [MB] builds interlock for every platform of a release into bin/release, with
# the settings of deploy/goreleaser.yaml, and fails if one is larger than MB.
set -euo pipefail
cd "$(dirname "$0")/.."

# setting prints the words of a list of deploy/goreleaser.yaml.
setting() { sed -n "s/^ *$1: \[\(.*\)\]\$/\1/p" deploy/goreleaser.yaml | tr , ' '; }

limit=${1:-60} failed=
for os in $(setting goos); do
	for arch in $(setting goarch); do
		file=bin/release/interlock_${os}_$arch
		env $(setting env) GOOS="$os" GOARCH="$arch" go build $(setting flags) -ldflags="$(setting ldflags)" -o "$file" ./server/cmd/interlock
		size=$(($(wc -c <"$file") / 1000000))
		echo "$file: $size MB"
		[ "$size" -lt "$limit" ] || failed="$failed $file"
	done
done
[ -z "$failed" ] || { echo "larger than $limit MB:$failed" >&2; exit 1; }
