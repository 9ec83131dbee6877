package interlock_test

import (
	"encoding/json"
	"fmt"
	"github.com/interlock-dev/interlock/internal/testbed"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// policy says which package may import what, leaving the standard library aside:
//
//	PACKAGE -> OURS… | THEIRS…
//
// Packages of ours are named below the root package, which is "."; "x/..."
// means x and all below it, "*" anything that rule 2 does not forbid. Theirs are
// prefixes of import paths. The line that fits a package best counts, and a
// package without a line is refused: it has to be thought about.
//
// The lines bind what users compile. Tests may import what they like of ours and
// theirs. Two rules stand beside the lines and bind every package:
//
//  1. What serves tests (testOnly) is imported by tests, and by each other.
//  2. A nested module's code does not import what is internal to the root
//     module.
//
// DO NOT RELAX a line to make a change compile. Because of these arrows, a user of the Redis
// lock does not build gRPC. A guard works with every lock, and protocol code can be tested
// without a server. Move the code, or take what you need as a parameter. If an arrow is really
// wrong, an ADR says so first.
const policy = `
.                       ->

# The foundation.
observe                 -> .
history                 -> .
internal/backoff        ->
internal/join           ->
internal/failure        -> . driver
internal/sqltable       -> . driver internal/failure
internal/strictjson     ->
internal/httpclient     ->
internal/hints          ->
internal/renewal        -> . driver driver/boottime internal/failure internal/hints
internal/leasetable     -> . driver driver/boottime internal/failure internal/hints internal/join internal/renewal
internal/leasetable/leasetabletest -> . driver internal/testbed
internal/leasequeue     -> . driver driver/boottime internal/backoff internal/hints internal/join
internal/prepared       -> . driver internal/failure internal/sqltable
internal/prepared/preparedtest -> . driver internal/testbed internal/testbed/crash
internal/transact       -> . driver internal/failure
internal/picture        ->
internal/process        ->
internal/report         ->
internal/generated      ->
internal/virtual        ->
internal/testbed        -> . | go.uber.org/goleak
internal/testbed/paths  -> internal/testbed driver/drivertest
internal/testbed/databases -> . driver driver/backend driver/postgres driver/mysql internal/testbed | github.com/jackc/pgx/v5 github.com/go-sql-driver/mysql
internal/testbed/crash  -> . driver internal/testbed

# Drivers know their own client, and neither each other nor what is built on them.
# The clock of claims is public, because drivers in modules of their own need it.
driver                  -> .
driver/boottime         -> | golang.org/x/sys
# URLs: drivers register their schemes, and what is built on drivers opens them by it.
driver/backend          -> . driver
driver/group            ->
driver/memory           -> . driver driver/backend driver/boottime internal/...
driver/redis            -> . driver driver/backend driver/boottime internal/... | github.com/redis/rueidis
driver/redis/goredis    -> . driver/redis | github.com/redis/go-redis/v9 github.com/redis/rueidis
driver/postgres         -> . driver driver/backend driver/boottime internal/... | github.com/jackc/pgx/v5
driver/mysql            -> . driver driver/backend driver/boottime internal/... | github.com/go-sql-driver/mysql
driver/zookeeper        -> . driver driver/backend driver/boottime driver/group internal/... | github.com/go-zookeeper/zk
driver/consul           -> . driver driver/backend driver/boottime internal/...
# Not the typed clients of client-go: their scheme has every type of Kubernetes.
driver/kube             -> . driver driver/backend driver/boottime | k8s.io/api/coordination k8s.io/apimachinery k8s.io/client-go/rest k8s.io/client-go/tools/clientcmd
driver/etcd             -> . driver driver/backend driver/boottime driver/group | go.etcd.io/etcd/client/v3 go.etcd.io/etcd/api/v3 google.golang.org/grpc go.uber.org/zap
driver/lanes            -> . driver driver/boottime
driver/kafka            -> . driver driver/boottime driver/lanes | github.com/twmb/franz-go/pkg
driver/nats             -> . driver driver/boottime driver/lanes | github.com/nats-io/nats.go
driver/sqs              -> . driver | github.com/aws/aws-sdk-go-v2 github.com/aws/smithy-go
# The suite also tries drivers under the lock that users put on top of them.
driver/drivertest       -> . driver driver/group internal/testbed claim/lock | go.uber.org/goleak

# These directories take drivers as parameters. Inside a directory, only these imports.
claim/lock              -> . driver driver/backend driver/boottime observe internal/...
claim/rowlock           -> . driver driver/boottime observe internal/...
claim/rowlock/rowlocktest -> claim/rowlock
claim/deadlock          -> . driver driver/boottime observe internal/...
claim/rwlock            -> . driver driver/backend driver/boottime observe internal/... claim/lock
claim/rwlock/rwlocktest -> . driver driver/memory internal/testbed claim/lock claim/rwlock claim/semaphore
claim/semaphore         -> . driver driver/backend driver/boottime observe internal/... claim/lock
claim/elect             -> . driver driver/backend driver/boottime observe internal/... claim/lock
claim/elect/electtest   -> . driver claim/elect
claim/elect/schedule    -> . driver driver/boottime observe internal/... claim/lock claim/elect
claim/partition               -> . driver driver/backend driver/boottime observe internal/... claim/lock
claim/partition/route         -> . driver driver/boottime observe internal/... claim/lock claim/partition
claim/partition/partitiontest       -> . driver observe claim/partition
guard/fence             -> . driver observe internal/...
guard/value             -> . driver observe internal/...
guard/version           -> . driver observe internal/...
guard/stock             -> . driver observe internal/...
guard/isolation         -> . driver observe internal/...
guard/sweep             -> . driver driver/backend observe internal/...
guard/once              -> . driver driver/backend driver/boottime observe internal/... guard/sweep
guard/idempotency       -> . driver driver/backend driver/boottime observe internal/...
guard/wire              -> . driver observe internal/... guard/fence
guard/proxy             -> . driver observe internal/... guard/fence guard/wire
guard/rpc               -> . driver observe guard/fence guard/wire guard/idempotency | google.golang.org/grpc google.golang.org/protobuf
guard/rpc/ratelimit     -> flow/limit | google.golang.org/grpc google.golang.org/protobuf google.golang.org/genproto/googleapis/rpc
guard/rpc/loadshed      -> . flow/overload | google.golang.org/grpc google.golang.org/protobuf google.golang.org/genproto/googleapis/rpc
# What flows passes guards on its way.
flow/keyed              -> . driver observe internal/...
flow/queue              -> . driver driver/backend driver/boottime observe internal/... flow/keyed
flow/queue/queuetest    -> driver driver/drivertest driver/lanes flow/queue flow/sequence internal/testbed observe
flow/reply              -> . driver internal/... flow/queue
flow/river              -> . driver guard/once | github.com/riverqueue/river
flow/watermill          -> . driver flow/outbox flow/queue | github.com/ThreeDotsLabs/watermill
flow/limit              -> . driver driver/backend driver/boottime observe internal/...
flow/overload           -> . internal/backoff internal/failure internal/httpclient | github.com/failsafe-go/failsafe-go
flow/crdt               -> . driver observe internal/...
flow/sequence           -> . driver driver/backend observe internal/... flow/keyed
flow/outbox             -> . driver driver/backend observe internal/... guard/fence claim/lock
flow/outbox/webhook     -> . driver observe internal/...
# Coordinators stand on one journal.
txn/journal             -> . driver driver/backend observe internal/... guard/fence
txn/branch              -> .
txn/branchhttp          -> . driver observe internal/failure internal/httpclient internal/strictjson txn/branch
txn/barrier             -> . driver observe internal/... txn/branch
txn/barrier/conformance -> . internal/failure internal/httpclient txn/branch txn/branchhttp
txn/coordinator         -> . driver observe internal/... txn/journal txn/branch txn/branchhttp
txn/internal/rehearsal  -> . driver internal/virtual txn/journal txn/branch txn/coordinator txn/internal/txntest
txn/internal/txntest    -> . driver driver/memory internal/virtual
txn/saga                -> . driver observe internal/... txn/journal txn/branch txn/barrier txn/coordinator
txn/saga/sagatest       -> . driver driver/memory txn/internal/rehearsal txn/journal txn/branch txn/coordinator txn/saga
txn/tcc                 -> . driver observe internal/... txn/journal txn/branch txn/barrier txn/coordinator
txn/tcc/tcctest         -> . driver driver/memory txn/internal/rehearsal txn/branch txn/coordinator txn/tcc
txn/twopc               -> . driver observe internal/... txn/journal txn/branch txn/branchhttp txn/barrier txn/coordinator
txn/choreography        -> . driver internal/... flow/outbox txn/branch txn/barrier
txn/timestamp           -> . driver internal/...
txn/percolator          -> . driver driver/boottime internal/... txn/timestamp
txn/percolator/percolatortest -> . driver history txn/percolator
txn/countermeasure      -> . driver observe internal/... guard/version txn/branch
txn                     -> . driver driver/backend observe internal/... claim/lock claim/partition txn/journal txn/coordinator
txn/httpapi                 -> . driver observe internal/... txn/journal txn/branch txn/branchhttp txn/barrier txn/coordinator txn/saga txn/tcc txn/twopc

# What is built from all of it.
server/...              -> * | *
examples/...            -> * | *
interop                 -> * | *
bench/...               -> * | *
tools/...               ->
`

// testOnly serves tests.
var testOnly = []string{"internal/testbed", "internal/testbed/paths", "internal/testbed/databases",
	"internal/testbed/crash", "internal/prepared/preparedtest", "internal/leasetable/leasetabletest", "internal/picture", "internal/generated", "driver/drivertest",
	"claim/rowlock/rowlocktest", "claim/rwlock/rwlocktest", "claim/partition/partitiontest",
	"claim/elect/electtest", "flow/queue/queuetest", "txn/percolator/percolatortest",
	"txn/saga/sagatest", "txn/tcc/tcctest", "txn/internal/rehearsal", "txn/internal/txntest"}

const modulePath = "github.com/interlock-dev/interlock"

// imports is one package as `go list` shows it.
type imports struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	Module                             struct{ Path, GoMod string }
}

