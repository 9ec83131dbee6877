package cli_test

import (
	"database/sql"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	urls := map[string]func(*testing.T) string{"etcd": backends["etcd"], "redis": backends["redis"],
		"postgres": postgresWithGuard}
	for name, start := range urls {
		t.Run(name, func(t *testing.T) {
			program(t)
			scripts(t, "guard", map[string]string{"INTERLOCK_BACKEND": start(t), "KIND": name})
		})
	}
}

// postgresWithGuard returns a database with a guard table, created by a program.
func postgresWithGuard(t *testing.T) string {
	t.Helper()
	url := postgresURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		return fence.Table{}.Create(t.Context(), postgres.Tx(tx))
	})
	if err != nil {
		t.Fatal(err)
	}
	return url
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
		{[]string{"locks", "ls", "--backend", "redis://" + locked}, 77, "redis://" + locked + " does not permit this: "},
		{[]string{"lock", "job", "--backend", "redis://:wrong@" + locked, "--", "true"}, 77, "redis://" + locked + " does not permit this: "},
		{[]string{"guard", "show", "x", "--backend", "redis://:wrong@" + locked}, 77, "redis://" + locked + " does not permit this: "},
		{[]string{"lock", "job", "--backend", "redis://:s3cret@" + locked, "--", "sh", "-c", `test "$INTERLOCK_BACKEND" = redis://` + locked}, 0, ""},
		{[]string{"guard", "show", "x", "--backend", database}, 78, ""}, // it has no guard table
		{[]string{"guard", "show", "x", "--backend", strings.Replace(database, "postgres@", "nobody@", 1)}, 77, "does not permit this: "},
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
	if err != nil {
		t.Fatal(err)
	}
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

// The guard table of a MariaDB, created by a program, works as that of a
// PostgreSQL; a stale token is rejected.
func TestGuardOnMariaDB(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.MariaDB(t)
	db, err := sql.Open("mysql", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	url := mariadbURL(server)
	run(t, 78, "guard", "show", "account/42", "--backend", url) // there is no table yet
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		err = fence.Table{}.Create(t.Context(), mysql.Tx(tx))
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, 0, "lock", "job", "--backend", url, "--", "sh", "-c",
		`"$0" guard enter account/42 --backend "$1"`, program(t), url)
	shown, _ := run(t, 0, "guard", "show", "account/42", "--backend", url)
	if !strings.HasPrefix(shown, "account/42: token ") {
		t.Errorf("it is shown as %s", shown)
	}
	_, said := run(t, 80, "guard", "enter", "account/42", "--token", "890214828572692480", "--backend", url)
	if !strings.Contains(said, "stale token") {
		t.Errorf("it said %q", said)
	}
	run(t, 0, "guard", "rebase", "account/42", "--to", "0", "--reason", "restored", "--by", "alice", "--backend", url)
	if shown, _ = run(t, 0, "guard", "show", "account/42", "--backend", url); !strings.Contains(shown, "no token has entered since the rebase by alice") {
		t.Errorf("it is shown as %s", shown)
	}
}
