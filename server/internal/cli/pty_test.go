package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// console is a terminal with a program in its foreground.
type console struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended

	mu   sync.Mutex
	text string // everything shown so far
}

func open(t *testing.T, path string, args ...string) *console {
	t.Helper()
	return openWith(t, nil, path, args...)
}

// openWith opens with more environment variables.
func openWith(t *testing.T, env []string, path string, args ...string) *console {
	t.Helper()
	c := &console{t: t, cmd: exec.Command(path, args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if c.tty, err = pty.Start(c.cmd); err != nil {
		t.Fatal(err)
	}
	shown := make(chan struct{})
	go func() { defer close(shown); c.read() }()
	go func() { defer close(c.done); _ = c.cmd.Wait() }() // its state has the result
	t.Cleanup(func() {
		c.killSession()
		<-c.done
		c.tty.Close()
		<-shown
	})
	return c
}

// killSession ends all processes of the terminal; normally there are none.
func (c *console) killSession() {
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		c.t.Error(err)
	}
	for _, file := range processes {
		text, _ := os.ReadFile(file) // it may have ended
		name := strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[name+1:])) // state, parent, group, session
		if len(fields) < 4 || fields[3] != itoa(c.cmd.Process.Pid) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

func (c *console) read() {
	buffer := make([]byte, 4096)
	for {
		n, err := c.tty.Read(buffer)
		c.mu.Lock()
		c.text += string(buffer[:n])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *console) screen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text
}

// sees waits until a text appears.
func (c *console) sees(text string) {
	c.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(c.screen(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %q; the screen shows\n%s", patience, text, c.screen())
		}
	}
}

func (c *console) types(keys string) {
	c.t.Helper()
	if _, err := c.tty.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) ends(code int) {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatalf("still running after %v; the screen shows\n%s", patience, c.screen())
	}
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("exit code %d, want %d; the screen shows\n%s", got, code, c.screen())
	}
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// lockOn starts a shell command under a lock on a terminal.
func lockOn(t *testing.T, url, script string, flags ...string) *console {
	args := append([]string{"lock", "job", "--backend", url}, flags...)
	return open(t, program(t), append(args, "--", "sh", "-c", script)...)
}

// TestHoldInTheBackground: a background job that holds a lock until its input ends is not stopped
// with the lock, but says why it ends.
func TestHoldInTheBackground(t *testing.T) {
	t.Parallel()
	c := open(t, "bash", "--norc", "-ic", `"$0" locks hold job --backend "$1" & wait $!; echo "code $?"`, program(t), backends["etcd"](t))
	c.sees("sleep 60 | interlock locks hold job &")
	c.sees("code 64")
	c.ends(0)
}

func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	t.Parallel()
	c := lockOn(t, backends["etcd"](t), `trap 'echo "heard it"' INT; echo ready; sleep 1; sleep 1; exit 3`)
	c.sees("ready")
	c.types(ctrlC)
	c.ends(3)
	if n := strings.Count(c.screen(), "heard it"); n != 1 {
		t.Errorf("received %d times; the screen shows\n%s", n, c.screen())
	}
}

func TestCtrlCEndsACommandThatDoesNotMind(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	for _, flags := range [][]string{nil, {"--no-stdin"}} {
		c := lockOn(t, url, `echo ready; exec sleep 60`, flags...)
		c.sees("ready")
		c.types(ctrlC)
		c.ends(130)
	}
}

// The command still reads the terminal.
func TestCtrlZDoesNotSuspend(t *testing.T) {
	t.Parallel()
	c := lockOn(t, backends["etcd"](t), `echo ready; read line; echo "got <$line>"`)
	c.sees("ready")
	c.types(ctrlZ)
	c.sees("not suspended: a stopped command would hold the lock")
	c.types("hello\r")
	c.sees("got <hello>")
	c.ends(0)
}

func TestCtrlZReleasesOrKills(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	for policy, code := range map[string]int{"release": 143, "kill": 137} {
		c := lockOn(t, url, `echo ready; exec sleep 60`, "--on-suspend", policy)
		c.sees("ready")
		c.types(ctrlZ)
		c.ends(code)
	}
}

// The shell that started us can read the terminal again.
func TestTheTerminalIsGivenBack(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	c := open(t, "/bin/sh", "-c", `"$@"; echo "code $?"; read line; echo "shell got <$line>"`, "sh",
		program(t), "lock", "job", "--backend", url, "--", "sh", "-c", `read line; echo "command got <$line>"; exit 4`)
	c.types("one\r")
	c.sees("command got <one>")
	c.sees("code 4")
	c.types("two\r")
	c.sees("shell got <two>")
	c.ends(0)
}

// A background job that needs the terminal waits for it, under the lock; fg gives
// it to the command.
func TestABackgroundJobGetsTheTerminalWithFg(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	c := open(t, "/bin/bash", "--norc", "--noprofile", "-i")
	c.types("PS1='$ '\r")
	c.types(program(t) + " lock job --backend " + url + ` -- sh -c 'echo "pid=$$."; read line; echo "got <$line>"' &` + "\r")
	c.sees("the command waits for the terminal but runs in the background")
	pid := regexp.MustCompile(`pid=([0-9]+)`).FindStringSubmatch(c.screen())
	c.types("fg\r")
	c.foreground(pid[1])
	c.types("hello\r")
	c.sees("got <hello>")
	c.types("exit 0\r")
	c.ends(0)
}

// A shell takes the terminal when its job is stopped. A job that resumes and ends in the
// background leaves it to the shell, whose next read would fail otherwise.
func TestAShellThatTookTheTerminalKeepsIt(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	c := open(t, "/bin/bash", "--norc", "--noprofile", "-i")
	c.types(program(t) + " lock job --backend " + url + ` -- sh -c 'echo "pids=$PPID,$$."; exec sleep 60'` + "\r")
	c.sees(".\r\n")
	pids := regexp.MustCompile(`pids=([0-9]+),([0-9]+)\.`).FindStringSubmatch(c.screen())
	wrapper, err := strconv.Atoi(pids[1])
	testbed.OK(t, err)
	command, err := strconv.Atoi(pids[2])
	testbed.OK(t, err)
	testbed.OK(t, syscall.Kill(wrapper, syscall.SIGSTOP))
	c.sees("Stopped")
	c.foreground(itoa(c.cmd.Process.Pid))
	testbed.OK(t, syscall.Kill(command, syscall.SIGTERM))
	testbed.OK(t, syscall.Kill(wrapper, syscall.SIGCONT))
	testbed.Eventually(t, "the wrapper is gone", patience, func() bool { return syscall.Kill(wrapper, 0) == syscall.ESRCH })
	c.types("exit 3\r")
	c.ends(3)
}

// foreground waits until a process's group is in the foreground.
func (c *console) foreground(pid string) {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		group, err := unix.IoctlGetInt(int(c.tty.Fd()), unix.TIOCGPGRP)
		if err == nil && itoa(group) == pid {
			return
		}
	}
	c.t.Fatalf("not within %v: process %q in the foreground; the screen shows\n%s", patience, pid, c.screen())
}
