// Package supervise runs a command while a claim is valid, and ends it before the claim can belong
// to another owner. It cannot reach a command on a machine that is stopped as a whole, nor
// requests that a command has already sent. Only a guard in the store rejects those.
//
//	r, err := supervise.Run(claim, supervise.Command{Path: "/bin/backup"}, supervise.Options{
//		Limits: supervise.Limits{TTL: 30 * time.Second},
//	})
//
// [Machine], which does no I/O, makes the decisions; Run executes them. The command gets
// its own process group. On Linux it dies with the supervisor, and processes that it
// leaves behind become the supervisor's children.
package supervise

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// Claim is the claim under which the command runs.
type Claim interface {
	// Remaining returns how long it is still valid, counting a machine's sleep.
	Remaining() time.Duration
	// Context returns a context that ends with the claim, with the cause.
	Context() context.Context
}

// Command is the program to run.
type Command struct {
	Path    string   // the executable, already looked up
	Args    []string // including the program name
	Env     []string // the whole environment
	NoStdin bool     // give it /dev/null instead of the standard input
}

// Options of [Run]. Limits.TTL is required.
type Options struct {
	Limits Limits
	// Signals receives the caller's signals; nil if there are none. The caller
	// subscribes, so that no signal is lost between its own work and Run.
	Signals <-chan os.Signal
	// Say prints one line on the terminal; nil prints nothing. It may block. It runs in another
	// goroutine, which Run leaves behind if a line takes longer than a second after the command's
	// end.
	Say func(text string)
}

// StartError reports that the command could not be started.
type StartError struct {
	Path string
	Err  error
}

