package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// The README's program works as printed, on its tables; only the addresses are this
// test's. It works a second time, too.
func TestTheProgramOfTheReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../README.md")
	testbed.OK(t, err)
	block := func(language string) string {
		t.Helper()
		found := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindSubmatch(text)
		if found == nil {
			t.Fatalf("README.md has no block of %s", language)
		}
		return string(found[1])
	}
	bank := postgresURL(t)
	source := strings.NewReplacer("redis://127.0.0.1:6379", backends["redis"](t),
		"postgres://postgres@127.0.0.1/bank", bank).Replace(block("go"))
	dir := t.TempDir()
	testbed.OK(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bank"), filepath.Join(dir, "main.go"))
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	conn, err := pgx.Connect(t.Context(), bank)
	testbed.OK(t, err)
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), block("sql"), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{70, 40} {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "bank")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		balance := 0
		if err := conn.QueryRow(t.Context(), "SELECT balance FROM accounts WHERE id = 42").Scan(&balance); err != nil || balance != want {
			t.Errorf("the balance is %d, %v, want %d", balance, err, want)
		}
	}
}

// The README's three minutes: a job whose wrapper is stopped past its lease
// continues, and its later writes are rejected.
func TestThreeMinutes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) { threeMinutes(t, url, url) })
}

// TestThreeMinutesOnConsul uses etcd's guards with Consul's tokens.
func TestThreeMinutesOnConsul(t *testing.T) {
	t.Parallel()
	threeMinutes(t, stores["consul"](t), backends["etcd"](t))
}

func threeMinutes(t *testing.T, locks, guards string) {
	interlock := program(t)
	job := func(ttl, script string) *testbed.Process {
		return testbed.Command(t, interlock, "lock", "report", "--ttl", ttl, "--backend", locks, "--", "sh", "-c", script, interlock, guards)
	}
	first := job("3s", `echo holding; read _; "$0" guard enter report --backend "$1" --set written-by=first; echo "exit code $?"`)
	if line := first.Line(patience); line != "holding" {
		t.Fatalf("it said %q", line)
	}
	first.Pause()
	second := job("1m", `"$0" guard enter report --backend "$1" --set written-by=second`)
	wantCode(t, second, 0)
	if line := second.Line(patience); !strings.HasSuffix(line, " entered, 1 key written") {
		t.Fatalf("it said %q", line)
	}

	if _, err := first.Stdin().Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if line := first.Line(patience); line != "exit code 80" {
		t.Errorf("it said %q", line)
	}
	first.Resume()
	wantCode(t, first, 79)
	if said := first.Stderr(); !strings.Contains(said, `interlock: refused: stale token for "report": got `) {
		t.Errorf("it said %q", said)
	}
}

// A server without the named database is reachable: the error is about the name.
func TestAMissingDatabaseIsSaid(t *testing.T) {
	t.Parallel()
	program(t)
	for _, url := range []string{
		"postgres://postgres@" + testbed.Shared(t, testbed.Postgres).Addr() + "/no_such_bank?sslmode=disable",
		"mysql://root@" + testbed.Shared(t, testbed.MariaDB).Addr() + "/no_such_bank",
	} {
		for _, command := range []string{"locks ls", "guard show x", "saga ls", "outbox status", "lock x --wait 1m -- true", "doctor"} {
			code := 78
			if command == "doctor" {
				code = 3
			}
			_, said := run(t, code, append([]string{"--backend", url}, strings.Fields(command)...)...)
			if strings.Contains(said, "cannot reach") || !strings.Contains(said, "no_such_bank") {
				t.Errorf("%s: %s", command, said)
			}
		}
	}
	url := "redis://" + testbed.Shared(t, testbed.Redis).Addr() + "/99"
	if _, said := run(t, 78, "locks", "ls", "--backend", url); !strings.Contains(said, url+" answers, but has no such database") {
		t.Error(said)
	}
}

