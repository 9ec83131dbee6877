package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals that a command under a lock hears through us.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

// watched are those that only matter to us once we hold a lock. A wait may be
// suspended, it merely loses its place. And a terminal or a pipe that is gone
// must not end us with a PIPE while a command runs: what we say is then lost.
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

// ending is a context that ends with the first signal that asks us to end; its
// cause is then a [*signalled]. stop ends the watching and waits for it, so
// that later signals stay in the channel.
func ending(parent context.Context, signals <-chan os.Signal) (ctx context.Context, stop func()) {
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

// ends reports whether a signal ends a wait. The others are for the command
// that does not run yet.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// bySignal is the signal that ended ctx, if one did.
func bySignal(ctx context.Context) error {
	var s *signalled
	if errors.As(context.Cause(ctx), &s) {
		return s
	}
	return nil
}
