#!/usr/bin/env bash
# modules.sh lists the modules of go.work that have packages of ours:
#
#   modules.sh          their directories, one a line
#   modules.sh names    their short names on one line: root etcd server
#   modules.sh NAME     the directory of one, or of a driver
#   modules.sh published  the directories of those that users can get
#   modules.sh tidy     runs go mod tidy in each, with the others as they are here
set -euo pipefail
cd "$(dirname "$0")/.."

dirs() { sed -n 's/^[[:space:]]\{1,\}\(\.[^ ]*\)$/\1/p' go.work; }

name() { if [ "$1" = . ]; then echo root; else basename "$1"; fi; }

# tidy runs go mod tidy outside of the workspace, which it does not know.
tidy() {
	local dir other module scratch replace=() drop=()
	scratch=$(mktemp -d)
	for other in $(dirs); do
		module=$(sed -n 's/^module //p' "$other/go.mod")
		replace+=("-replace=$module=$PWD/$other") drop+=("-dropreplace=$module")
	done
	for dir in $(dirs); do
		cp "$dir/go.mod" "$dir/go.sum" "$scratch"
		go mod edit "${replace[@]}" "$scratch/go.mod"
		GOWORK=off go -C "$dir" mod tidy -modfile="$scratch/go.mod"
		go mod edit "${drop[@]}" "$scratch/go.mod"
		cp "$scratch/go.mod" "$scratch/go.sum" "$dir"
	done
	rm -r "$scratch"
}

case ${1-} in
'') dirs ;;
published) dirs | grep -v '^\./bench$\|^\./interop$\|^\./tools$' ;;
tidy) tidy ;;
names) for dir in $(dirs); do name "$dir"; done | paste -sd' ' ;;
*)
	for dir in $(dirs); do
		if [ "$(name "$dir")" = "$1" ]; then
			echo "$dir"
			exit
		fi
	done
	if [ -d "driver/$1" ]; then
		echo "./driver/$1"
		exit
	fi
	echo "no module $1; there are: $("$0" names)" >&2
	exit 2
	;;
esac
