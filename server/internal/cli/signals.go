package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals that are passed on to a command under a lock.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

// watched are the signals that matter only while a lock is held. A wait may be suspended: it loses
// its place. A closed terminal or pipe must not end this process by PIPE while a command runs: its
// messages are then lost.
var watched = []os.Signal{syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE}

// subscribe listens for signals, except those that the process was started
// to ignore (nohup, a shell's background job): they stay ignored.
func subscribe(signals chan<- os.Signal, list []os.Signal) {
	for _, s := range list {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// untilSignal returns a context that ends with the first signal that ends a wait; its cause is then
// a [*signalled]. stop ends the watching and waits for it, so that later signals stay in the channel.
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

// ends reports whether a signal ends a wait. The others are for the command
// that does not run yet.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// signalError is the signal that ended ctx, if one did.
func signalError(ctx context.Context) error {
	var s *signalled
	if errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}
