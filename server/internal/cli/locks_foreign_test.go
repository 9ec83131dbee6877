package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/server/internal/cli"
)

// run runs a command line that must end with an exit code, and returns its output.
func run(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := outcome(t, args...)
	if got != code {
		t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, code, stdout, stderr)
	}
	return stdout, stderr
}

// outcome runs a command line to its end, in this process if it starts no other command.
func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if !slices.Contains(args, "--") {
		return cli.RunWithin(t, args...)
	}
	cmd := exec.Command(program(t), args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	_ = cmd.Run() // the exit code is checked
	return cmd.ProcessState.ExitCode(), out.String(), said.String()
}

// wantLines requires lines of a list, in order.
func wantLines(t *testing.T, list string, patterns ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if len(lines) != len(patterns)+1 {
		t.Fatalf("%d locks, want %d:\n%s", len(lines)-1, len(patterns), list)
	}
	for i, pattern := range patterns {
		if !regexp.MustCompile("^" + pattern + "$").MatchString(lines[i+1]) {
			t.Errorf("%q is not %q", lines[i+1], pattern)
		}
	}
}

// Locks of other clients are marked foreign, and the client is named where it is visible.
// Each is written here byte by byte as that client does. Package interop tests those of etcd.
func TestForeignLocksOnRedis(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	testbed.OK(t, err)
	defer client.Close()
	for _, command := range [][]string{
		{"SET", "jobs/a", "0123456789abcdef0123456789abcdef", "NX", "PX", "60000"},
		{"SET", "jobs/b", "QUJDREVGR0hJSktMTU5PUA==", "NX", "PX", "60000"},
		{"HSET", "jobs/c", "9f1c2d3e-0000-4abc-8def-0123456789ab:47", "1"},
		{"PEXPIRE", "jobs/c", "60000"},
	} {
		testbed.OK(t, client.Do(t.Context(), client.B().Arbitrary(command...).Build()).Error())
	}
	url := "redis://" + server.Addr()
	holding(t, url, "jobs/ours")
	list, _ := run(t, 0, "locks", "ls", "jobs/", "--foreign", "--backend", url)
	wantLines(t, list,
		`jobs/a +redis-py 0123456789abcdef0123456789abcdef \(foreign\) +- +- +in [0-9.ms]+ +0`,
		`jobs/b +redsync QUJDREVGR0hJSktMTU5PUA== \(foreign\) +- +- +in [0-9.ms]+ +0`,
		`jobs/c +Redisson 9f1c2d3e-0000-4abc-8def-0123456789ab:47 \(foreign\) +- +- +in [0-9.ms]+ +0`)
	list, _ = run(t, 0, "locks", "ls", "jobs/", "--foreign", "-o", "json", "--backend", url)
	if n := strings.Count(list, `"foreign":true`); n != 3 || strings.Contains(list, `"jobs/ours"`) {
		t.Errorf("%d are foreign: %s", n, list)
	}
	list, _ = run(t, 0, "locks", "ls", "jobs/", "-o", "json", "--backend", url)
	if n := strings.Count(list, `"foreign":true`); n != 0 || !strings.Contains(list, `"jobs/ours"`) {
		t.Errorf("without a scan of the database %d are foreign: %s", n, list)
	}
	run(t, 64, "locks", "ls", "--foreign", "--backend", url)
	list, _ = run(t, 0, "locks", "ls", "--foreign", "-o", "json", "--backend", url+"?prefix=jobs/")
	if n := strings.Count(list, `"foreign":true`); n != 3 {
		t.Errorf("with the prefix of the URL %d are foreign: %s", n, list)
	}
	if _, said := run(t, 78, "lock", "jobs/c", "--no-wait", "--backend", url, "--", "true"); !strings.Contains(said, "interlock locks show NAME") {
		t.Error(said)
	}
	released, said := run(t, 0, "locks", "release", "jobs/a", "--reason", "host is gone", "--yes", "--backend", url)
	if !strings.HasPrefix(released, "jobs/a: taken from redis-py ") || !strings.Contains(said, "another kind of client") {
		t.Errorf("%q, %q", released, said)
	}

	// Plain locks can be inspected and broken, not acquired.
	plain := url + "?mode=plain"
	shown, _ := run(t, 0, "locks", "show", "jobs/b", "--backend", plain)
	if !strings.Contains(shown, "redsync QUJDREVGR0hJSktMTU5PUA== (foreign)") {
		t.Error(shown)
	}
	_, said = run(t, 78, "locks", "ls", "--backend", plain)
	if !strings.Contains(said, "cannot be distinguished from other strings: set a prefix, as by ?prefix= of the URL") {
		t.Error(said)
	}
	run(t, 64, "locks", "hold", "jobs/b", "--backend", plain)
}

