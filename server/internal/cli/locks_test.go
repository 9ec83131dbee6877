package cli_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// stores are the other lock services, with their URLs.
var stores = map[string]func(*testing.T) (url string){
	"postgres":       postgresURL,
	"postgres-table": func(t *testing.T) string { return tabled(postgresURL(t)) },
	"mysql":          func(t *testing.T) string { return mariadbURL(testbed.MariaDB(t)) },
	"mysql-table":    func(t *testing.T) string { return mariadbURL(testbed.MariaDB(t)) + "?mode=table" },
	"zookeeper":      func(t *testing.T) string { return "zookeeper://" + testbed.ZooKeeper(t).Addr() + "/locks" },
	"consul":         func(t *testing.T) string { return "consul://" + testbed.Consul(t).Addr() },
	"kube":           kubeURL,
}

// postgresURL creates a database on the server that the tests share.
func postgresURL(t *testing.T) string {
	return databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx).URL
}

func mariadbURL(s *testbed.Server) string { return "mariadb://root@" + s.Addr() + "/test" }

// tabled returns a database's URL with the lease table for locks.
func tabled(url string) string { return url + "&mode=table" }

// kubeURL returns a namespace of an API server.
func kubeURL(t *testing.T) string {
	return kubeConfigFor(t, testbed.SharedKube(t), testbed.KubeAdmin)
}

func kubeConfigFor(t *testing.T, k *testbed.Kube, token string) string {
	return kubeConfig(t, k.URL(), k.CA, token, k.Namespace)
}

