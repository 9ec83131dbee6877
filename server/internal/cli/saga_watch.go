package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func (l *journalCommands) sagaWatchCommand() *cobra.Command {
	var poll time.Duration
	c := &cobra.Command{
		Use: "watch ID", Short: "Print the records of a saga until it ends", Args: oneArg("saga"),
		Example: `  interlock saga watch order/42
  interlock saga watch order/42 -o json        one line for each record`,
		Long: `Prints each record of the saga, existing records first. It ends when the saga ends or
becomes a dead letter. The exit code is 0 if the saga succeeded, else 1.`,
		RunE: func(c *cobra.Command, args []string) error {
			if poll <= 0 {
				return usage("--every must be above 0, not %v", poll)
			}
			return l.watchSaga(c.Context(), args[0], poll)
		},
	}
	c.Flags().DurationVar(&poll, "every", 500*time.Millisecond, "polling interval")
	return c
}

// next suggests a command for a saga that has not succeeded.
func next(s saga.State, id string) text {
	if s == saga.DeadLetter {
		return "repair it with interlock saga retry, skip or resolve"
	}
	return line("see %s", command("interlock", "saga", "show", id))
}

func (l *journalCommands) watchSaga(ctx context.Context, id string, poll time.Duration) error {
	w := sagaWatch{journalCommands: l, id: id}
	err := l.do(ctx, false, func(ctx context.Context, j *journal.Journal) error {
		for {
			if err := w.look(ctx, j); err != nil || w.state.Final() {
				return err
			}
			timer := time.NewTimer(poll)
			select {
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			case <-timer.C:
			}
		}
	})
	if err == nil && w.state != saga.Succeeded {
		return fail(exitFailed, "the saga is %s: %s", w.state, next(w.state, id))
	}
	return err
}

// sagaWatch is how far a saga has been shown.
type sagaWatch struct {
	*journalCommands
	id    string
	shown int64 // the last record
	state saga.State
	down  bool // the outage of the journal was reported
}

// look prints the new records. If the journal has answered before and does not now, the next look
// retries.
func (w *sagaWatch) look(ctx context.Context, j *journal.Journal) error {
	reading, cancel := context.WithTimeout(ctx, w.app.timeout)
	defer cancel()
	told, err := history(reading, j, w.id)
	switch unreachable := err != nil && codeOf(err) == exitUnreachable; {
	case unreachable && w.shown > 0:
		if !w.down {
			w.app.say("interrupted: %v; trying again", err)
		}
		w.down = true
		return nil
	case err != nil:
		return err
	case w.down:
		w.down = false
		w.app.say("the journal answers again")
	}
	for _, m := range told.snapshots {
		if m.Position <= w.shown {
			continue
		}
		v := viewSnapshot(m)
		t := line("%4d  %s  %-8s %-20s %s  %s", m.Position, localTime(m.Written), m.Kind, m.Step, m.State, v.who())
		if err := w.app.print(v, trimmed(t)+"\n"); err != nil {
			return err
		}
		w.shown, w.state = m.Position, m.State
	}
	return nil
}
