package cli_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// underLock starts `interlock lock job` on a backend, with the test program as the
// command.
func underLock(t *testing.T, url string, env []string, flags ...string) *testbed.Process {
	t.Helper()
	self, err := os.Executable()
	testbed.OK(t, err)
	args := append([]string{"lock", "job", "--backend", url}, flags...)
	return testbed.Start(t, testbed.Program{Path: program(t), Args: append(args, "--", self), Env: env})
}

// began waits for the first worker and returns its process id.
func began(j journal) int {
	return pidOf(j.until("a start", func(e []entry) bool { return len(e) > 1 }))
}

func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
		if err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there after %v: %s", pid, patience, text)
		}
	}
}

func wantCode(t *testing.T, p *testbed.Process, code int) {
	t.Helper()
	if state := p.Wait(patience); state.ExitCode() != code {
		t.Fatalf("exit code %d (%v), want %d; it said:\n%s", state.ExitCode(), state, code, p.Stderr())
	}
}

func reportOf(t *testing.T, file string) (r struct {
	Outcome, Error string
	Signal         int
}) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	testbed.OK(t, err)
	return r
}

func each(t *testing.T, run func(t *testing.T, url string)) {
	for name, start := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program(t)
			run(t, start(t))
		})
	}
}

func TestAKilledWrapperTakesTheCommandWithIt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		j := newJournal(t)
		p := underLock(t, url, j.env(time.Minute, true))
		pid := began(j)
		p.Kill()
		gone(t, pid)
	})
}

func TestATermEndsTheCommandAndTheLock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		j := newJournal(t)
		p := underLock(t, url, j.env(time.Minute, false))
		began(j)
		p.Signal(syscall.SIGTERM)
		wantCode(t, p, 0) // the worker ends cleanly, and its code is returned
		if n := count(j.read(), "term"); n != 1 {
			t.Errorf("the command received TERM %d times", n)
		}
		free := underLock(t, url, j.env(0, false), "--no-wait")
		wantCode(t, free, 0)
	})
}

func count(entries []entry, what string) (n int) {
	for _, e := range entries {
		if e.what == what {
			n++
		}
	}
	return n
}

func TestTwoInterruptsKill(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	p := testbed.Command(t, program(t), "lock", "job", "--backend", url, "--", "sh", "-c", `trap 'echo heard' INT; echo ready; while :; do sleep 0.05; done`)
	if line := p.Line(patience); line != "ready" {
		t.Fatal(line)
	}
	p.Signal(syscall.SIGINT)
	if line := p.Line(patience); line != "heard" {
		t.Fatal(line)
	}
	p.Signal(syscall.SIGINT)
	wantCode(t, p, 137)
}

func TestASignalWhileWaitingLeavesTheQueue(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			if signal.Ignored(s) { // by nohup, which the command respects
				continue
			}
			j, report := newJournal(t), filepath.Join(t.TempDir(), "report")
			holder := underLock(t, url, j.env(time.Minute, false))
			began(j)
			waiter := underLock(t, url, j.env(time.Minute, false), "--report", report)
			waitersOf(t, url, 1)
			waiter.Signal(s)
			wantCode(t, waiter, 128+int(s))
			waitersOf(t, url, 0)
			if r := reportOf(t, report); r.Outcome != "cancelled" || r.Signal != int(s) {
				t.Errorf("reported %+v", r)
			}
			holder.Signal(syscall.SIGTERM)
			wantCode(t, holder, 0)
			if n := starts(j.read()); n != 1 {
				t.Errorf("%d commands ran, want the holder's only", n)
			}
		}
	})
}

func waitersOf(t *testing.T, url string, n int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		text, _ := run(t, 0, "locks", "show", "job", "-o", "json", "--backend", url)
		var s shown
		if json.Unmarshal([]byte(text), &s) == nil && len(s.Waiters) == n {
			return
		}
	}
	t.Fatalf("not within %v: %d waiters", patience, n)
}

// servers are the lock services that a test can pause and kill.
var servers = map[string]func(testing.TB, ...string) *testbed.Server{"etcd": testbed.Etcd, "redis": testbed.Redis}

// The server dies. The command gets TERM and then KILL before the lease expires
// that was last renewed before the crash.
func TestADeadServerEndsTheCommandInTime(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second // its parts are longer than a busy machine is late
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program(t)
			server, j, report := start(t), newJournal(t), filepath.Join(t.TempDir(), "report")
			p := underLock(t, name+"://"+server.Addr(), j.env(time.Minute, true), "--ttl", ttl.String(), "--report", report, "--timeout", "1s")
			pid := began(j)
			asked := monotonic()
			server.Kill()
			dead := monotonic()
			wantCode(t, p, 79)
			gone(t, pid)
			judgeEnd(t, j.read(), asked, dead+ttl)
			if r := reportOf(t, report); r.Outcome != "lost" || r.Signal != int(syscall.SIGKILL) {
				t.Errorf("reported %+v", r)
			}
		})
	}
}