// Error returns the command and the reason.
func (e *StartError) Error() string { return fmt.Sprintf("start %s: %v", e.Path, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Run runs a command under a claim and returns when the command has ended. If Run ended
// it, all its descendants have ended too. It does not release the claim. The error is a
// [*StartError], or reports an impossible limit; the result reports the
// claim's end.
//
// Run kills and waits for every child of the process outside of its process group, so the process must have
// no such children of its own.
func Run(c Claim, cmd Command, o Options) (Result, error) {
	limits, err := o.Limits.Check()
	if err != nil {
		return Result{}, err
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
	p, err := start(cmd)
	if err != nil {
		return Result{}, &StartError{Path: cmd.Path, Err: err}
	}
	defer p.takeTerminalBack()
	h := hold{claim: c, process: p, signals: o.Signals, printer: newPrinter(o.Say), machine: newMachine(limits, Reading{now(), c.Remaining()})}
	defer h.printer.close()
	h.run()
	return Result{Outcome: h.machine.outcome, Status: h.machine.status, Why: h.machine.why, Asked: h.machine.asked}, nil
}

// hold connects the machine with processes, signals and the claim.
type hold struct {
	claim   Claim
	process *process
	signals <-chan os.Signal
	printer *printer
	machine *Machine

	wantsTerminal bool // the command was stopped because it used the terminal in the background
}

func (h *hold) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := h.claim.Context().Done()
	for h.machine.phase != done {
		timer.Reset(h.machine.due - now())
		select {
		case <-timer.C:
			h.step(h.tick())
		case s := <-h.signals:
			number, _ := s.(syscall.Signal)
			h.step(Signal{number})
		case <-ended:
			ended = nil
			h.step(Ended{context.Cause(h.claim.Context())})
		case e := <-h.process.events:
			h.step(h.noticed(e))
		}
	}
}

// step reads the clock before the claim, so that the claim never seems to last longer
// than it does. It reads the claim before its context, because an ended claim has
// nothing remaining.
func (h *hold) step(event any) {
	r := Reading{Now: now(), Remaining: h.claim.Remaining()}
	if _, told := event.(Ended); !told && !h.machine.ended && h.claim.Context().Err() != nil {
		h.step(Ended{context.Cause(h.claim.Context())})
	}
	for _, effect := range h.machine.Step(r, event) {
		h.apply(effect)
	}
}

// tick returns an Empty once the command and its descendants are gone.
func (h *hold) tick() any {
	if h.machine.exited && !h.process.anyLeft() {
		return Empty{}
	}
	h.process.reap()
	h.foreground()
	return Tick{}
}

// foreground gives the terminal to a command that waits for it, once a shell's fg has
// given it to us. Shells do not notify a running job, so every tick
// checks.
func (h *hold) foreground() {
	if h.wantsTerminal && h.process.giveTerminal() {
		h.wantsTerminal = false
		h.process.send(syscall.SIGCONT)
	}
}

// noticed returns an event of the command, and records that it wants the terminal.
func (h *hold) noticed(event any) any {
	if s, ok := event.(Stopped); ok && (s.By == syscall.SIGTTIN || s.By == syscall.SIGTTOU) {
		h.wantsTerminal = true
	}
	return event
}

func (h *hold) apply(effect any) {
	switch e := effect.(type) {
	case Send:
		h.process.send(e.Number)
	case KillAll:
		h.process.killAll()
	case Say:
		h.printer.say(e.Text)
	}
}

// printTimeout bounds the wait for lines that are not printed when the command has ended.
const printTimeout = time.Second

// printer prints lines in its own goroutine. A terminal whose output is stopped, or a full pipe,
// then delays no signal to the command.
type printer struct {
	lines chan string
	done  chan struct{}
}

func newPrinter(print func(text string)) *printer {
	p := &printer{lines: make(chan string, 16), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for text := range p.lines {
			print(text)
		}
	}()
	return p
}

// say drops the line if the channel is full: it has room for more lines than a hold prints.
func (p *printer) say(text string) {
	select {
	case p.lines <- text:
	default:
	}
}

func (p *printer) close() {
	close(p.lines)
	select {
	case <-p.done:
	case <-time.After(printTimeout):
	}
}

// now reads the clock of claims, which counts while the machine sleeps.
func now() time.Duration { return time.Duration(boottime.Now()) }

// Limits bounds a hold.
type Limits struct {
	// TTL is how long the claim lasts without renewal. Required.
	TTL time.Duration
	// Grace is the time between TERM and KILL; 0 means 5 s, or a sixth of the TTL if that is
	// shorter. It must be shorter than half the TTL. A claim that is renewed every third of the
	// TTL often has no more than two thirds left.
	Grace time.Duration
	// MaxHold bounds the hold; 0 means no bound.
	MaxHold time.Duration
	// OnSuspend is the effect of Ctrl-Z; zero means [ContinueOnSuspend].
	OnSuspend Policy
}

// Policy is the reaction to a suspended command.
type Policy int

const (
	// ContinueOnSuspend lets the command continue.
	ContinueOnSuspend Policy = iota
	// ReleaseOnSuspend ends the command in order and releases the lock.
	ReleaseOnSuspend
	// KillOnSuspend kills the command and releases the lock.
	KillOnSuspend
)

// Check sets defaults, and returns an error for an impossible limit.
func (l Limits) Check() (Limits, error) {
	if l.Grace == 0 {
		l.Grace = min(5*time.Second, l.TTL/6)
	}
	switch {
	case l.TTL <= 0:
		return l, fmt.Errorf("the TTL must be above 0, not %v", l.TTL)
	case l.Grace < 0 || l.MaxHold < 0:
		return l, fmt.Errorf("a time limit cannot be negative")
	case l.Grace >= l.TTL/2:
		return l, fmt.Errorf("a grace of %v is too long for a TTL of %v: it must be shorter than %v, "+
			"so that a missed renewal does not end the command", l.Grace, l.TTL, l.TTL/2)
	}
	return l, nil
}

// sweep is the interval of checks of a group that must end.
const sweep = 20 * time.Millisecond

// margin returns the time between the KILL and the end of the claim, for late timers and for
// the kernel to act.
func (l Limits) margin() time.Duration {
	return min(max(l.TTL/50, 10*time.Millisecond), 250*time.Millisecond)
}

// tick returns the longest time between two readings of the clock: timers do not count
// while the machine sleeps, but the claim's clock does.
func (l Limits) tick() time.Duration {
	return min(max(l.TTL/20, 10*time.Millisecond), 500*time.Millisecond)
}

// late returns the delay of a step that shows that the supervisor was stopped.
func (l Limits) late() time.Duration { return l.TTL / 10 }

// Outcome is how a hold ended.
type Outcome string

const (
	// Completed: the command ended by itself, or by a signal that we did not send.
	Completed Outcome = "completed"
	// Lost: the claim ended, or was about to, while the command ran.
	Lost Outcome = "lost"
	// MaxHold: the command was ended because it exceeded MaxHold.
	MaxHold Outcome = "max_hold"
	// Suspended: the command was ended because it was suspended.
	Suspended Outcome = "suspended"
)

// Status is how the command itself ended.
type Status struct {
	Code   int            // its exit code, if Signal is 0
	Signal syscall.Signal // the signal that ended it; 0 if it exited
}

// Result is the outcome of a hold.
type Result struct {
	Outcome Outcome
	Status  Status
	Why     error // nil if Completed
	Asked   bool  // INT, TERM or QUIT was forwarded: the end was asked for
}