// Curator and the Go client write protected sequential nodes, kazoo its own kind.
func TestForeignLocksOnZooKeeper(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.ZooKeeper(t)
	conn, _, err := zk.Connect([]string{server.Addr()}, 10*time.Second, zk.WithLogger(hush{}))
	testbed.OK(t, err)
	defer conn.Close()
	for _, node := range []struct {
		path, data string
		flags      int32
	}{
		{"/locks", "", 0}, {"/locks/a", "", 0}, {"/locks/b", "", 0}, {"/locks/c", "", 0},
		{"/locks/a/_c_9f1c2d3e-0000-4abc-8def-0123456789ab-lock-", "10.0.0.1", zk.FlagEphemeral | zk.FlagSequence},
		{"/locks/b/0123456789abcdef0123456789abcdef__lock__", "worker-7", zk.FlagEphemeral | zk.FlagSequence},
		{"/locks/c/_c_0123456789abcdef0123456789abcdef-lock-", "", zk.FlagEphemeral | zk.FlagSequence},
	} {
		if _, err := conn.Create(node.path, []byte(node.data), node.flags, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(node.path, err)
		}
	}
	list, _ := run(t, 0, "locks", "ls", "--backend", "zookeeper://"+server.Addr()+"/locks")
	wantLines(t, list,
		`a +curator _c_9f1c.+-lock-0000000000 \(10.0.0.1\) \(foreign\) .*`,
		`b +kazoo 0123.+__lock__0000000000 \(worker-7\) \(foreign\) .*`,
		`c +go-zookeeper _c_0123.+-lock-0000000000 \(foreign\) .*`)
}

type hush struct{}

func (hush) Printf(string, ...any) {}