func TestArchitecture(t *testing.T) {
	all := listPackages(t, moduleDirs(t))
	if len(all) < 100 {
		t.Fatalf("only %d packages found", len(all))
	}
	for _, v := range violations(policy, all) {
		t.Error(v)
	}
	requires(t, all)
}

// requires checks that each module requires those of ours that it imports, also in tests. The
// workspace builds without that, and go mod tidy then changes the module.
func requires(t *testing.T, all []imports) {
	t.Helper()
	module, mod := map[string]string{}, map[string]string{}
	for _, p := range all {
		module[p.ImportPath] = p.Module.Path
		if text, err := os.ReadFile(p.Module.GoMod); err == nil {
			mod[p.Module.Path] = string(text)
		}
	}
	for _, p := range all {
		for _, to := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if m := module[to]; m != "" && m != p.Module.Path && !strings.Contains(mod[p.Module.Path], m+" v") {
				t.Errorf("%s imports %s: go.mod does not require %s", p.ImportPath, to, m)
			}
		}
	}
}

// TestArchitectureIsChecked plants violations in a graph that is fine without
// them.
func TestArchitectureIsChecked(t *testing.T) {
	const policy = `
.            ->
driver       -> .
driver/redis -> . driver internal/... | example.org/redis
driver/etcd  -> . driver
claim/lock   -> . driver internal/...
server/...   -> * | *
`
	for _, c := range []struct{ pkg, imports, want string }{
		{".", "fmt", ""},
		{".", "@/driver", "driver"},
		{".", "example.org/x", "example.org/x"},
		{"driver/redis", "@ @/driver @/internal/backoff example.org/redis/v2", ""},
		{"driver/redis", "example.org/rediscovery", "example.org/rediscovery"},
		{"driver/redis", "@/driver/etcd", "driver/etcd"},
		{"driver/redis", "@/claim/lock", "claim/lock"},
		{"driver/redis", "@/internal/testbed", "tests"},
		{"driver/etcd", "@/internal/backoff", "internal/backoff"},
		{"claim/lock", "@/driver/redis", "driver/redis"},
		{"claim/lock", "@/driver/drivertest", "tests"},
		{"claim/elect", "@", "no line"},
		{"server/cmd", "@/claim/lock @/driver/redis @/server/internal/cli example.org/x", ""},
		{"server/cmd", "@/internal/backoff", "internal"},
		{"server/cmd", "@/internal/testbed", "tests"},
		{"serverless", "@", "no line"},
	} {
		got := strings.Join(violations(policy, []imports{planted(c.pkg, c.imports)}), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) || c.want != "" && got == "" {
			t.Errorf("%s importing %s: %q, want something about %q", c.pkg, c.imports, got, c.want)
		}
	}
}

