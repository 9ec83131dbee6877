#!/usr/bin/env bash
# cache.sh puts into the user's cache what the tests need of other projects: by Maven Kafka's broker,
# ElasticMQ, an emulator of SQS, and Curator, by pip kazoo and redis-py. The last three are clients for the interop tests.
# What is there already costs nothing. It says in one line what cannot be had, and fails
# then only if INTERLOCK_REQUIRE names it.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/interlock
clients=interop/testdata/zookeeper
redis=interop/testdata/redis/redis-py/requirements.txt
broker=internal/testbed/testdata/kafka
emulator=internal/testbed/testdata/elasticmq

# get NAME VERSION COMMAND… has COMMAND fill a directory, which appears whole.
get() {
	local name=$1 version=$2 to=$cache/$1-$2
	shift 2
	[ -d "$to" ] && return
	echo "get $name $version"
	mkdir -p "$cache"
	local part
	part=$(mktemp -d "$cache/.$name.XXXXXX")
	if "$@" "$part" >"$part.log" 2>&1 && mv -T "$part" "$to" 2>>"$part.log"; then
		rm -f "$part.log"
		return
	fi
	tail -n 5 "$part.log" >&2
	rm -rf "$part" "$part.log"
	[ -d "$to" ] && return # somebody else was faster
	echo "missing: $name, and the tests that need it are skipped" >&2
	if [[ ",${INTERLOCK_REQUIRE-}," == *",$name,"* ]]; then
		echo "missing: $name is required by INTERLOCK_REQUIRE" >&2
		failed=yes
	fi
}

jars() {
	mvn -B -q -f "$1" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
		-DincludeScope=runtime -DexcludeArtifactIds=netty-tcnative-boringssl-static -DoutputDirectory="$2"
}

wheels() { python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$2" -r "$1"; }

failed=
get curator "$(sed -n 's:.*<curator>\(.*\)</curator>.*:\1:p' $clients/curator/pom.xml)" jars $clients/curator/pom.xml
get kafka "$(sed -n 's:.*<kafka>\(.*\)</kafka>.*:\1:p' $broker/pom.xml)" jars $broker/pom.xml
get elasticmq "$(sed -n 's:.*<elasticmq>\(.*\)</elasticmq>.*:\1:p' $emulator/pom.xml)" jars $emulator/pom.xml
get kazoo "$(sed -n 's/^kazoo==//p' $clients/kazoo/requirements.txt)" wheels $clients/kazoo/requirements.txt
get redis-py "$(sed -n 's/^redis==//p' $redis)" wheels $redis
[ -z "$failed" ]
