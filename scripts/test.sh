#!/usr/bin/env bash
# test.sh [-short | -lint] [MODULE…] runs the tests of the modules, or of all. -short
# leaves out what needs a server, and the race detector; -lint runs lint.sh beside them,
# and 1,000 mutations for every fuzz target. RACE=all uses the race detector everywhere, and
# every client of the databases in every test. COUNT=n runs each test n times.
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths are left out of what is built, so that the build cache serves every clone.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# Most tests wait for a server or for a lease to end, so more run at once than there
# are processors: two packages, or three without the race detector, and some tests of each.
# Results are not taken from the cache: the tests look at servers. The race detector need
# not sleep for a second at the end of each process.
count=${COUNT-1}
flags=(-race -p 2 -parallel 6 -count="$count" -timeout $((25 * count))m)
export GORACE="${GORACE-atexit_sleep_ms=20}"

# What takes longest begins first, so that it is not left running alone at the end.
first=(internal/cli driver/etcd driver/mysql driver/postgres driver/redis driver/kafka driver/kube driver/zookeeper driver/consul driver/nats txn/saga internal/guarantees
	txn/barrier txn/tcc txn/twopc flow/outbox claim/elect claim/partition interop)

# The race detector doubles the processor time at least, and looks at memory that goroutines
# share, so it is used where ours do:
raced='/(claim/(lock|semaphore|elect/.*|partition/.*)|driver/.*|flow/.*|guard/(idempotency|proxy|rpc|value|wire)
|internal/(backoff|failure|hints|join|leasetable)|observe|server/embedded|server/internal/(coordinate|supervise)
|txn|txn/(branchhttp|coordinator|httpapi|journal|saga|tcc|twopc|internal/.*))$'
raced=${raced//$'\n'/}
# Elsewhere tests run without it:
#   - bench, examples, interop, internal/{cli,failover,guarantees}: they start programs, whose
#     parts are raced in their own packages.
#   - guard/{fence,isolation,stock}, claim/rowlock, txn/{barrier,branch,countermeasure},
#     internal/{prepared,sqltable,transact}: statements and scripts, without goroutines. The
#     tables of internal/sqltable are raced by txn/journal and flow/outbox.
#   - internal/testbed, tools, lab, txn/*/*test, history: they serve the raced tests, or compute
#     with one goroutine. The writers of history are raced by guard/wire.
# What goroutines share in these is raced by the tests that need no server; those that need
# one race the drivers, in the drivers' own packages:
briefly='/(claim/(elect|partition|rwlock)|guard/(once|version)|txn/barrier/conformance)$'
# Of the raced packages, these tests run without it: machines of one goroutine, processes
# that are killed or stopped at each of their points, which other tests race unharmed,
# texts of the maximum size, loads of thousands of calls, and allocations, to which the race
# detector adds. They run beside the others, see there.
single='^Test(Crash$|TooLong$|LongOutputs|Storm$|.*(Allocations|Model|Exhaustively|EveryHistory|CrashPoints|Crashes|Killed|Asleep|StoppedAnywhere))'

# These raced packages start no server, so they can wait: they run beside the others, too.
patient='/(claim/(elect/schedule|lock)|driver/(lanes|memory)|flow/(keyed|overload)|txn/(branchhttp|coordinator|httpapi))$'

[ "${RACE-}" != all ] || export INTERLOCK_CLIENTS=all

# With -short these modules are left out: nearly each of their tests needs a server, and to
# link them takes longer than the rest.
served=

lint=
mutate=()
case ${1-} in
-short)
	flags=(-short -p 3 -vet=off) # lint does more of it
	first=(txn/saga txn/percolator server/internal/cli txn/tcc txn/twopc)
	served='bench|examples|interop|goredis|river|watermill'
	shift
	;;
-lint)
	lint=yes
	mutate=(-exec "'$PWD/scripts/fuzz.sh' -beside")
	flags+=(-vet=off) # lint does more of it
	shift
	;;