// planted is a package that imports a list in which @ is our module.
func planted(pkg, list string) imports {
	p := imports{ImportPath: path.Join(modulePath, pkg)}
	p.Imports = strings.Fields(strings.ReplaceAll(list, "@", modulePath))
	p.Module.Path = modulePath
	for _, nested := range []string{"driver/etcd", "server"} {
		if within(pkg, nested) {
			p.Module.Path = path.Join(modulePath, nested)
		}
	}
	return p
}

// violations checks packages against a policy, one sentence each.
func violations(policy string, all []imports) []string {
	lines := parsePolicy(policy)
	var found []string
	for _, p := range all {
		pkg, _ := ours(p.ImportPath)
		line, ok := lineOf(lines, pkg)
		if !ok {
			found = append(found, fmt.Sprintf("%s has no line in the policy of arch_test.go", pkg))
			continue
		}
		for _, to := range p.Imports {
			if why := line.refuses(p, to); why != "" {
				found = append(found, fmt.Sprintf("%s may not import %s: %s", pkg, to, why))
			}
		}
	}
	return found
}

// A line is one arrow of the policy.
type line struct {
	pkg          string
	ours, theirs []string
}

func parsePolicy(text string) []line {
	var lines []line
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		pkg, rest, _ := strings.Cut(l, "->")
		ours, theirs, _ := strings.Cut(rest, "|")
		lines = append(lines, line{strings.TrimSpace(pkg), strings.Fields(ours), strings.Fields(theirs)})
	}
	return lines
}

