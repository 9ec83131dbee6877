# Interlock. `make` alone says what there is.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run deps test test-busy test-fast fuzz lint install-check binaries vuln races bench bench-gate bench-record soak-drivers soak-crashes soak-percolator soak-queues mutants deletions story story-soak docs pictures site man clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  modules: $$(scripts/modules.sh names)"

run: ## Build interlock and start a lock service for development
	@mkdir -p bin
	go build -o bin/interlock ./server/cmd/interlock
	@exec bin/interlock dev

deps: ## Get what the tests need: servers, and other projects' clients
	@scripts/deps.sh

test: deps ## Every test of every module, lint, and a little of each fuzz target
	@scripts/test.sh -lint

test-busy: deps ## Every test three times beside four busy loops
	@scripts/busy.sh

test-fast: ## What needs no server, in about a minute
	@scripts/test.sh -short

test-%: deps ## The tests of one module or driver with the race detector: make test-etcd
	@scripts/test.sh $*

lint: ## gofmt, vet and staticcheck on every module
	@scripts/lint.sh

fuzz: ## Every fuzz target, for 5 s each: FUZZTIME=1m make fuzz
	@scripts/fuzz.sh

install-check: ## Release the working tree in a clone, and install it from the tags
	go test -count=1 -timeout 30m -v -run '^TestInstall$$' .

binaries: ## The stripped binaries of a release, in bin/release, within their budget
	@scripts/binaries.sh

vuln: ## Known vulnerabilities, from Go's database on the network
	@scripts/vuln.sh

soak-drivers: deps ## The conformance suites of every driver, ten times
	go test -race -count=10 -timeout 120m -p 2 -parallel 4 -run '^Test(Table|Quorum)?(Suite|Fenced|Advisory|Plain|Fence|Watcher|Breaker|Values|Batch)$$' ./driver/... ./driver/etcd/... ./driver/kube/... ./driver/redis/goredis/...

soak-percolator: deps ## Transactions over key-value stores, two minutes of faults for each workload
	INTERLOCK_SOAK_PERCOLATOR=2m go test -race -count=1 -timeout 60m -run '^Test(EveryOrder|Percolator|Bank)$$' ./txn/percolator ./interop ./examples/percolator

soak-queues: deps ## Consumers of queues on every system, two minutes of faults for each
	INTERLOCK_SOAK_QUEUE=2m INTERLOCK_SOAK_STREAMS=2m go test -race -count=1 -timeout 30m -run '^Test(Queue)?Soak$$' ./flow/queue ./driver/redis
	cd driver/kafka && INTERLOCK_SOAK_KAFKA=2m go test -race -count=1 -timeout 30m -run '^TestSoak$$' .
	cd driver/nats && INTERLOCK_SOAK_NATS=2m go test -race -count=1 -timeout 30m -run '^TestSoak$$' .

soak-crashes: deps ## Relays and requests killed at every pair of points, transactions at each, coordinators fifty times
	INTERLOCK_CRASHES=full go test -count=1 -timeout 120m -run 'Crash|Killed' ./flow/... ./guard/... ./driver/etcd
	INTERLOCK_CRASHES=full go test -count=1 -timeout 120m -run 'Crash|Killed|Asleep|Stopped|Databases' ./txn/...
	cd examples && INTERLOCK_CRASHES=full go test -count=1 -timeout 60m -run Killed ./...
	cd server && INTERLOCK_KILLS=50 go test -count=1 -timeout 60m -v ./internal/failover

races: deps ## Every race: broken 95 times in 100 at least, fixed never in 1,000
	INTERLOCK_RACES=full go test -count=1 -timeout 120m ./examples/races

# What make bench measures, and how: BENCH='-run redis/hot -rounds 3'. Without it the docs are drawn again.
BENCH ?=
bench = @set -o pipefail; go test -c -o bin/bench.test ./bench && cd bench && ../bin/bench.test -rounds 4 -o ../bin/bench.json

bench: deps ## Beside other libraries: a table, bin/bench.json, and the plots of docs/reference/performance.md
	$(bench) $(or $(BENCH),-draw ../docs/pictures) | sed '/^PASS$$/d'

bench-gate: deps ## The same; fails if a ratio is below 80 % of that in bench/recorded.json
	$(bench) -gate recorded.json $(BENCH) | sed '/^PASS$$/d'

bench-record: bench ## The same; the report becomes bench/recorded.json
	@cp bin/bench.json bench/recorded.json

mutants: deps ## Plant one wrong line at a time; the tests must notice each
	go run ./tools/mutants tools/mutants/planted/*.txt

deletions: deps ## Delete one statement of the protocols at a time; the tests must notice
	go run ./tools/mutants tools/mutants/deletions/*.txt

story: deps ## A worker is stopped past its lease and its stale write refused
	@go test -c -o bin/story.test ./examples/bank
	@[ ! -t 1 ] || export CLICOLOR_FORCE=1; set -o pipefail; cd examples/bank && ../../bin/story.test -test.run '^TestStory$$' | sed '$${/^PASS$$/d;}'

story-soak: deps ## The story, fifty times in a row
	go test -race -count=50 -timeout 60m -run '^TestStory$$' ./examples/bank

docs: deps ## Generate docs/GUARANTEES.md, choosing.md and isolation.md
	go test ./server/internal/advise ./server/internal/guarantees ./guard/isolation -update

site: ## The documentation as a static site, in bin/site
	@scripts/tools.sh site hugo
	@REFERENCE=$(CURDIR)/bin/site-content go test -count=1 ./server/internal/cli -run '^TestReference$$'
	@cd docs/site && ../../bin/hugo --quiet --destination ../../bin/site --cleanDestinationDir --noBuildLock

man: ## A man page for each command, in bin/man
	@MANUAL=$(CURDIR)/bin/man go test -count=1 ./server/internal/cli -run '^TestReference$$'

pictures: deps ## Draw docs/pictures again from new runs; the plots of make bench excepted
	STORY_PICTURES=$(CURDIR)/docs/pictures go test -count=1 ./examples/bank -run '^TestStory$$'
	go test ./flow/outbox -run '^TestPicture$$' -update
	go test ./flow/overload -run '^TestStorm$$' -update
	go test ./server/internal/pictures -update

clean: ## Remove what was built
	rm -rf bin