// A server that has no connection left is reachable.
func TestADatabaseThatIsFullAnswers(t *testing.T) {
	t.Parallel()
	program(t)
	postgres, maria := testbed.Postgres(t, "-c", "max_connections=5"), testbed.MariaDB(t, "--max-connections=10")
	for url, db := range map[string]*sql.DB{
		postgres.URL():                           opened(t, "pgx", postgres.URL()),
		"mysql://root@" + maria.Addr() + "/test": opened(t, "mysql", maria.URL()),
	} {
		for {
			conn, err := db.Conn(t.Context())
			if err != nil {
				break
			}
			defer conn.Close()
		}
		for _, command := range []string{"locks ls", "outbox status", "lock x --wait 1s -- true"} {
			_, said := run(t, 69, append([]string{"--backend", url}, strings.Fields(command)...)...)
			if strings.Contains(said, "no answer within 1s") { // a busy machine
				_, said = run(t, 69, "lock", "x", "--wait", "20s", "--backend", url, "--", "true")
			}
			if strings.Contains(said, "cannot reach") || !strings.Contains(said, " answers, but refuses for now: ") {
				t.Errorf("%s: %s", command, said)
			}
		}
		_, said := run(t, 69, "--backend", backends["etcd"](t), "xa", "ls", "--participant", "north="+url)
		if strings.Contains(said, "cannot reach") || !strings.Contains(said, "participant north: ") || !strings.Contains(said, " answers, but refuses for now: ") {
			t.Errorf("xa ls: %s", said)
		}
	}
}

func opened(t *testing.T, client, source string) *sql.DB {
	db, err := sql.Open(client, source)
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// With -o json every failure is a document, too.
func TestFailuresInJSON(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holding(t, url, "taken")
	for command, code := range map[string]int{"lokcs": 64, "locks show": 64, "locks ls --no-such-flag": 64, "lock taken --no-wait -- true": 75, "saga show x": 1} {
		_, said := run(t, code, append([]string{"-o", "json", "--backend", url}, strings.Fields(command)...)...)
		var failure struct {
			Error string
			Code  int `json:"exit_code"`
		}
		if err := json.Unmarshal([]byte(said), &failure); err != nil || failure.Code != code || failure.Error == "" {
			t.Errorf("%s: %q, %v", command, said, err)
		}
	}
	list, said := run(t, 0, "-o", "json", "--backend", url, "saga", "ls")
	if list != `{"transactions":[]}`+"\n" || said != "" {
		t.Errorf("%q, %q", list, said)
	}
}

// The internal locks of coordinators and outboxes are shown only on request.
func TestInternalLocksAreHidden(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holding(t, url, "{interlock.coordinators}/0")
	holding(t, url, "interlock.outbox/shop")
	holding(t, url, "mine")
	list, _ := run(t, 0, "locks", "ls", "--backend", url)
	wantLines(t, list, "mine .*")
	list, said := run(t, 0, "locks", "ls", "--backend", url, "--limit", "1")
	if wantLines(t, list, "mine .*"); strings.Contains(said, "more") {
		t.Errorf("it said %q", said)
	}
	list, _ = run(t, 0, "locks", "ls", "--all", "--backend", url)
	wantLines(t, list, "interlock.outbox/shop .*", "mine .*", `\{interlock.coordinators\}/0 .*`)
	list, _ = run(t, 0, "locks", "ls", "interlock.", "--backend", url)
	wantLines(t, list, "interlock.outbox/shop .*")

	holding(t, url, "~last") // is listed after the internal ones
	for _, want := range [][]string{{"watch", "mine", "~last"}, {"watch --all", "interlock.outbox/shop", "mine", "{interlock.coordinators}/0", "~last"}} {
		w := testbed.Command(t, program(t), append(strings.Fields("locks "+want[0]), "--backend", url)...)
		for _, name := range want[1:] {
			if line := w.Line(patience); !strings.Contains(line, "  "+name+" is held by ") {
				t.Errorf("%s printed %q, not %s", want[0], line, name)
			}
		}
	}
}

// Ids complete: of transactions, dead letters, and guarded resources.
func TestIDsComplete(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	s := serveOrders(t, url)
	s.run(t, "order/1", "bad")
	s.book(t, "trip/1")
	holding(t, url, "account/42")
	for words, want := range map[string]string{"saga show ord": "order/1", "saga skip o": "order/1", "tcc retry ": "trip/1", "guard show acc": "account/42"} {
		typed := strings.Split(words, " ")
		testbed.Eventually(t, words+" completes", patience, func() bool { // on a busy machine names may come too late
			out, _ := run(t, 0, append([]string{"__completeNoDesc", "--backend", url}, typed...)...)
			return strings.HasPrefix(out, want+"\n:")
		})
	}
}
