package testbed

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCommandTalks(t *testing.T) {
	t.Setenv("WORD", "hello")
	p := Command(t, "/bin/sh", "-c", `read -r line; echo "$line $WORD"; echo oops >&2; exit 7`)
	if _, err := p.Stdin().Write([]byte("well\n")); err != nil {
		t.Fatal(err)
	}
	if got := p.Line(bound); got != "well hello" {
		t.Errorf("output %q", got)
	}
	if got := p.Wait(bound).ExitCode(); got != 7 {
		t.Errorf("exit code %d, want 7", got)
	}
	if got := p.Stderr(); got != "oops\n" {
		t.Errorf("standard error %q", got)
	}
	if line, ok := <-p.Stdout(); ok {
		t.Errorf("further output %q", line)
	}
}

func TestStartTakesEnvironmentAndDirectory(t *testing.T) {
	p := Start(t, Program{Path: "/bin/sh", Args: []string{"-c", `echo "$WORD"; pwd`}, Env: []string{"WORD=x"}, Dir: "/"})
	if word, dir := p.Line(bound), p.Line(bound); word != "x" || dir != "/" {
		t.Errorf("%q in %q, want x in /", word, dir)
	}
}

func TestCommandPauses(t *testing.T) {
	p := Command(t, "/bin/sh", "-c", "while read -r line; do echo $line; done")
	p.Pause()
	p.Stdin().Write([]byte("a\n"))
	select {
	case line := <-p.Stdout():
		t.Errorf("a paused process writes %q", line)
	case <-time.After(50 * time.Millisecond):
	}
	p.Resume()
	if got := p.Line(bound); got != "a" {
		t.Errorf("output %q", got)
	}
	p.Signal(syscall.SIGTERM)
	if got := p.Wait(bound).Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGTERM {
		t.Errorf("ended by %v", got)
	}
	p.Signal(syscall.SIGTERM) // the process has ended: no effect
}

func TestKillSparesTheChildrenUntilTheEnd(t *testing.T) {
	var child int
	t.Run("use", func(t *testing.T) {
		// setsid leaves the process group and the session of its parent.
		p := Command(t, "/bin/sh", "-c", "setsid sleep 1000 & echo $!; wait")
		child, _ = strconv.Atoi(p.Line(bound))
		p.Kill()
		if state(child) == 0 {
			t.Error("the child went with its parent")
		}
	})
	Eventually(t, "the child gone", bound, func() bool { return state(child) == 0 || state(child) == 'Z' })
}

func TestUnreadOutputDoesNotKeepAProcess(t *testing.T) {
	Command(t, "/bin/sh", "-c", "while echo y; do :; done").Line(bound)
}

func TestRequired(t *testing.T) {
	for _, c := range []struct {
		list, name string
		want       bool
	}{
		{"", "redis", false}, {"redis", "redis", true}, {"etcd, redis", "redis", true},
		{"redis-cluster", "redis", false}, {"etcdctl", "etcd", false},
	} {
		if got := required(c.list, c.name); got != c.want {
			t.Errorf("%q names %q: %v", c.list, c.name, got)
		}
	}
}

// outcome is a testing.TB that records how a test would have ended.
type outcome struct {
	testing.TB
	skipped, failed string
}

func (o *outcome) Helper()                   {}
func (o *outcome) Skipf(f string, a ...any)  { o.skipped = fmt.Sprintf(f, a...) }
func (o *outcome) Fatalf(f string, a ...any) { o.failed = fmt.Sprintf(f, a...); panic(o) }

func TestMissingProgram(t *testing.T) {
	verdict := func(require string) (o *outcome) {
		t.Setenv("INTERLOCK_REQUIRE", require)
		o = new(outcome)
		defer func() { recover() }()
		missing(o, "redis", exec.ErrNotFound)
		return o
	}
	if o := verdict("etcd"); o.skipped == "" || !strings.Contains(o.skipped, "make deps") {
		t.Errorf("not required: skipped as %q, failed as %q", o.skipped, o.failed)
	}
	if o := verdict("etcd,redis"); o.failed == "" || !strings.Contains(o.failed, "make deps") {
		t.Errorf("required: skipped as %q, failed as %q", o.skipped, o.failed)
	}
}