// The command ends while the backend does not answer. The report has the rest of
// the last renewal, and no wait is endless.
func TestAReleaseThatFailsSaysHowLongTheLockStaysTaken(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute // the machine may stand still for seconds
	for name, start := range servers {
		for state, stop := range map[string]func(*testbed.Server){"dead": (*testbed.Server).Kill, "silent": (*testbed.Server).Pause} {
			t.Run(name+"/"+state, func(t *testing.T) {
				t.Parallel()
				program(t)
				server, started := start(t), time.Now()
				p := testbed.Command(t, program(t), "lock", "job", "--backend", name+"://"+server.Addr(), "--ttl", ttl.String(),
					"--timeout", "1s", "--", "sh", "-c", "echo ready; read _")
				p.Line(patience)
				granted := time.Now()
				stop(server)
				for time.Since(granted) < 2*time.Second { // so that the lease is shorter than the TTL, before the renewal at 20 s
					time.Sleep(50 * time.Millisecond)
				}
				ended := time.Now()
				testbed.OK(t, p.Stdin().Close())
				wantCode(t, p, 1) // from read, at the end of its input
				over, said := time.Now(), p.Stderr()
				t.Logf("after %v: %s", over.Sub(ended), said)
				if over.Sub(ended) > ttl/2 { // 1 s for the release
					t.Errorf("it took %v to end", over.Sub(ended))
				}
				left := regexp.MustCompile(`"job" could not be released and may stay taken for up to (\S+) more: `).FindStringSubmatch(said)
				if left == nil || strings.Count(said, "\n") != 1 {
					t.Fatalf("it said %q", said)
				}
				if d, err := time.ParseDuration(left[1]); err != nil || d < ttl-over.Sub(started)-time.Second || d > ttl-ended.Sub(granted)+time.Second { // a second of rounding
					t.Errorf("it reports %s %v after the start (%v)", left[1], over.Sub(started), err)
				}
			})
		}
	}
}

// judgeEnd requires one TERM, at least half the grace before the last entry, and
// that before the limit.
func judgeEnd(t *testing.T, entries []entry, from, limit time.Duration) {
	t.Helper()
	term := slices.IndexFunc(entries, func(e entry) bool { return e.what == "term" })
	end := entries[len(entries)-1].at
	switch {
	case term < 0:
		t.Fatalf("the command received no TERM; its last entry is %v after the fault", end-from)
	case entries[term].at < from:
		t.Errorf("TERM came %v before the fault", from-entries[term].at)
	case end >= limit:
		t.Errorf("still alive %v after the fault, the limit was %v", end-from, limit-from)
	case end-entries[term].at < 100*time.Millisecond:
		t.Errorf("only %v between TERM and the last sign of life", end-entries[term].at)
	}
	t.Logf("TERM %v and last sign of life %v after the fault, limit %v", entries[term].at-from, end-from, limit-from)
}

// The wrapper is partitioned. Its lease expires, and the server grants the lock to
// another owner, which must not overlap the first command.
func TestACutOffWrapperMakesWayForTheNext(t *testing.T) {
	t.Parallel()
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program(t)
			server, j := start(t), newJournal(t)
			proxy := testbed.NewProxy(t, server.Addr())
			first := underLock(t, name+"://"+proxy.Addr(), j.env(time.Minute, true), "--ttl", "5s", "--timeout", "1s")
			pid := began(j)
			second := underLock(t, name+"://"+server.Addr(), j.env(100*time.Millisecond, false), "--ttl", "30s")
			waitersOf(t, name+"://"+server.Addr(), 1)
			proxy.Cut()
			wantCode(t, first, 79)
			wantCode(t, second, 0)
			gone(t, pid)
			if err := overlaps(j.read()); err != nil || starts(j.read()) != 2 {
				t.Errorf("%v; %d commands ran", err, starts(j.read()))
			}
		})
	}
}

