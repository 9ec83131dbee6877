package supervise

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is the running command: the direct child and its process group.
type process struct {
	pid    int
	tty    terminal
	events chan any // Stopped and Exited, from the goroutine that waits
}

// start forks the command. Signals that our parent ignores (nohup) stay ignored for it;
// all others have their defaults.
func start(cmd Command) (*process, error) {
	files := []uintptr{0, 1, 2}
	if cmd.NoStdin {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		defer null.Close()
		files[0] = null.Fd()
	}
	adoptOrphans()
	p := &process{events: make(chan any, 1), tty: ownTerminal(cmd.NoStdin)}
	attr := &syscall.ProcAttr{Env: cmd.Env, Files: files, Sys: attributes()}
	p.tty.handOver(attr.Sys)
	started := make(chan error)
	go p.wait(cmd, attr, started)
	if err := <-started; err != nil {
		return nil, err
	}
	p.tty.ignoreOutputStops()
	return p, nil
}

// wait forks the command and waits for it, on one thread that exists until the command is gone.
// The kernel kills the command when the thread that forked it ends, not when the process does. It
// ends with the command.
func (p *process) wait(cmd Command, attr *syscall.ProcAttr, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	pid, err := syscall.ForkExec(cmd.Path, cmd.Args, attr)
	p.pid = pid
	started <- err
	if err != nil {
		return
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			p.events <- Exited{Status{Code: 255}} // another wait has its status
			return
		case status.Stopped():
			p.events <- Stopped{status.StopSignal()}
		case status.Signaled():
			p.events <- Exited{Status{Signal: status.Signal()}}
			return
		case status.Exited():
			p.events <- Exited{Status{Code: status.ExitStatus()}}
			return
		}
	}
}

// send delivers a signal to the command's process group. It is not an error if the
// group has no process left.
func (p *process) send(s syscall.Signal) { _ = syscall.Kill(-p.pid, s) }

// killAll kills the group and the orphans that have left it.
func (p *process) killAll() {
	p.send(syscall.SIGKILL)
	for _, pid := range adopted() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	}
}

// reap reaps orphans of the command that have ended, and reports whether others still run.
func (p *process) reap() (left bool) {
	for _, pid := range adopted() {
		if pid == p.pid {
			continue // wait has its status
		}
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		left = left || got == 0 && err == nil
	}
	return left
}

// anyLeft is reap, also for the command's group. Call it only after the command itself has ended.
func (p *process) anyLeft() bool {
	for got := 1; got > 0; { // if the kernel does not list children
		got, _ = unix.Wait4(-p.pid, nil, unix.WNOHANG, nil)
	}
	return p.reap() || syscall.Kill(-p.pid, 0) == nil
}

func (p *process) giveTerminal() bool { return p.tty.give(p.pid) }

func (p *process) takeTerminalBack() { p.tty.takeBack(p.pid) }

// stdin is the only descriptor by which a terminal is handed over. A command that reads another
// one does not need to be in the foreground.
const stdin = 0

// terminal is the foreground process group of the terminal at the standard input.
type terminal struct {
	present    bool // standard input is a terminal, and the command may read it
	foreground bool // we had the foreground, so the command gets it
	group      int  // our process group
}

func ownTerminal(noStdin bool) terminal {
	t := terminal{group: unix.Getpgrp()}
	front, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	t.present = err == nil && !noStdin
	t.foreground = t.present && front == t.group
	return t
}

// handOver makes the fork put the command in the foreground before it starts.
func (t terminal) handOver(a *syscall.SysProcAttr) {
	a.Foreground, a.Ctty = t.foreground, stdin
}

// ignoreOutputStops lets us write to the terminal and take it back although we are now
// in its background. Call it after the fork, because an ignored signal stays ignored
// in a command.
func (t terminal) ignoreOutputStops() {
	if t.present {
		signal.Ignore(syscall.SIGTTOU)
	}
}

// give puts the command's group in the foreground if we are there now, and reports
// whether it did.
func (t *terminal) give(group int) bool {
	if !t.present {
		return false
	}
	if front, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP); err != nil || front != t.group {
		return false
	}
	t.foreground = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, group) == nil
	return t.foreground
}

// takeBack puts us in the foreground again after the command, as a shell expects of its job. If
// another group is there by now, it stays: a shell took the terminal when its job was stopped.
func (t terminal) takeBack(command int) {
	if !t.foreground {
		return
	}
	front, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	if err != nil || front != command && syscall.Kill(-front, 0) != syscall.ESRCH {
		return
	}
	_ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, t.group) // fails if the terminal is gone
}