// A Lease of client-go's leaderelection.
func TestForeignLocksInKubernetes(t *testing.T) {
	t.Parallel()
	program(t)
	k := testbed.SharedKube(t)
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	postLease(t, k, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"controller"},"spec":{
		"holderIdentity":"pod-7_9f1c","leaseDurationSeconds":60,"acquireTime":"`+now+`","renewTime":"`+now+`","leaseTransitions":3}}`)
	list, _ := run(t, 0, "locks", "ls", "--backend", kubeConfigFor(t, k, testbed.KubeAdmin))
	wantLines(t, list, `controller +pod-7_9f1c \(foreign\) +- +.+ in [0-9ms.]+ +0`)
	shown, _ := run(t, 0, "locks", "show", "controller", "-o", "json", "--backend", kubeConfigFor(t, k, testbed.KubeAdmin))
	if !strings.Contains(shown, `"owner":"pod-7_9f1c"`) || !strings.Contains(shown, `"foreign":true`) {
		t.Error(shown)
	}

	// An older version without tokens can be inspected on request.
	old := kubeConfig(t, beforeTokens(t, k), nil, testbed.KubeAdmin, k.Namespace)
	_, said := run(t, 78, "locks", "ls", "--backend", old)
	if !strings.Contains(said, "1.34") {
		t.Error(said)
	}
	list, _ = run(t, 0, "locks", "ls", "contr", "--backend", old+"&mode=advisory")
	wantLines(t, list, `controller +pod-7_9f1c \(foreign\) +- +.+ in [0-9ms.]+ +0`)
	run(t, 64, "locks", "hold", "controller", "--backend", old+"&mode=advisory")
}

// beforeTokens starts a proxy of a server that reports an older version.
func beforeTokens(t *testing.T, k *testbed.Kube) (address string) {
	t.Helper()
	to, err := url.Parse(k.URL())
	testbed.OK(t, err)
	transport := &http.Transport{TLSClientConfig: k.TLS()}
	t.Cleanup(transport.CloseIdleConnections)
	through := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("Authorization", "Bearer "+testbed.KubeAdmin) // clients send none without TLS
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprint(w, `{"major":"1","minor":"34"}`)
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func postLease(t *testing.T, k *testbed.Kube, lease string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: k.TLS()}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		k.URL()+"/apis/coordination.k8s.io/v1/namespaces/"+k.Namespace+"/leases", strings.NewReader(lease))
	testbed.OK(t, err)
	request.Header.Set("Authorization", "Bearer "+testbed.KubeAdmin)
	request.Header.Set("Content-Type", "application/json")
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(request)
	testbed.OK(t, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatal(answer.Status)
	}
}

// A table of ShedLock is found by its default name, and by a given one. Expired locks are not
// held.
func TestShedLock(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		urls := []string{shopURL(db), databases.With(shopURL(db), "mode=table")}
		fill := func(table string) {
			db.Exec(t, `create table `+table+` (name varchar(64) not null primary key, lock_until timestamp(3) not null,
				locked_at timestamp(3) not null, locked_by varchar(255) not null)`)
			insert := map[driver.Dialect]string{driver.Postgres: "", driver.MariaDB: "set statement time_zone = '+00:00' for "}[db.Dialect] + "insert into"
			at := func(d time.Duration) string { return time.Now().UTC().Add(d).Format("'2006-01-02 15:04:05.000'") }
			for name, left := range map[string]time.Duration{"nightly": 10 * time.Minute, "over": -time.Second, "weekly_a": time.Hour} {
				db.Exec(t, fmt.Sprintf(`%s %s values ('%s', %s, %s, 'host-7')`, insert, table, name, at(left), at(-10*time.Second)))
			}
		}
		run(t, 0, "lock", "ours", "--backend", urls[0], "--", "true") // the tables are there
		for _, url := range urls {
			if list, _ := run(t, 0, "locks", "ls", "--backend", url); list != "" {
				t.Errorf("without a table of ShedLock there is %s", list)
			}
		}
		fill("shedlock")
		fill("other_locks")
		for _, url := range urls {
			for _, flags := range [][]string{nil, {"--shedlock", "other_locks", "--foreign"}} {
				list, _ := run(t, 0, append([]string{"locks", "ls", "--backend", url}, flags...)...)
				wantLines(t, list,
					`nightly +ShedLock host-7 \(foreign\) +- +[0-9: -]+ +in (9|10)m[0-9.ms]+ +0`,
					`weekly_a +ShedLock host-7 \(foreign\) +- +[0-9: -]+ +in (5[0-9]m|1h)[0-9.ms]+ +0`)
			}
			list, _ := run(t, 0, "locks", "ls", "weekly_", "--backend", url)
			wantLines(t, list, `weekly_a .*`)
			list, said := run(t, 0, "locks", "ls", "--limit", "1", "--backend", url)
			if wantLines(t, list, `nightly .*`); !strings.Contains(said, "there are more") {
				t.Errorf("it said %q", said)
			}
			_, said = run(t, 78, "locks", "ls", "--shedlock", `no"such`+"`table", "--backend", url)
			if !strings.Contains(said, "there is no table") {
				t.Errorf("it said %q", said)
			}
		}
	}, databases.Pgx, databases.Maria)
}

// A table that only has the name of ShedLock's does not hide the other locks.
func TestATableThatIsNotShedLocks(t *testing.T) {
	t.Parallel()
	program(t)
	url := postgresURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	testbed.OK(t, err)
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `create table shedlock (x int)`); err != nil {
		t.Fatal(err)
	}
	holding(t, url, "nightly")
	list, said := run(t, 0, "locks", "ls", "--backend", url)
	if wantLines(t, list, "nightly .*"); !strings.Contains(said, "warning: there is a table shedlock that cannot be read") {
		t.Errorf("it said %q", said)
	}
	run(t, 78, "locks", "ls", "--backend", url, "--shedlock", "shedlock")
}

// A full server counts as reached.
func TestFullRedisIsReached(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Redis(t, "--maxmemory", "1")
	_, said := run(t, 69, "lock", "nightly", "--no-wait", "--backend", "redis://"+server.Addr(), "--", "true")
	if !strings.Contains(said, "refuses for now") || !strings.Contains(said, "OOM") || strings.Contains(said, "cannot reach") {
		t.Errorf("%q", said)
	}
}
