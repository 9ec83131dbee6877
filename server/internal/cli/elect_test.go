package cli_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestElect(t *testing.T) {
	t.Parallel()
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			program(t)
			scripts(t, "elect", map[string]string{"INTERLOCK_BACKEND": start(t), "KIND": name, "ACCEPT": "--accept-weakness"})
		})
	}
}

// leading starts `interlock elect job` on a backend, with the test program as the
// command.
func leading(t *testing.T, url string, j journal, flags ...string) *testbed.Process {
	t.Helper()
	self, err := os.Executable()
	testbed.OK(t, err)
	args := append([]string{"elect", "job", "--backend", url, "--ttl", "5s", "--accept-weakness"}, flags...)
	return testbed.Start(t, testbed.Program{Path: program(t), Args: append(args, "--", self), Env: j.env(time.Minute, false)})
}

// A leader that is stopped for longer than its lease loses its leadership: its
// command is ended, and then it exits or campaigns again.
func TestALostLeadership(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		first, second := newJournal(t), newJournal(t)
		leader := leading(t, url, first, "--on-lose", "wait", "--as", "first")
		began(first)
		leader.Pause()
		heir := leading(t, url, second, "--as", "second")
		began(second)
		leader.Resume()
		testbed.Eventually(t, "the loser campaigns again", patience, func() bool {
			return strings.Contains(leader.Stderr(), "campaigning again")
		})
		heir.Pause()
		second.until("another term of the first", func([]entry) bool { return count(first.read(), "start") == 2 })
		heir.Resume()
		wantCode(t, heir, 79)
		leader.Signal(syscall.SIGTERM)
		wantCode(t, leader, 0)
	})
}

// TestObserveEndsWithASignal, with 0, also while it connects; --once has no result then.
func TestObserveEndsWithASignal(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := testbed.Command(t, program(t), "elect", "observe", "billing", "--backend", url)
		if got := p.Line(patience); got != "billing has no leader" {
			t.Errorf("it printed %q", got)
		}
		end(t, p, s, 0)
	}
	for code, flags := range map[int][]string{0: nil, 143: {"--once"}} {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		testbed.OK(t, err)
		defer silent.Close()
		p := testbed.Command(t, program(t), append([]string{"elect", "observe", "billing", "--timeout", "1m", "--backend", "etcd://" + silent.Addr().String()}, flags...)...)
		conn, err := silent.Accept()
		testbed.OK(t, err)
		defer conn.Close()
		end(t, p, syscall.SIGTERM, code)
	}
}

// TestEndBeforeCommand: a leader whose data cannot be stored yet obeys signals, and notices that it does
// not lead any more.
func TestEndBeforeCommand(t *testing.T) {
	t.Parallel()
	url := postgresURL(t)
	run(t, 0, "elect", "job", "--data", "x", "--accept-weakness", "--backend", url, "--", "true")
	conn, err := pgx.Connect(t.Context(), url)
	testbed.OK(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, text := range []string{`create table blocker (id int)`, `insert into blocker values (1)`,
		`create function block() returns trigger language plpgsql as $$ begin
			if encode(new.data, 'escape') like '%"data":%' then perform 1 from blocker for update; end if; return new; end $$`,
		`create trigger block before insert or update on interlock_value for each row execute function block()`,
		`begin`, `select from blocker for update`} {
		_, err = conn.Exec(t.Context(), text)
		testbed.OK(t, err)
	}
	waiting := func() (n int) {
		testbed.OK(t, conn.QueryRow(t.Context(), `select count(*) from pg_locks where not granted and (relation = 'blocker'::regclass
			or transactionid = (select transactionid from pg_locks where pid = pg_backend_pid() and locktype = 'transactionid'))`).Scan(&n))
		return n
	}
	stuck := func() *testbed.Process {
		before := waiting()
		p := testbed.Command(t, program(t), "elect", "job", "--data", "y", "--ttl", "10m", "--accept-weakness", "--backend", url, "--", "sleep", "60")
		testbed.Eventually(t, "it stores its data", patience, func() bool { return waiting() > before })
		return p
	}
	end(t, stuck(), syscall.SIGTERM, 143)
	p := stuck()
	run(t, 0, "locks", "release", "job", "--yes", "--reason", "a test", "--backend", url)
	wantCode(t, p, 79)
}

func TestWaitingOutlivesTheBackend(t *testing.T) {
	t.Parallel()
	program(t)
	server, j := testbed.Redis(t), newJournal(t)
	leader := leading(t, "redis://"+server.Addr(), j, "--on-lose", "wait")
	began(j)
	server.Kill()
	testbed.Eventually(t, "the loser cannot campaign", patience, func() bool {
		return strings.Contains(leader.Stderr(), "trying again")
	})
	if n := count(j.read(), "term"); n != 1 {
		t.Errorf("the command received TERM %d times", n)
	}
	server.Restart()
	j.until("another term", func(e []entry) bool { return count(e, "start") == 2 })
	leader.Signal(syscall.SIGTERM)
	wantCode(t, leader, 0)
}

func TestObserversAreToldOfEveryLeaderAndOfNone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		observer := testbed.Command(t, program(t), "elect", "observe", "job", "--backend", url, "-o", "json")
		next := func() (identity, data string) {
			t.Helper()
			var l struct {
				Leader *struct{ Identity, Data string }
			}
			if line := observer.Line(patience); json.Unmarshal([]byte(line), &l) != nil {
				t.Fatalf("it said %q", line)
			}
			if l.Leader == nil {
				return "", ""
			}
			return l.Leader.Identity, l.Leader.Data
		}
		want := func(identity, data string) {
			t.Helper()
			if i, d := next(); i != identity || d != data {
				t.Fatalf("observed %q with %q, want %q with %q", i, d, identity, data)
			}
		}
		want("", "")
		j := newJournal(t)
		leader := leading(t, url, j, "--as", "first")
		want("first", "")
		began(j) // so it can handle a TERM
		leader.Signal(syscall.SIGTERM)
		wantCode(t, leader, 0)
		want("", "")
		leader = leading(t, url, j, "--as", "second")
		want("second", "")
		leader.Kill() // without a release
		want("", "")
		observer.Signal(syscall.SIGINT)
		wantCode(t, observer, 0)
	})
}
