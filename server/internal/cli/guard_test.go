package cli_test

import (
	"net"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// In databases the guard table is created by a program; before, it is missing.
func TestGuard(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, kind, url string) {
		program(t)
		scripts(t, "guard", map[string]string{"INTERLOCK_BACKEND": url, "KIND": kind})
	}
	for name, start := range backends {
		t.Run(name, func(t *testing.T) { test(t, name, start(t)) })
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		run(t, 78, "guard", "show", "account/42", "--backend", shopURL(db))
		db.Do(t, fence.Table{}.Create)
		test(t, "table", shopURL(db))
	}, databases.Pgx, databases.Maria)
}

// A backend that refuses our rights is an error of permission, not of reachability.
func TestForbidden(t *testing.T) {
	t.Parallel()
	program(t)
	locked := lockedRedis(t)
	database := postgresURL(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"locks", "ls", "--backend", "redis://" + locked}, 77, "redis://" + locked + " rejects the credentials: "},
		{[]string{"lock", "job", "--backend", "redis://:wrong@" + locked, "--", "true"}, 77, "redis://" + locked + " rejects the credentials: "},
		{[]string{"guard", "show", "x", "--backend", "redis://:wrong@" + locked}, 77, "redis://" + locked + " rejects the credentials: "},
		{[]string{"lock", "job", "--backend", "redis://:s3cret@" + locked, "--", "sh", "-c", `test "$INTERLOCK_BACKEND" = redis://` + locked}, 0, ""},
		{[]string{"guard", "show", "x", "--backend", database}, 78, ""}, // it has no guard table
		{[]string{"guard", "show", "x", "--backend", strings.Replace(database, "postgres@", "nobody@", 1)}, 77, "rejects the credentials: "},
		{[]string{"guard", "show", "x", "--backend", "postgres://127.0.0.1:1/postgres"}, 69, "cannot reach postgres://127.0.0.1:1/postgres: "},
	} {
		code, _, said := outcome(t, c.args...)
		if code != c.code || !strings.Contains(said, c.says) {
			t.Errorf("%v: exit code %d, want %d and %q; it said:\n%s", c.args, code, c.code, c.says, said)
		}
		if strings.Contains(said, "s3cret") || strings.Count(said, "\n") > 1 {
			t.Errorf("%v: the password is shown, or more than one line: %s", c.args, said)
		}
		t.Logf("%v: %s", c.args, said)
	}
	limited := testbed.Command(t, "env", "INTERLOCK_BACKEND=redis://:s3cret@"+locked, program(t), "limit", "job", "--rate", "9/s", "--",
		"sh", "-c", `test "$INTERLOCK_BACKEND" = redis://`+locked)
	wantCode(t, limited, 0)
}

// A Redis that may evict marks is rejected, as by lock, and nothing is written.
func TestGuardRefusesAnEvictingRedis(t *testing.T) {
	t.Parallel()
	program(t)
	url := "redis://" + testbed.Redis(t, "--maxmemory-policy", "allkeys-lru").Addr()
	for _, args := range [][]string{
		{"lock", "job", "--", "true"},
		{"guard", "enter", "job", "--token", "890214828572692480"},
		{"guard", "enter", "job", "--token", "890214828572692480", "--set", "k=v"},
		{"guard", "rebase", "job", "--to", "890214828572692480", "--reason", "test"},
	} {
		if code, _, said := outcome(t, append(args[:2:2], append([]string{"--backend", url}, args[2:]...)...)...); code != 78 || !strings.Contains(said, "maxmemory-policy is allkeys-lru") {
			t.Errorf("%v: exit code %d, want 78; it printed:\n%s", args, code, said)
		}
	}
	if shown, _ := run(t, 0, "guard", "show", "job", "--backend", url); shown != "job: no token has entered\n" {
		t.Errorf("guard show: %s", shown)
	}
}

// lockedRedis returns the address of a Redis with a password.
func lockedRedis(t *testing.T) (addr string) {
	t.Helper()
	addr = testbed.Redis(t).Addr()
	conn, err := net.Dial("tcp", addr)
	testbed.OK(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("CONFIG SET requirepass s3cret\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 16)
	if n, err := conn.Read(answer); err != nil || string(answer[:n]) != "+OK\r\n" {
		t.Fatalf("set a password: %q, %v", answer[:n], err)
	}
	return addr
}

// The prefix of a URL is that of --prefix, for marks too.
func TestMarksHaveThePrefixOfTheURL(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	run(t, 0, "guard", "enter", "job", "--token", "890214828572692480", "--backend", url+"?prefix=app/")
	for args, want := range map[string]string{"--prefix app/": "job: token 890214828572692480 by ", "--prefix other/": "job: no token has entered\n"} {
		if out, _ := run(t, 0, append([]string{"guard", "show", "job", "--backend", url}, strings.Fields(args)...)...); !strings.HasPrefix(out, want) {
			t.Errorf("%s: it printed %s", args, out)
		}
	}
}
