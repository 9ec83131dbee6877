package supervise

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock"
)

// Reading is the time and the state of the claim at one instant.
type Reading struct {
	// Now is a clock that also counts while the machine sleeps. Only
	// differences are meaningful.
	Now time.Duration
	// Remaining is how long the claim is valid from Now.
	Remaining time.Duration
}

// Events of a hold. After each of them the machine also checks the
// time.
type (
	// Tick: time has passed.
	Tick struct{}
	// Signal: the supervisor received a signal.
	Signal struct{ Number syscall.Signal }
	// Ended: the claim's context ended.
	Ended struct{ Cause error }
	// Stopped: the command was stopped by a signal.
	Stopped struct{ By syscall.Signal }
	// Exited: the command, the direct child, ended.
	Exited struct{ Status Status }
	// Empty: no process that the command started is left.
	Empty struct{}
)

// Effects are the actions of the supervisor, in order.
type (
	// Send delivers a signal to the command's process group.
	Send struct{ Number syscall.Signal }
	// KillAll delivers SIGKILL to everything the command started.
	KillAll struct{}
	// Say prints a line on the terminal.
	Say struct{ Text string }
)

// phase is the state of a hold.
type phase int

const (
	running  phase = iota // the command runs
	frozen                // stopped until the claim is known to be valid
	stopping              // TERM is sent, with a time limit
	killed                // KILL is sent
	done                  // no actions are left
)

// Machine decides what happens to a command while its claim lasts. It does no I/O and
// reads no clock: every decision follows from the readings and events, in
// order. The zero Machine is not usable; see newMachine.
type Machine struct {
	limits  Limits
	phase   phase
	outcome Outcome
	why     error

	now     time.Duration // of the last step
	due     time.Duration // the requested time of the next step
	until   time.Duration // the claim is valid until then, as last known
	ended   bool          // the claim has ended; until no longer changes
	holdEnd time.Duration // when MaxHold is over; 0 if there is none
	killAt  time.Duration // in stopping: when to send KILL
	thawAt  time.Duration // in frozen: when to stop waiting for a renewal

	interrupted time.Duration // when the last INT was forwarded; 0 if none was
	asked       bool          // INT, TERM or QUIT arrived
	told        map[syscall.Signal]bool
	exited      bool
	status      Status
	out         []any
}

func newMachine(l Limits, r Reading) *Machine {
	m := &Machine{limits: l, outcome: Completed, now: r.Now, due: r.Now, until: r.Now + r.Remaining,
		told: map[syscall.Signal]bool{}}
	if l.MaxHold > 0 {
		m.holdEnd = r.Now + l.MaxHold
	}
	m.due = m.next()
	return m
}

// Step handles one event at the time of a reading and returns the actions.
func (m *Machine) Step(r Reading, event any) []any {
	late := r.Now - m.due
	m.now, m.out = r.Now, nil
	if _, ended := event.(Ended); !ended && !m.ended { // an ended claim has nothing remaining
		m.until = r.Now + r.Remaining
	}
	switch e := event.(type) {
	case Signal:
		m.signal(e.Number)
	case Stopped:
		m.stopped(e.By)
	case Ended:
		m.lose(e.Cause)
	case Exited:
		m.exit(e.Status)
	case Empty:
		m.empty()
	}
	m.settle(late > m.limits.late())
	m.due = m.next()
	return m.out
}