// lineOf finds the line that fits a package best: the longest.
func lineOf(lines []line, pkg string) (best line, ok bool) {
	for _, l := range lines {
		if fits(l.pkg, pkg) && len(l.pkg) > len(best.pkg) {
			best, ok = l, true
		}
	}
	return best, ok
}

// refuses says why a package that has this line must not import something, or
// nothing.
func (l line) refuses(p imports, to string) string {
	target, own := ours(to)
	switch {
	case !own && !strings.Contains(strings.Split(to, "/")[0], "."):
		return "" // the standard library
	case !own:
		if slices.ContainsFunc(l.theirs, func(prefix string) bool { return prefix == "*" || within(to, prefix) }) {
			return ""
		}
		return "not one of the libraries that it may use"
	case slices.Contains(testOnly, target) && !within(l.pkg, target) && !slices.Contains(testOnly, l.pkg):
		return "it serves tests only"
	case within(target, "internal") && p.Module.Path != modulePath:
		return "it is internal to the root module"
	case slices.ContainsFunc(l.ours, func(pattern string) bool { return fits(pattern, target) }):
		return ""
	case !slices.Contains(l.ours, "*"):
		return "no arrow of the policy leads there"
	}
	return ""
}

// ours is a package's name below the root package, "." for that itself.
func ours(importPath string) (pkg string, ok bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

func fits(pattern, pkg string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(pkg, below)
	}
	return pattern == pkg
}

func within(pkg, parent string) bool {
	return pkg == parent || strings.HasPrefix(pkg, parent+"/")
}

// moduleDirs lists the directories of go.work.
func moduleDirs(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("go.work")
	testbed.OK(t, err)
	var dirs []string
	for _, match := range regexp.MustCompile(`(?m)^\s+(\.\S*)$`).FindAllStringSubmatch(string(text), -1) {
		dirs = append(dirs, match[1])
	}
	if !slices.Contains(dirs, ".") {
		t.Fatalf("go.work lists %q, and not this module", dirs)
	}
	return dirs
}

// listPackages lists the packages of all modules by one call of go.
func listPackages(t *testing.T, dirs []string) []imports {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Module")
	for _, dir := range dirs {
		cmd.Args = append(cmd.Args, dir+"/...")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testbed.OK(t, err)
	var found []imports
	for decoder := json.NewDecoder(out); ; {
		var p imports
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		found = append(found, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	return found
}

// forbidden are names that say nothing about what is inside.
var forbidden = regexp.MustCompile(`^(util|common|helper|misc|base|type)s?(_test)?(\.go)?$`)

func TestNamesSaySomething(t *testing.T) {
	seen := 0
	eachGoFile(t, func(file string) {
		seen++
		for part := range strings.SplitSeq(file, "/") {
			if forbidden.MatchString(part) {
				t.Errorf("%s: a name like %q does not say what is inside", file, part)
			}
		}
	})
	if seen < 20 {
		t.Errorf("only %d files found", seen)
	}
	for name, want := range map[string]bool{
		"util": true, "utils.go": true, "types.go": true, "helpers_test.go": true, "base": true, "common_test.go": true,
		"types_linux.go": false, "baseline.go": false, "utility": false, "lock.go": false,
	} {
		if forbidden.MatchString(name) != want {
			t.Errorf("%q: forbidden is %v, want %v", name, !want, want)
		}
	}
}

// ownTextRule is driver.CheckText written again.
var ownTextRule = regexp.MustCompile(`ValidString\(.*(ContainsRune|IndexByte|Contains)\(.*(, 0\)|\\x00)`)

// There is one rule for names that stores keep.
func TestOneRuleForNames(t *testing.T) {
	eachGoFile(t, func(file string) {
		text, err := os.ReadFile(file)
		testbed.OK(t, err)
		if found := ownTextRule.Find(text); found != nil && file != "driver/driver.go" {
			t.Errorf("%s: use driver.CheckText in place of %s", file, found)
		}
	})
}

// eachGoFile visits every Go file of every module, by its path from here.
func eachGoFile(t *testing.T, visit func(file string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(file, ".go"):
			visit(filepath.ToSlash(file))
		}
		return nil
	})
	testbed.OK(t, err)
}
