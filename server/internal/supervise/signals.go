package supervise

import (
	"errors"
	"syscall"
	"time"
)

// again is the time within which a second INT means "now".
const again = 2 * time.Second

var errSuspended = errors.New("the command was suspended")

// signal handles a signal to the supervisor itself.
func (m *Machine) signal(s syscall.Signal) {
	if m.phase == done {
		return
	}
	m.asked = m.asked || s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT
	switch s {
	case syscall.SIGTSTP:
		m.suspend()
	case syscall.SIGCONT, syscall.SIGPIPE: // the time is checked after every event
	case syscall.SIGINT:
		if m.interrupted > 0 && m.now-m.interrupted <= again {
			m.kill(m.outcome, m.why)
			return
		}
		m.interrupted = m.now
		m.send(s)
	default:
		m.send(s)
	}
}

// stopped handles a command that was stopped. It ignores SIGSTOP, which we or the user
// sent on purpose; the claim is renewed meanwhile.
func (m *Machine) stopped(by syscall.Signal) {
	switch by {
	case syscall.SIGTSTP:
		m.suspend()
	case syscall.SIGTTIN, syscall.SIGTTOU:
		m.sayOnce(by, "the command waits for the terminal but runs in the background; "+
			"bring it to the foreground, or use --no-stdin (the lock stays held)")
	}
}

// suspend applies the policy for Ctrl-Z.
func (m *Machine) suspend() {
	if m.phase != running {
		return
	}
	switch m.limits.OnSuspend {
	case ReleaseOnSuspend:
		m.stop(Suspended, errSuspended, m.limits.Grace)
	case KillOnSuspend:
		m.kill(Suspended, errSuspended)
	default:
		m.send(syscall.SIGCONT)
		m.sayOnce(syscall.SIGTSTP, "not suspended: a stopped command would hold the lock for as long as it sleeps "+
			"(--on-suspend=release or kill ends it instead)")
	}
}

func (m *Machine) sayOnce(about syscall.Signal, text string) {
	if !m.told[about] {
		m.told[about] = true
		m.say("%s", text)
	}
}
