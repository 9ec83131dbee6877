package cli_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"elect", "job", "--backend", url, "--ttl", "2s", "--accept-weakness"}, flags...)
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
		wantCode(t, observer, 128+int(syscall.SIGINT))
	})
}
