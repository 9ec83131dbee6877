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
)

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