// settle applies what the time requires. woke reports that the supervisor has just been
// unable to run for a while.
func (m *Machine) settle(woke bool) {
	left := m.until - m.limits.margin() - m.now
	switch {
	case m.phase == done:
	case m.phase == killed && m.exited: // its descendants, and those that they start meanwhile
		m.out = append(m.out, KillAll{})
	case m.phase == killed:
	case left <= 0 && m.outcome == Completed:
		m.kill(Lost, interlock.ErrExpired)
	case left <= 0:
		m.kill(m.outcome, m.why)
	case m.phase == stopping && m.now >= m.killAt:
		m.kill(m.outcome, m.why)
	case m.phase == stopping:
	case m.phase == frozen:
		m.decideFrozen(left)
	case left <= m.limits.Grace && woke:
		m.freeze(left)
	case left <= m.limits.Grace:
		m.stop(Lost, interlock.ErrExpired, left)
		m.say("the claim cannot be renewed; the command is being stopped, and is killed in %v", round(left))
	case m.holdEnd > 0 && m.now >= m.holdEnd:
		m.stop(MaxHold, errMaxHold, m.limits.Grace)
		m.say("--max-hold %v is over; the command is being stopped", m.limits.MaxHold)
	}
}

var errMaxHold = errors.New("the command ran longer than --max-hold allows")

// freeze stops the group: the supervisor slept, little time is left, and no renewal has
// been confirmed since. The other half of the time is for an orderly end.
func (m *Machine) freeze(left time.Duration) {
	m.phase, m.thawAt = frozen, m.now+left/2
	m.send(syscall.SIGSTOP)
}

func (m *Machine) decideFrozen(left time.Duration) {
	switch {
	case left > m.limits.Grace:
		m.phase = running
		m.send(syscall.SIGCONT)
	case m.now >= m.thawAt:
		m.stop(Lost, interlock.ErrExpired, left)
	}
}

// stop sends TERM, and KILL after patience. A stopped process gets TERM when it is continued.
func (m *Machine) stop(o Outcome, why error, patience time.Duration) {
	m.phase, m.outcome, m.why = stopping, o, why
	m.killAt = m.now + patience
	m.send(syscall.SIGTERM)
	m.send(syscall.SIGCONT)
}

func (m *Machine) kill(o Outcome, why error) {
	m.phase, m.outcome, m.why = killed, o, why
	m.out = append(m.out, KillAll{})
	if o == Lost && !m.exited {
		m.say("the claim is not safe any longer (%v); the command is killed", why)
	}
}

// lose handles a claim that ended while the command ran. The time that the last renewal
// added is still used for an orderly end, up to the grace.
func (m *Machine) lose(cause error) {
	m.ended = true
	if m.phase == done || m.phase == killed || m.outcome != Completed {
		return
	}
	if cause == nil || errors.Is(cause, context.Canceled) {
		cause = interlock.ErrLost
	}
	if left := m.until - m.limits.margin() - m.now; left > 0 {
		m.stop(Lost, cause, min(m.limits.Grace, left))
		m.say("the claim is lost (%v); the command is being stopped", cause)
		return
	}
	m.kill(Lost, cause)
}

// exit records that the direct child has ended. If it ended by itself under a valid claim, the hold
// is over, even if descendants run. If it was stopped or killed, its descendants must end too.
func (m *Machine) exit(s Status) {
	m.exited, m.status = true, s
	switch {
	case m.outcome == Completed && m.until <= m.now:
		m.phase, m.outcome, m.why = killed, Lost, interlock.ErrExpired
	case m.outcome == Completed && m.phase != killed:
		if m.phase == frozen { // its end came before the STOP, which its descendants received
			m.send(syscall.SIGCONT)
		}
		m.phase = done
	}
}

func (m *Machine) empty() {
	if m.exited {
		m.phase = done
	}
}

// next returns the latest time of the next step.
func (m *Machine) next() time.Duration {
	at := m.now + m.limits.tick()
	if m.phase == killed || m.exited || m.phase == frozen {
		at = min(at, m.now+sweep)
	}
	safe := m.until - m.limits.margin()
	for _, t := range []time.Duration{safe, safe - m.limits.Grace, m.killAt, m.holdEnd} {
		if t > m.now {
			at = min(at, t)
		}
	}
	return at
}

func (m *Machine) send(s syscall.Signal) { m.out = append(m.out, Send{s}) }

func (m *Machine) say(format string, args ...any) {
	m.out = append(m.out, Say{fmt.Sprintf(format, args...)})
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

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