// Wrapper and command are stopped together past the lease. Another owner works
// meanwhile. When the wrapper continues, its command must not.
func TestACommandThatSleptPastItsLeaseIsKilledBeforeItActs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		j, report := newJournal(t), filepath.Join(t.TempDir(), "report")
		first := underLock(t, url, j.env(time.Minute, true), "--ttl", "5s", "--report", report)
		pid := began(j)
		second := underLock(t, url, j.env(100*time.Millisecond, false), "--ttl", "30s")
		waitersOf(t, url, 1)
		testbed.OK(t, syscall.Kill(pid, syscall.SIGSTOP))
		first.Pause()
		wantCode(t, second, 0)
		first.Resume()
		wantCode(t, first, 79)
		gone(t, pid)
		if err := overlaps(j.read()); err != nil || starts(j.read()) != 2 {
			t.Errorf("%v; %d commands ran", err, starts(j.read()))
		}
		if r := reportOf(t, report); r.Outcome != "lost" || r.Error == "" {
			t.Errorf("reported %+v", r)
		}
	})
}

// Only the wrapper is stopped past the lease. The command then runs on, but the
// first action afterwards ends it, and the exit code reports that.
func TestAWrapperThatSleptPastItsLeaseKillsFirst(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		j := newJournal(t)
		p := underLock(t, url, j.env(time.Minute, true), "--ttl", "4s")
		pid := began(j)
		p.Pause()
		asleep := monotonic()
		j.until("work beyond the lease", func(e []entry) bool { return e[len(e)-1].at > asleep+4100*time.Millisecond })
		awake := monotonic()
		p.Resume()
		wantCode(t, p, 79)
		gone(t, pid)
		if end := j.read(); end[len(end)-1].at > awake+10*time.Second { // of the minute of its work
			t.Errorf("the command worked for %v after the wrapper woke", end[len(end)-1].at-awake)
		}
	})
}

// A pause within the lease ends nothing.
func TestAWrapperThatNapsGoesOn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		j := newJournal(t)
		p := underLock(t, url, j.env(4*time.Second, false), "--ttl", "9s") // a renewal is due at 3 s
		began(j)
		p.Pause()
		asleep := monotonic()
		j.until("work meanwhile", func(e []entry) bool { return e[len(e)-1].at > asleep+700*time.Millisecond })
		p.Resume()
		wantCode(t, p, 0)
	})
}

// An operator deletes the lock: the command gets a signal immediately.
func TestALockThatIsDeletedEndsTheCommand(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	j := newJournal(t)
	p := underLock(t, url, j.env(time.Minute, false), "--ttl", "30s")
	began(j)
	deleteAll(t, url)
	begun := time.Now()
	wantCode(t, p, 79)
	if took := time.Since(begun); took > 25*time.Second {
		t.Errorf("signalled after %v, a renewal is due every 10 s", took)
	}
	if count(j.read(), "term") != 1 {
		t.Error("the command was not signalled")
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, url string) {
		hold := func(flags ...string) *testbed.Process {
			args := append([]string{"locks", "hold", "job", "--backend", url}, flags...)
			return testbed.Command(t, program(t), args...)
		}
		first := hold("--ttl", "5s")
		var g struct {
			Lock, Token, Owner string
			TTL                int `json:"ttl_ms"`
		}
		if err := json.Unmarshal([]byte(first.Line(patience)), &g); err != nil || g.Lock != "job" || g.Token == "" || g.Owner == "" || g.TTL != 5000 {
			t.Fatalf("granted %+v, %v", g, err)
		}
		wantCode(t, hold("--no-wait"), 75)
		testbed.OK(t, first.Stdin().Close())
		wantCode(t, first, 0)
		second := hold("--no-wait")
		second.Line(patience)
		second.Signal(syscall.SIGTERM)
		wantCode(t, second, 143)
		third := hold("--no-wait", "--ttl", "1s")
		third.Line(patience)
		third.Pause()
		fourth := hold()
		fourth.Line(patience)
		third.Resume()
		wantCode(t, third, 79)
		fourth.Signal(syscall.SIGINT)
		wantCode(t, fourth, 130)
	})
}

// A process that inherited an ignored signal keeps ignoring it (nohup).
func TestAnIgnoredHangupStaysIgnored(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	p := testbed.Command(t, "/bin/sh", "-c", `trap '' HUP; exec "$@"`, "sh", program(t),
		"lock", "job", "--backend", url, "--", "sh", "-c", `echo ready; read line; echo "$line"`)
	p.Line(patience)
	p.Signal(syscall.SIGHUP)
	if _, err := p.Stdin().Write([]byte("still here\n")); err != nil {
		t.Fatal(err)
	}
	if line := p.Line(patience); line != "still here" {
		t.Errorf("read %q", line)
	}
	wantCode(t, p, 0)
}

