package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var (
	only     = flag.String("run", "", "measure only cases whose name matches the regular `expression`")
	rounds   = flag.Int("rounds", 0, "measure each side so often; 0 only shows that one case of each store works")
	window   = flag.Duration("time", 500*time.Millisecond, "measure each side for so long in a round")
	output   = flag.String("o", "", "write the report as JSON to a `file`")
	recorded = flag.String("gate", "", "compare with the report in a `file`: fail if a ratio is below 80 % of the one there")
	pictures = flag.String("draw", "", "draw the ratios into a `directory`")
)

func TestMain(m *testing.M) { testbed.Main(m) }

// benchmark is a case with its sides.
type benchmark struct {
	compare.Case
	smoke bool // it is tried on every change
	open  func(tb testing.TB) []compare.Side
}

// suites are the benchmarks by store. A suite starts its server when a case is opened.
var suites = []struct {
	name  string
	cases func(tb testing.TB) []benchmark
}{
	{"memory", memoryCases},
	{"redis", redisCases},
	{"quorum", quorumCases},
	{"etcd", etcdCases},
	{"zookeeper", zookeeperCases},
	{"consul", consulCases},
	{"postgres", postgresCases},
	{"mariadb", mariadbCases},
	{"saga", sagaCases},
	{"outbox", outboxCases},
	{"queue", queueCases},
	{"kafka", kafkaCases},
	{"streams", streamCases},
	{"limit", limitCases},
	{"percolator", percolatorCases},
}

// TestBench measures the cases in turn, each alone on the machine, and prints the table.
// Without -rounds it runs one case of each suite for a moment.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	names, err := regexp.Compile(*only)
	ok(t, err)
	r := &run{now: compare.Report{Machine: compare.ThisMachine(), Began: time.Now(), Rounds: *rounds, Window: *window}}
	if *recorded != "" {
		r.before, err = compare.Read(*recorded)
		ok(t, err)
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			for _, b := range s.cases(t) {
				if names.MatchString(b.Name) && (*rounds > 0 || b.smoke) {
					t.Run(b.Name, func(t *testing.T) { r.measure(t, b) })
				}
			}
		})
	}
	if *rounds > 0 {
		r.report(t)
	}
}

// run collects the measurements, and has the recorded ones.
type run struct{ now, before compare.Report }

// measure adds the result of a case. If the gate would fail it, it is measured once more.
func (r *run) measure(t *testing.T, b benchmark) {
	o := compare.Options{Rounds: 1, Window: 30 * time.Millisecond}
	if *rounds > 0 {
		o = compare.Options{Rounds: *rounds, Window: *window, Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	}
	sides := b.open(t)
	result, err := b.Measure(t.Context(), sides, o)
	ok(t, err)
	if failed, _ := r.gate(compare.Report{Results: []compare.Result{result}}); len(failed) > 0 {
		again, err := b.Measure(t.Context(), sides, o)
		ok(t, err)
		result.Join(again)
	}
	if verdict := result.Checker(); verdict != "ok" {
		t.Errorf("the checker found: %s", verdict)
	}
	r.now.Results = append(r.now.Results, result)
}

// gate compares a report with the recorded one, if there is a record.
func (r *run) gate(report compare.Report) (failed, unclear []string) {
	if *recorded == "" {
		return nil, nil
	}
	return compare.Gate(report, r.before)
}

// report prints the table and does what the flags request.
func (r *run) report(t *testing.T) {
	r.now.Servers, r.now.Peers, r.now.Took = servers(t), peers(t), time.Since(r.now.Began)
	ok(t, r.now.Table(os.Stdout))
	if *output != "" {
		ok(t, r.now.Write(*output))
	}
	if *pictures != "" {
		draw(t, r.now, *pictures)
	}
	failed, unclear := r.gate(r.now)
	for _, text := range failed {
		t.Error(text)
	}
	for _, text := range unclear {
		fmt.Println("gate:", text)
	}
}

func ok(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// closeAfter closes a resource after the case, with a time limit.
func closeAfter(tb testing.TB, closing func(ctx context.Context) error) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := closing(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			tb.Error(err)
		}
	})
}

var version = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)

// servers returns the versions of the installed servers.
func servers(tb testing.TB) (all []string) {
	postgres, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, s := range []struct {
		name  string
		paths []string
	}{
		{"Redis", []string{"redis-server"}}, {"etcd", []string{testbed.Binary(tb, "etcd")}},
		{"PostgreSQL", append(postgres, "postgres")}, {"MariaDB", []string{"mariadbd", "/usr/sbin/mariadbd"}},
	} {
		for _, path := range s.paths {
			if text, err := exec.Command(path, "--version").Output(); err == nil {
				all = append(all, s.name+" "+version.FindString(string(text)))
				break
			}
		}
	}
	if jars, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar"); len(jars) > 0 {
		all = append(all, "ZooKeeper "+version.FindString(filepath.Base(jars[0])))
	}
	return all
}

var required = regexp.MustCompile(`(?m)^\t(\S+ v\S+)$`)

// peers returns the libraries that go.mod requires, with their versions.
func peers(tb testing.TB) (all []string) {
	text, err := os.ReadFile("go.mod")
	ok(tb, err)
	for _, found := range required.FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(found[1], "/interlock") {
			all = append(all, strings.TrimPrefix(found[1], "github.com/"))
		}
	}
	return all
}
