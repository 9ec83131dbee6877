#!/usr/bin/env bash
# modules.sh lists the modules of go.work that have packages of ours:
#
#   modules.sh          their directories, one a line
#   modules.sh names    their short names on one line: root etcd server
#   modules.sh NAME     the directory of one
set -euo pipefail
cd "$(dirname "$0")/.."

dirs() { sed -n 's/^[[:space:]]\{1,\}\(\.[^ ]*\)$/\1/p' go.work; }

name() { if [ "$1" = . ]; then echo root; else basename "$1"; fi; }

case ${1-} in
'') dirs ;;
names) for dir in $(dirs); do name "$dir"; done | paste -sd' ' ;;
*)
	for dir in $(dirs); do
		if [ "$(name "$dir")" = "$1" ]; then
			echo "$dir"
			exit
		fi
	done
	echo "no module $1; there are: $("$0" names)" >&2
	exit 2
	;;
esac