// deleteAll removes every key, as an operator might.
func deleteAll(t *testing.T, url string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimPrefix(url, "etcd://")}, Logger: zap.NewNop()})
	testbed.OK(t, err)
	defer c.Close()
	if _, err := c.Delete(t.Context(), "job/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// The reader of our standard error is gone. The command and the exit code are not affected.
func TestAClosedStandardErrorDoesNotEndTheCommand(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	for line, want := range map[string]int{"lock job --max-hold 200ms -- sleep 60": 79, "lock job -- /etc/passwd": 126, "elect job -- /etc/passwd": 126} {
		reader, writer, err := os.Pipe()
		testbed.OK(t, err)
		cmd := exec.CommandContext(t.Context(), program(t), append([]string{"--backend", url}, strings.Fields(line)...)...)
		cmd.Stderr = writer
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		testbed.OK(t, errors.Join(reader.Close(), cmd.Start(), writer.Close()))
		_ = cmd.Wait() // its state has the result
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit code %d (%v), want %d", line, code, cmd.ProcessState, want)
		}
	}
}

// The hint about a script is for a file that the kernel does not recognize only.
func TestACommandThatDoesNotStartHasItsReason(t *testing.T) {
	t.Parallel()
	program(t)
	url, file := backends["etcd"](t), filepath.Join(t.TempDir(), "command")
	for text, reason := range map[string]string{"echo hi": "exec format error (a script needs a #! line, or --shell)", "#!/no/shell": "no such file or directory"} {
		testbed.OK(t, os.WriteFile(file, []byte(text), 0o755))
		if _, said := run(t, 126, "lock", "job", "--backend", url, "--", file); !strings.HasSuffix(said, "start "+file+": "+reason+"\n") {
			t.Errorf("%s: it said %q", text, said)
		}
	}
}

// Nobody reads our standard error, and it is full. The command starts once the lock is granted.
func TestAFullStandardErrorDelaysNoCommand(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"lock", "elect"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			url := backends["etcd"](t)
			holder := testbed.Command(t, program(t), "locks", "hold", "job", "--backend", url)
			holder.Line(patience)
			reader, writer, err := os.Pipe()
			testbed.OK(t, err)
			defer reader.Close()
			testbed.OK(t, writer.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
			_, _ = writer.Write(make([]byte, 1<<20)) // a part fills the pipe
			cmd := exec.CommandContext(t.Context(), program(t), command, "job", "--backend", url, "--", "true")
			cmd.Stderr = writer
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			testbed.OK(t, errors.Join(cmd.Start(), writer.Close()))
			wait := testbed.Later(t, patience, cmd.Wait)
			waitersOf(t, url, 1)
			time.Sleep(time.Second) // it writes a line after 0.5 s
			testbed.OK(t, holder.Stdin().Close())
			testbed.OK(t, wait())
		})
	}
}

// The backend does not answer any more once we wait. The wait is reported without the holder.
func TestAWaitIsReportedAlsoIfTheBackendIsSilent(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	holder := testbed.Command(t, program(t), "locks", "hold", "job", "--backend", url)
	holder.Line(patience)
	proxy := testbed.NewProxy(t, strings.TrimPrefix(url, "etcd://"))
	waiter := testbed.Command(t, program(t), "lock", "job", "--backend", "etcd://"+proxy.Addr(), "--timeout", "1s", "--", "true")
	waitersOf(t, url, 1)
	proxy.Cut() // mostly before it asks for the holder, 0.5 s after it began to wait
	testbed.Eventually(t, "it reports the wait", patience, func() bool { return strings.Contains(waiter.Stderr(), `waiting for "job"`) })
}

// The loss of a database's session is reported with its cause, on one line.
func TestALostSessionIsReportedOnOneLine(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		p := holding(t, shopURL(db), "job")
		db.Exec(t, map[driver.Dialect]string{
			driver.Postgres: "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
			driver.MariaDB:  "begin not atomic for s in (select id from information_schema.processlist where db = database() and id <> connection_id()) do kill s.id; end for; end",
		}[db.Dialect])
		wantCode(t, p, 79)
		if said := p.Stderr(); !strings.Contains(said, `"job" is lost: `) || !strings.Contains(said, `: renew "job": session ended, and the claim with it: `) {
			t.Errorf("it said %q", said)
		}
	}, databases.Pgx, databases.Maria)
}

// A backend that hangs does not block the shell: it would not answer within the
// test's patience.
func TestCompletionDoesNotWaitForABackendThatHangs(t *testing.T) {
	t.Parallel()
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			program(t)
			t.Parallel()
			server := start(t)
			server.Pause()
			p := testbed.Command(t, program(t), "__complete", "lock", "--backend", name+"://"+server.Addr(), "")
			wantCode(t, p, 0)
			if line, said := p.Line(patience), p.Stderr(); line != ":4" || strings.Contains(said, "interlock:") {
				t.Errorf("offered %q, said %q", line, said)
			}
		})
	}
}
