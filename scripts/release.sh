#!/usr/bin/env bash
# release.sh [-working-tree] VERSION [DIR] tags a release of every published module in a
# clone of this repository:
#
#   release.sh v0.2.0          lists the tags and removes the clone: a dry run
#   release.sh v0.2.0 DIR      leaves the clone in DIR, to be read and then pushed:
#                              git -C DIR push git@github.com:interlock-dev/interlock 'refs/tags/*v0.2.0'
#
# The checkout does not change. Without -working-tree it must be clean. In the clone each
# module requires the others at VERSION, with their checksums in go.sum.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=
if [ "${1-}" = -working-tree ]; then
	tree=yes
	shift
fi
version=${1-} top=$PWD path=github.com/interlock-dev/interlock
if [[ ! $version =~ ^v[01]\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "usage: release.sh [-working-tree] VERSION [DIR], with a VERSION such as v0.2.0 or v0.2.0-rc.1" >&2
	exit 2
fi
if [ -z "$tree" ] && [ -n "$(git status --porcelain)" ]; then
	echo "release: the working tree has changes: commit them first" >&2
	exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
clone=${2:-$scratch/clone}
git clone -q --no-tags --no-checkout . "$clone"
clone=$(cd "$clone" && pwd)
if [ -z "$tree" ]; then
	git -C "$clone" checkout -q --detach
else
	comm -z -23 <(git ls-files -coz --exclude-standard | sort -zu) <(git ls-files -dz | sort -zu) |
		tar -c --null -T - | tar -xC "$clone"
fi
cd "$clone"
git config user.email >/dev/null || git config user.email release@localhost
git config user.name >/dev/null || git config user.name release

# Go reads our modules from this clone. What it learns of VERSION stays in a module cache
# that is removed: this is no release yet.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$clone.insteadOf" GIT_CONFIG_VALUE_0="https://$path"
export GOPRIVATE=$path GOMODCACHE=$scratch/modules GOFLAGS=-modcacherw GOWORK=off

# A module is tagged once its go.sum holds the modules of ours that it requires, which are
# tagged by then. Later modules do not change its content, so all tags move to one commit.
mapfile -t files < <(git ls-files -co -- go.mod '*/go.mod')
sed -i -E "s#(${path//./\\.}[^ ]*) v0\.0\.0( |\$)#\1 $version\2#" go.work "${files[@]}"
git add -A
git commit -q -m "release $version"
tags=()
for dir in $(scripts/modules.sh published); do
	mapfile -t required < <(sed -nE "s#^.*($path[^ ]*) $version\$#\1@$version#p" "$dir/go.mod")
	[ ${#required[@]} = 0 ] || go -C "$dir" mod download "${required[@]}"
	git commit -q -a --amend --no-edit
	tag=${dir#.}/$version
	tags+=("${tag#/}")
	for tag in "${tags[@]}"; do git tag -f "$tag" >/dev/null; done
done
printf '%s\n' "${tags[@]}"
