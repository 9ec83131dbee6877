package supervise

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

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