// kubeConfig writes a kubeconfig and names it in a URL.
func kubeConfig(t *testing.T, server string, ca []byte, token, namespace string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: %s}}]
`, server, base64.StdEncoding.EncodeToString(ca), token, namespace)
	testbed.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return "kube://?kubeconfig=" + file
}

// everywhere runs a test on every backend that has fenced locks.
func everywhere(t *testing.T, run func(t *testing.T, name, url string)) {
	for _, list := range []map[string]func(*testing.T) string{backends, stores} {
		for name, start := range list {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				program(t)
				run(t, name, start(t))
			})
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, name, url string) {
		scripts(t, "locks", map[string]string{"INTERLOCK_BACKEND": url, "KIND": name})
	})
}

// An unreachable cluster is reported on one line, without its client's log.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	program(t)
	url := kubeConfig(t, "http://127.0.0.1:1", nil, "s3cret", "default")
	_, said := run(t, 69, "locks", "ls", "--backend", url)
	if !strings.Contains(said, "cannot reach kube://") || strings.Count(said, "\n") != 1 || strings.Contains(said, "s3cret") {
		t.Errorf("it said %q", said)
	}
}

// Elections also work without values.
func TestElectionsWithoutValues(t *testing.T) {
	t.Parallel()
	program(t)
	url := mariadbURL(testbed.MariaDB(t))
	if _, message := run(t, 78, "elect", "billing", "--backend", url, "--", "true"); !strings.Contains(message, "--accept-weakness") {
		t.Error(message) // a session does not exclude others over a partition
	}
	led, _ := run(t, 0, "elect", "billing", "--backend", url, "--accept-weakness", "--", "echo", "leads")
	if led != "leads\n" {
		t.Errorf("it printed %q", led)
	}
	run(t, 0, "elect", "observe", "billing", "--once", "--backend", url)
}

// TestManyInternalLocks checks that internal locks, however many, neither hide others nor count as more of them.
func TestManyInternalLocks(t *testing.T) {
	t.Parallel()
	url := backends["redis"](t)
	b, err := backend.Open(t.Context(), url)
	testbed.OK(t, err)
	defer b.Close(context.Background())
	locks, err := b.Fenced(t.Context(), backend.LockOptions{TTL: time.Hour})
	testbed.OK(t, err)
	take := func(name string) {
		_, err := locks.Acquire(t.Context(), driver.Request{Name: name, Owner: "me"})
		testbed.OK(t, err)
	}
	for i := range 1100 {
		take(fmt.Sprint("interlock.outbox/", i))
	}
	take("nightly")
	if out, said := run(t, 0, "locks", "ls", "--limit", "10", "--backend", url); !strings.Contains(out, "\nnightly ") || said != "" {
		t.Errorf("%s%s", said, out)
	}
	take("yearly")
	if out, said := run(t, 0, "locks", "ls", "--limit", "1", "--backend", url); strings.Count(out, "\n") != 2 || !strings.Contains(said, "there are more") {
		t.Errorf("%s%s", said, out)
	}
}

// TestGraph shows a task that waits while it holds something, in every format.
func TestGraph(t *testing.T) {
	t.Parallel()
	program(t)
	for name, url := range map[string]string{"redis": backends["redis"](t), "etcd": backends["etcd"](t), "postgres": postgresURL(t), "consul": "consul://" + testbed.Consul(t).Addr()} {
		t.Run(name, func(t *testing.T) { graph(t, url) })
	}
	run(t, 64, "locks", "graph", "--format", "svg")
	run(t, 64, "locks", "graph", "more")
}

func graph(t *testing.T, url string) {
	on := func(args ...string) string {
		t.Helper()
		out, _ := run(t, 0, append([]string{"locks", "graph", "--backend", url}, args...)...)
		return out
	}
	if out := on("-o", "json"); out != "[]\n" {
		t.Errorf("without waiters it shows %s", out)
	}
	b, err := backend.Open(t.Context(), url)
	testbed.OK(t, err)
	defer b.Close(context.Background())
	board, ok := b.KeyValues("")
	if !ok {
		t.Fatal("it has no board")
	}
	d := deadlock.New(&deadlock.Options{Delay: time.Millisecond})
	ctx, cancel := context.WithCancel(d.Task(t.Context(), `say "hi"`, 0))
	drop, err := deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: "held"}, func(context.Context) error { return nil })
	testbed.OK(t, err)
	over := testbed.Later(t, time.Minute, func() error {
		_, err := deadlock.Wait(ctx, deadlock.Resource{Board: board, Name: "awaited"}, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		return err
	})
	var all []struct {
		Task, Awaits string
		Holds        []string
		Since        time.Time
	}
	testbed.Eventually(t, "the wait is published", time.Minute, func() bool {
		return json.Unmarshal([]byte(on("-o", "json")), &all) == nil && len(all) == 1
	})
	if w := all[0]; w.Task != `say "hi"` || w.Awaits != "awaited" || len(w.Holds) != 1 || w.Holds[0] != "held" || time.Since(w.Since) > time.Minute {
		t.Errorf("it shows %+v", w)
	}
	for format, want := range map[string]string{"text": "awaited  held", "dot": `"say \"hi\"" -> "awaited" [label=awaits]`, "mermaid": `n0["task say #quot;hi#quot;"]`} {
		if out := on("--format", format); !strings.Contains(out, want) {
			t.Errorf("%s lacks %s:\n%s", format, want, out)
		}
	}
	cancel()
	_ = over()
	drop()
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if out := on("-o", "json"); out != "[]\n" {
		t.Errorf("after it has ended it shows %s", out)
	}
}

// On a terminal the holder and the effects are shown before the release. Any answer
// but yes is no.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holder := holding(t, url, "nightly", "--ttl", "9s")
	ask := func() *console {
		c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
		c.sees("nightly is held by ")
		c.sees(" with token ")
		c.sees("only a guard rejects its later writes")
		c.sees("release it? [y/N] ")
		return c
	}
	for _, answer := range []string{"\r", "n\r", "yess\r"} {
		c := ask()
		c.types(answer)
		c.sees("not released")
		c.ends(1)
	}
	c := ask()
	c.types(ctrlC)
	c.ends(-1) // by the signal
	if list, _ := run(t, 0, "locks", "ls", "--backend", url); !strings.Contains(list, "nightly") {
		t.Fatalf("without a yes it was released: %s", list)
	}
	c = ask()
	c.types("y\r")
	c.sees("nightly: taken from ")
	c.ends(0)
	wantCode(t, holder, 79)
}

// Only the shown holder is released: a later one keeps the lock.
func TestReleaseRefusesAnotherHolder(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	first := holding(t, url, "nightly")
	c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
	c.sees("release it? [y/N] ")
	end(t, first, syscall.SIGTERM, 143)
	second := holding(t, url, "nightly")
	c.types("y\r")
	c.sees("not released: by now nightly is held by ")
	c.ends(75)
	end(t, second, syscall.SIGTERM, 143)
	if list, _ := run(t, 0, "locks", "history", "--backend", url); list != "" {
		t.Errorf("recorded is %s", list)
	}
}

// On databases the effect on a session lock is printed before the release.
func TestReleaseTellsItsPrice(t *testing.T) {
	t.Parallel()
	program(t)
	url := postgresURL(t)
	holding(t, url, "nightly")
	c := open(t, program(t), "locks", "release", "nightly", "--reason", "host is gone", "--backend", url)
	c.sees("whole session ended")
	c.sees("release it? [y/N] ")
	c.types("n\r")
	c.ends(1)
}

// A pooler in transaction mode is rejected with a next step, and that step works.
func TestAPoolerNeedsTheTable(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Postgres(t)
	url := testbed.PgBouncer(t, server, "transaction").URL()
	_, said := run(t, 78, "lock", "nightly", "--backend", url, "--", "true")
	if !strings.Contains(said, "a pooler in transaction mode") || !strings.Contains(said, "?mode=table in the URL") || strings.Count(said, "\n") != 1 {
		t.Errorf("it said %q", said)
	}
	run(t, 0, "lock", "nightly", "--backend", tabled(url), "--", "true")
	described := tabled(url) + "&default_query_exec_mode=cache_describe"
	run(t, 0, "saga", "start", "1", "order", "--backend", described)
	run(t, 0, "saga", "start", "2", "order", "--backend", described)
	if list, _ := run(t, 0, "saga", "ls", "--backend", described); strings.Count(list, "RUNNING") != 2 {
		t.Error(list)
	}
}

// A user without access gets an error of one line and its own exit code.
func TestReadingIsForbidden(t *testing.T) {
	t.Parallel()
	program(t)
	url := strings.Replace(mariadbURL(testbed.Shared(t, testbed.MariaDB)), "root@", "nobody:s3cret@", 1)
	t.Run("mysql", func(t *testing.T) { mustForbid(t, url, "rejects the credentials") })
	k := testbed.SharedKube(t)
	t.Run("kube", func(t *testing.T) { mustForbid(t, kubeConfigFor(t, k, testbed.KubeUser), "does not permit this") })
	t.Run("kube, unknown", func(t *testing.T) { mustForbid(t, kubeConfigFor(t, k, "s3cret"), "rejects the credentials") })
	t.Run("kube, tokens", func(t *testing.T) { tokensOnKube(t, k) })
}

func mustForbid(t *testing.T, url, want string) {
	t.Helper()
	_, said := run(t, 77, "locks", "ls", "--backend", url)
	if !strings.Contains(said, want) || strings.Count(said, "\n") != 1 || strings.Contains(said, "s3cret") {
		t.Errorf("it said %q", said)
	}
}

// watchedLine is a line of locks watch -o json.
type watchedLine struct {
	At, Change, Name string
	Holder           *struct{ Owner, Token string }
	Waiters          []struct{ Owner string }
}

func watching(t *testing.T, url string, args ...string) *testbed.Process {
	t.Helper()
	return testbed.Command(t, program(t), append([]string{"locks", "watch", "--backend", url, "--timeout", "1s"}, args...)...)
}

// next reads lines until one has this change of a lock.
func next(t *testing.T, p *testbed.Process, name, change string) watchedLine {
	t.Helper()
	for {
		line := p.Line(patience)
		var w watchedLine
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if w.Name == name && w.Change == change {
			return w
		}
	}
}

// TestHoldWithoutReader: a lock whose grant nobody can read is released.
func TestHoldWithoutReader(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	p := testbed.Command(t, "bash", "-c", `exec > >(:); wait $!; "$0" locks hold nightly --ttl 1h --backend "$1"; exit $?`, program(t), url)
	wantCode(t, p, 64)
	run(t, 0, "lock", "nightly", "--no-wait", "--backend", url, "--", "true")
}

// holding takes a lock and returns when it is held.
func holding(t *testing.T, url, name string, args ...string) *testbed.Process {
	t.Helper()
	p := testbed.Command(t, program(t), slices.Concat([]string{"locks", "hold", "--backend", url}, args, []string{"--", name})...)
	var grant struct{ Lock string }
	if line := p.Line(patience); json.Unmarshal([]byte(line), &grant) != nil || grant.Lock != name {
		t.Fatalf("it said %q; %s", line, p.Stderr())
	}
	return p
}

func end(t *testing.T, p *testbed.Process, s syscall.Signal, code int) {
	t.Helper()
	p.Signal(s)
	wantCode(t, p, code)
}

// Every lasting state is printed: the first one, a holder, waiters, the end, and only
// below the prefix. A signal ends the watch with 0. The suites of the other drivers
// show the same.
func TestWatch(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		first := holding(t, url, "nightly")
		w := watching(t, url, "-o", "json", "--", "night")
		held := next(t, w, "nightly", "held")
		if held.Holder == nil || held.Holder.Owner == "" || held.Holder.Token == "" || held.At == "" {
			t.Fatalf("%+v", held)
		}
		other := holding(t, url, "weekly")
		end(t, first, syscall.SIGTERM, 143)
		if w := next(t, w, "nightly", "free"); w.Holder != nil {
			t.Fatalf("%+v", w)
		}
		second := holding(t, url, "nightly")
		if w := next(t, w, "nightly", "held"); w.Holder.Owner == held.Holder.Owner || w.Holder.Token == held.Holder.Token {
			t.Fatalf("%+v after %+v", w, held)
		}
		end(t, second, syscall.SIGTERM, 143)
		next(t, w, "nightly", "free")
		end(t, other, syscall.SIGTERM, 143)
		end(t, w, syscall.SIGTERM, 0)
		if said := w.Stderr(); said != "" {
			t.Errorf("it said %q", said)
		}
	})
}

// A crashed holder is reported when its lease expires.
func TestWatchSeesAnExpiry(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		p := holding(t, url, "nightly", "--ttl", "5s")
		w := watching(t, url, "-o", "json")
		next(t, w, "nightly", "held")
		end(t, p, syscall.SIGKILL, -1)
		next(t, w, "nightly", "free")
		end(t, w, syscall.SIGINT, 0)
	})
}

// An outage is reported once, and changes during it are printed afterwards.
func TestWatchSurvivesAnInterruption(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t)
	through := testbed.NewProxy(t, server.Addr())
	w := watching(t, "redis://"+through.Addr(), "-o", "json")
	holding(t, "redis://"+server.Addr(), "nightly")
	next(t, w, "nightly", "held")
	through.Cut()
	saysOf(t, w, `interrupted: .+; trying again\n`)
	holding(t, "redis://"+server.Addr(), "weekly")
	through.Heal()
	next(t, w, "weekly", "held")
	saysOf(t, w, `redis://.+ answers again\n`)
	end(t, w, syscall.SIGINT, 0)
	if n := strings.Count(w.Stderr(), "interrupted"); n != 1 {
		t.Errorf("reported %d times: %s", n, w.Stderr())
	}
}

