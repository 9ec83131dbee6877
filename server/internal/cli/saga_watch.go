package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func (l *ledger) sagaWatchCommand() *cobra.Command {
	var poll time.Duration
	c := &cobra.Command{
		Use: "watch ID", Short: "Print what happens to a saga until it has ended", Args: oneArg("saga"),
		Example: `  interlock saga watch order/42
  interlock saga watch order/42 -o json        one line for each record`,
		Long: `Prints each record of the saga, those that are there first. It ends when the saga
does, with exit code 0 if it has succeeded and 1 if not; a dead letter ends it too.`,
		RunE: func(c *cobra.Command, args []string) error {
			if poll <= 0 {
				return usage("--every must be longer than nothing, not %v", poll)
			}
			return l.watchSaga(c.Context(), args[0], poll)
		},
	}
	c.Flags().DurationVar(&poll, "every", 500*time.Millisecond, "how often to look")
	return c
}

// next is what one does about a saga that has not succeeded.
func next(s saga.State, id string) string {
	if s == saga.DeadLetter {
		return "help it by interlock saga retry, skip or resolve"
	}
	return "see interlock saga show " + plain(id)
}

func (l *ledger) watchSaga(ctx context.Context, id string, poll time.Duration) error {
	var state saga.State
	err := l.do(ctx, false, func(ctx context.Context, j *journal.Journal) error {
		for shown := 0; ; {
			told, err := history(ctx, j, id)
			if err != nil {
				return err
			}
			moments := told.moments
			for _, m := range moments[min(shown, len(moments)):] {
				v := viewMoment(m)
				text := fmt.Sprintf("%4d  %s  %-8s %-20s %s  %s\n", m.Position, local(m.Written), m.Kind, plain(m.Step), m.State, v.who())
				if err := l.app.print(v, text); err != nil {
					return err
				}
				state = m.State
			}
			if shown = max(shown, len(moments)); state.Final() {
				return nil
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
	if err == nil && state != saga.Succeeded {
		return fail(exitFailed, "the saga is %s: %s", state, next(state, id))
	}
	return err
}
