package testbed

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is one process that was started and will be reaped.
type child struct {
	cmd   *exec.Cmd
	dir   string        // the value of its mark
	forks int           // the machine's count before it was started
	done  chan struct{} // closed when it has been reaped
}

// spawn starts cmd as the leader of a process group, with the mark of dir; cred may be
// nil. The kernel kills it when this process dies.
func spawn(cmd *exec.Cmd, dir string, cred *syscall.Credential) (*child, error) {
	cmd.Env = append(environmentFrom(cmd.Env), mark+"="+dir)
	cmd.SysProcAttr = attributes(cred)
	c := &child{cmd: cmd, dir: dir, forks: forks(), done: make(chan struct{})}
	started := make(chan error)
	go c.run(started)
	return c, <-started
}

// run keeps its thread while the process lives. The kernel sends the parent-death signal when the
// thread that forked ends, and Go ends idle threads at any time.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	c.cmd.Wait() // the result is in cmd.ProcessState
	close(c.done)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait blocks until the process has been reaped, at most for bound.
func (c *child) wait(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

// killAll ends the process and its descendants.
func (c *child) killAll() error {
	if !c.ended() {
		syscall.Kill(-c.pid(), syscall.SIGKILL)
	}
	<-c.done
	return signalFrom(c.dir, c.lowestID(), syscall.SIGKILL, func(int) bool { return false })
}

// environment returns our environment, marked with value if that is not empty.
func environment(value string) []string {
	env := environmentFrom(nil)
	if value != "" {
		env = append(env, mark+"="+value)
	}
	return env
}

// environmentFrom returns env, or our own if env is nil, without a mark.
func environmentFrom(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	kept := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, mark+"=") {
			kept = append(kept, e)
		}
	}
	return kept
}