func TestBinaryIsOverriddenByTheEnvironment(t *testing.T) {
	t.Setenv("INTERLOCK_SOMETOOL", "/bin/sh")
	if path, err := findBinary("sometool"); err != nil || path != "/bin/sh" {
		t.Errorf("%q, %v", path, err)
	}
	t.Setenv("INTERLOCK_SOMETOOL", "/nowhere")
	if path, err := findBinary("sometool"); err == nil {
		t.Errorf("a missing program is found as %q", path)
	}
}

// roleVariable selects how TestBadEnd, run in a separate process, ends.
const roleVariable = "INTERLOCK_TESTBED_ROLE"

func TestBadEnd(t *testing.T) {
	role := os.Getenv(roleVariable)
	if role == "" {
		t.Skip("run by TestNothingIsLeftAfterABadEnd")
	}
	for _, start := range []func(testing.TB, ...string) *Server{Redis, Postgres} { // the second has children and shared memory
		s := start(t)
		fmt.Printf("started %d\n", s.PID())
		s.Pause() // a stopped process does not notice the end of its server
	}
	Command(t, "/bin/sh", "-c", "sleep 1000 & echo; wait").Line(bound)
	root, _ := home()
	fmt.Printf("home %s\n", root)
	if role == "panic" {
		panic("on purpose")
	}
	select {} // until killed
}

func TestNothingIsLeftAfterABadEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers")
	}
	t.Parallel()
	for _, role := range []string{"panic", "sigkill", "sigkill-group"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			home, pids := comeToABadEnd(t, role)
			Eventually(t, "no process with the mark of "+home, bound, func() bool { return len(marked(home)) == 0 })
			Eventually(t, home+" removed", bound, func() bool { _, err := os.Stat(home); return os.IsNotExist(err) })
			for _, pid := range pids {
				if n := segments(pid); n > 0 {
					t.Errorf("%d shared memory segments of process %d are left", n, pid)
				}
			}
		})
	}
}

// comeToABadEnd starts servers in another test process, checks that they run, and
// kills it if its role is to be killed.
func comeToABadEnd(t *testing.T, role string) (home string, pids []int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBadEnd$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(environment(""), roleVariable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	home, pids, said := listen(output)
	if home == "" {
		cmd.Process.Kill()
		cmd.Wait()
		if strings.Contains(said, "--- SKIP") {
			t.Skip(said)
		}
		t.Fatalf("the servers did not start: %s", said)
	}
	if role != "panic" {
		if found := marked(home); len(found) < len(pids)+2 {
			t.Errorf("started %v and a shell with a child, but only %v carry the mark", pids, found)
		}
		target := cmd.Process.Pid
		if role == "sigkill-group" {
			target = -target
		}
		syscall.Kill(target, syscall.SIGKILL)
	}
	if cmd.Wait() == nil {
		t.Error("the process should have been killed")
	}
	return home, pids
}

// listen reads the output of TestBadEnd until its servers run.
func listen(output io.Reader) (home string, pids []int, said string) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said += lines.Text() + "\n"
		if text, ok := strings.CutPrefix(lines.Text(), "started "); ok {
			pid, _ := strconv.Atoi(text)
			pids = append(pids, pid)
		}
		if text, ok := strings.CutPrefix(lines.Text(), "home "); ok {
			return text, pids, said
		}
	}
	return "", pids, said
}

// segments counts the System V shared memory segments that pid created.
func segments(pid int) (n int) {
	table, _ := os.ReadFile("/proc/sysvipc/shm")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}
