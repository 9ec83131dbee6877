package testbed

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A child is one process that was started and will be reaped.
type child struct {
	cmd   *exec.Cmd
	dir   string        // the value of its mark
	forks int           // of the machine before it was started
	done  chan struct{} // closed when it has been reaped
}

// spawn starts cmd as the leader of a process group, marked as belonging to
// dir; cred may be nil. The kernel kills it when this process dies.
func spawn(cmd *exec.Cmd, dir string, cred *syscall.Credential) (*child, error) {
	cmd.Env = append(environmentFrom(cmd.Env), mark+"="+dir)
	cmd.SysProcAttr = attributes(cred)
	c := &child{cmd: cmd, dir: dir, forks: forks(), done: make(chan struct{})}
	started := make(chan error)
	go c.run(started)
	return c, <-started
}

// run keeps its thread for as long as the process lives: the signal on the
// parent's death is sent when the thread that forked ends, and Go ends idle
// threads as it likes.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	c.cmd.Wait() // how it ended is in cmd.ProcessState
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

// wait waits until the process has been reaped, at most for bound.
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

// killAll ends the process and everything that it started.
func (c *child) killAll() error {
	if !c.ended() {
		syscall.Kill(-c.pid(), syscall.SIGKILL)
	}
	<-c.done
	return signalFrom(c.dir, c.lowestID(), syscall.SIGKILL, func(int) bool { return false })
}

// environment is ours without a mark; with value, marked by it.
func environment(value string) []string {
	env := environmentFrom(nil)
	if value != "" {
		env = append(env, mark+"="+value)
	}
	return env
}

// environmentFrom is env, or our own where env is nil, without a mark.
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
