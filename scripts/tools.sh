#!/usr/bin/env bash
# tools.sh servers|kube|nats|consul|lint|site NAME… builds programs into bin/ from the Go modules in
# tools/. It is quick if they are there and neither the modules nor Go changed. What is built stays in
# the user's cache, for other clones.
set -euo pipefail
cd "$(dirname "$0")/.."

case $1 in
servers) module=tools ;;
kube) module=tools/kube ;;
nats) module=tools/nats ;;
consul) module=tools/consul ;;
lint) module=tools/lint ;;
site) module=tools/site ;;
esac
shift

package() {
	case $1 in
	etcd) echo go.etcd.io/etcd/server/v3 ;;
	etcdctl) echo go.etcd.io/etcd/etcdctl/v3 ;;
	kube-apiserver) echo ./kube-apiserver ;;
	nats-server) echo github.com/nats-io/nats-server/v2 ;;
	consul) echo . ;;
	staticcheck) echo honnef.co/go/tools/cmd/staticcheck ;;
	govulncheck) echo golang.org/x/vuln/cmd/govulncheck ;;
	hugo) echo github.com/gohugoio/hugo ;;
	esac
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/interlock/bin
mkdir -p bin "$cache"
sources=()
[ "$module" = tools ] || mapfile -t sources < <(find "$module" -name '*.go' | sort)
stamp=$(cat "$module/go.mod" "$module/go.sum" "${sources[@]}" <(go env GOVERSION GOOS GOARCH) | sha256sum)
for name in "$@"; do
	if [ -x "bin/$name" ] && [ "$(cat "bin/.$name" 2>/dev/null)" = "$stamp" ]; then
		continue
	fi
	kept=$cache/$name-${stamp%% *}
	if [ ! -x "$kept" ]; then
		echo "build bin/$name"
		GOWORK=off go -C "$module" build -buildvcs=false -trimpath -ldflags=-s -o "$cache/.$name.$$" "$(package "$name")"
		rm -f "$cache/$name-"*
		mv "$cache/.$name.$$" "$kept"
	fi
	rm -f "bin/$name"
	cp "$kept" "bin/$name"
	echo "$stamp" >"bin/.$name"
done