esac
modules=("$@")
if [ ${#modules[@]} = 0 ]; then
	for module in $(scripts/modules.sh names); do
		[[ $module =~ ^($served)$ ]] || modules+=("$module")
	done
fi

# in_memory says where there is room in memory for what servers write: the
# many small files of a new database cost a fourth there. Tests kill processes, not
# machines, so no less is shown. What go builds stays on the disk.
in_memory() {
	local free dir=/dev/shm
	[ -z "${TMPDIR-}" ] && [ -w $dir ] || return 1
	for free in "$(df --output=avail $dir | tail -1)" "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)"; do
		[ "$free" -gt 8000000 ] || return 1
	done
	[[ $(findmnt -no OPTIONS -T $dir) != *noexec* ]] && echo $dir
} 2>/dev/null

scratch=$(mktemp -d)
temporary=$scratch
beside=() # process groups
trap 'for group in "${beside[@]}"; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$scratch" "$temporary"' EXIT
if dir=$(in_memory); then
	temporary=$(mktemp -d -p "$dir" il-XXXXXX)
	chmod 711 "$temporary" # servers run as other users
	# With more garbage, programs collect it less often, and those that run for a moment never do.
	export GOTMPDIR="${GOTMPDIR-/tmp}" TMPDIR=$temporary GOGC="${GOGC-400}"
fi

# beside NAME COMMAND… runs what does not measure time at the lowest priority, or at $nice: on
# the processor time that the tests leave while they wait. NICE is instead of both.
beside() {
	set -m
	(renice -n "${NICE-${nice-19}}" $BASHPID >/dev/null && "${@:2}") >"$scratch/$1" 2>&1 &
	set +m
	beside+=($!)
	names[$!]=$1
}
names=()

# ordered prints the packages with those that take longest in front.
ordered() {
	local package
	for package in "${first[@]}"; do
		grep "/$package\$" <<<"$1" || true
	done
	grep -vE "/($(IFS='|' && echo "${first[*]}"))\$" <<<"$1" || true
}

# run tests packages. Many tests measure time on a machine that does other
# things too, so a package that failed is run once more, by itself;
# it is named as flaky at the end, because that is a defect as well. What does not
# build is not tried again, and nothing is with AGAIN=no.
run() {
	local failing package log left=
	[ -n "$1" ] || return 0
	log=$(mktemp -p "$scratch")
	if ordered "$1" | xargs go test "${mutate[@]}" "${flags[@]}" | tee "$log"; then
		return
	fi
	failing=$(sed -n 's/^FAIL\t\([^\t ]*\)\t[0-9.]*s$/\1/p' "$log")
	if [ "${AGAIN-}" = no ] || [ -z "$failing" ] || grep -q 'build failed\]$\|setup failed\]$' "$log"; then
		return 1
	fi
	for package in $failing; do
		echo "== again, by itself: $package"
		if go test "${mutate[@]}" "${flags[@]}" "$package"; then
			echo "$package" >>"$scratch/flaky"
		else
			left="$left $package"
		fi
	done
	[ -z "$left" ]
}

# holding prints the packages that have a test whose name fits a pattern.
holding() {
	[ $# -gt 1 ] || return 0
	go list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}' "${@:2}" |
		while read -r package file; do
			[ -z "$file" ] || ! sed -n 's/^func \(Test[A-Za-z0-9]*\).*/\1/p' "$file" | grep -qE "$1" || echo "$package"
		done | sort -u
}

# one_by_one runs one package at a time.
one_by_one() { flags+=(-p 1) && run "$1"; }

single() {
	flags=("${plain[@]}" -run "$single") mutate=() # these packages have them with the other tests
	one_by_one "$(holding "$single" "$@")"
}

# idle is how long the processors have been idle, and how long all in all.
idle() { awk '/^cpu /{print $5 + $6, $2 + $3 + $4 + $5 + $6 + $7 + $8}' /proc/stat 2>/dev/null || echo 0 0; }

failed=()
dirs=()
for module in "${modules[@]}"; do
	dir=$(scripts/modules.sh "$module")
	[ -n "$(find "$dir" -name '*.go' -print -quit)" ] || continue # nothing in it yet
	dirs+=("$dir/...")
done
if [ -n "$lint" ]; then
	beside lint scripts/lint.sh
fi
echo "== test ${modules[*]}"
read -r before since <<<"$(idle)"
all=$(go list "${dirs[@]}")
if [ "${flags[0]}" = -short ] || [ "${RACE-}" = all ]; then
	run "$all" || failed+=(tests)
else
	plain=("${flags[@]:1}") # without -race
	with=$(grep -E "$raced" <<<"$all" || true)
	if some=$(grep -E "$briefly" <<<"$all"); then
		beside briefly go test -short -skip '^(TestFlawed|Example)' "${flags[@]}" $some # these have one goroutine
	fi
	nice=5 beside single single $with # with servers, whose answers have bounds
	flags+=(-skip "$single")
	nice=5 beside patient one_by_one "$(grep -E "$patient" <<<"$with" || true)"
	run "$(grep -vE "$patient" <<<"$with" || true)" || failed+=("raced tests")
	flags=("${plain[@]}" -p 3)
	run "$(grep -vE "$raced" <<<"$all" || true)" || failed+=("tests without the race detector")
fi
for group in "${beside[@]}"; do
	wait "$group" || failed+=("${names[$group]}")
	echo "== ${names[$group]}" && cat "$scratch/${names[$group]}"
done
beside=()
read -r after total <<<"$(idle)"
echo "== took $SECONDS s, and $(((total - since - after + before) / $(getconf CLK_TCK))) s of the processors, which were idle for $((100 * (after - before) / (total - since + 1))) % of it"
if [ -s "$scratch/flaky" ]; then
	echo "flaky: failed at first, and passed alone: $(paste -sd' ' "$scratch/flaky")" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
