package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// The exit codes of every command. A command that interlock runs may use all
// others.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 64
	exitUnreachable = 69
	exitBug         = 70
	exitNotAcquired = 75
	exitForbidden   = 77
	exitConfig      = 78
	exitLost        = 79
	exitStale       = 80
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// exitCodes is the help topic of the same name.
const exitCodes = `  the command's own   interlock lock or limit ran the command until it ended
  128+n               signal n ended the command or a wait
  0                   done
  1                   failed (never by interlock lock or locks hold)
  64                  wrong usage: flags, names, URLs, an impossible TTL,
                      or a lock that an outer interlock lock already holds
  69                  the backend is unreachable, or has no quorum
  70                  a bug in interlock
  75                  not acquired: held by another with --no-wait, or --wait
                      ran out (--conflict-exit-code); not released: the
                      holder is not the one shown or named; refused by
                      interlock limit
  77                  the backend does not permit it
  78                  the backend does not meet the requirements: its guarantees
                      are too weak, or it has no guard table or journal
  79                  the lock was lost while the command ran, or --max-hold was
                      over; interlock ended the command (--lost-exit-code)
  80                  a guard rejected a stale token
  126                 the command cannot be executed
  127                 the command was not found
  0, 1, 2, 3          of interlock doctor: ok, warnings, critical findings, not
                      examined; as monitoring expects

A command may return any of these itself. The file of --report has the actual
outcome.`

// An exitError is an error with its own exit code.
type exitError struct {
	code int
	err  error
}

func (f *exitError) Error() string { return f.err.Error() }
func (f *exitError) Unwrap() error { return f.err }

// fail returns an exitError whose text is safe to print, as [line] does.
func fail(code int, format string, args ...any) error {
	if false {
		_ = fmt.Errorf(format, args...) // so that vet checks the arguments
	}
	return &exitError{code, fmt.Errorf(format, escaped(args)...)}
}

func usage(format string, args ...any) error { return fail(exitUsage, format, args...) }

// signalled is the error of a wait that a signal ended.
type signalled struct{ number syscall.Signal }

func (s *signalled) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", int(s.number), s.number)
}

// codeOf returns the exit code for any error.
func codeOf(err error) int {
	var own *exitError
	var signal *signalled
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &signal):
		return exitSignal + int(signal.number)
	case isUsage(err):
		return exitUsage
	case backend.Forbidden(err):
		return exitForbidden
	case backend.NoDatabase(err):
		return exitConfig
	case errors.Is(err, interlock.ErrStaleToken):
		return exitStale
	case errors.Is(err, interlock.ErrHeld):
		return exitNotAcquired
	case errors.Is(err, interlock.ErrUnmet), errors.As(err, new(*driver.TableError)):
		return exitConfig
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	}
	switch interlock.Kind(err) {
	case interlock.Bug:
		return exitBug
	case interlock.Definite:
		return exitConfig
	}
	return exitUnreachable
}

func isUsage(err error) bool {
	var url *backend.URLError
	var ttl *backend.TTLError
	return errors.As(err, &url) || errors.As(err, &ttl) || errors.Is(err, interlock.ErrName) ||
		errors.Is(err, interlock.ErrImplausibleToken)
}

// forwarded are the signals that a command under a lock receives, and PIPE. A closed terminal or pipe
// must not end this process, which has a place in a queue or a lock: later messages are lost.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGPIPE}

// watched are the signals that matter only while a lock is held. A wait may be suspended: it loses
// its place.
var watched = []os.Signal{syscall.SIGTSTP, syscall.SIGCONT}

// subscribe listens for signals, except those that the process inherited as ignored (nohup, a shell's
// background job): they stay ignored.
func subscribe(signals chan<- os.Signal, list []os.Signal) {
	for _, s := range list {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// unsubscribe ends listening, but for PIPE: a closed pipe does not change the exit code of an error.
func unsubscribe(signals chan<- os.Signal) {
	subscribe(make(chan os.Signal, 1), []os.Signal{syscall.SIGPIPE})
	signal.Stop(signals)
}

// untilSignal returns a context that ends with the first signal that ends a wait; its cause is then a
// [*signalled]. stop stops listening and waits for that, so that later signals stay in the channel.
func untilSignal(parent context.Context, signals <-chan os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-over:
				return
			case s := <-signals:
				if n, ok := s.(syscall.Signal); ok && ends(n) {
					cancel(&signalled{n})
					return
				}
			}
		}
	}()
	return ctx, func() {
		close(over)
		<-gone
		cancel(nil)
	}
}

// untilStopped is [untilSignal] for the signals that stop a command. stop also ends listening.
func untilStopped(parent context.Context) (ctx context.Context, stop func()) {
	signals := make(chan os.Signal, 1)
	subscribe(signals, stopSignals)
	ctx, end := untilSignal(parent, signals)
	return ctx, func() {
		end()
		signal.Stop(signals)
	}
}

// ends reports whether a signal ends a wait. The others are for the command, which does not run yet.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// signalError returns the signal that ended ctx, if any.
func signalError(ctx context.Context) error {
	var s *signalled
	if errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}