// Ends during an outage are printed as well.
func TestWatchSeesTheEndAfterAnInterruption(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t)
	through := testbed.NewProxy(t, server.Addr())
	holder := holding(t, "redis://"+server.Addr(), "nightly")
	w := watching(t, "redis://"+through.Addr(), "-o", "json")
	next(t, w, "nightly", "held")
	through.Cut()
	saysOf(t, w, `interrupted: `)
	end(t, holder, syscall.SIGTERM, 143)
	through.Heal()
	next(t, w, "nightly", "free")
	end(t, w, syscall.SIGINT, 0)
}

// saysOf waits for a pattern on the standard error.
func saysOf(t *testing.T, p *testbed.Process, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	testbed.Eventually(t, pattern, patience, func() bool { return wanted.MatchString(p.Stderr()) })
}

// The TTL of a URL counts unless there is a --ttl.
func TestTheTTLOfTheURL(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	for flags, want := range map[string]string{"": "7000", "--ttl 9s": "9000"} {
		args := append([]string{"--backend", url + "?ttl=7s"}, strings.Fields(flags)...)
		if out, _ := run(t, 0, append([]string{"locks", "hold", "job"}, args...)...); !strings.Contains(out, `"ttl_ms":`+want) {
			t.Errorf("%q: hold printed %s", flags, out)
		}
		for _, command := range []string{"lock", "elect"} {
			args := append([]string{command, "job"}, args...)
			if out, _ := run(t, 0, append(args, "--", "sh", "-c", "echo $INTERLOCK_TTL_MS")...); out != want+"\n" {
				t.Errorf("%q: the command of %s received %s", flags, command, out)
			}
		}
	}
}
