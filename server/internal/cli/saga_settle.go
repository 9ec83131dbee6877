package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func (l *ledger) sagaSettleCommand() *cobra.Command {
	var isDone, notDone bool
	var output string
	c := &cobra.Command{
		Use: "settle ID STEP --done|--not-done --reason TEXT", Short: "Record the outcome of a step that does not answer",
		Example: `  interlock saga settle order/42 charge --done --output '{"receipt":7}' --reason "it is on the statement"
  interlock saga settle order/42 charge --not-done --reason "the bank has closed, and never got it"`,
		Long: `For a step, most of all a pivot, whose target is gone: only a person who looks can know
its outcome. --done goes on behind it, with --output as what it would have
answered; --not-done has the saga undone, and means that the call will never arrive.`,
		Args: stepArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if isDone == notDone {
				return usage("say either --done or --not-done")
			}
			var answer json.RawMessage
			if c.Flags().Changed("output") {
				if answer = json.RawMessage(output); !isDone || !json.Valid(answer) {
					return usage("--output is not JSON, or the step was not done")
				}
			}
			return l.operated(c.Context(), "settled", args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
				if isDone {
					return saga.NewOperator(j).Done(ctx, args[0], args[1], answer, by)
				}
				return saga.NewOperator(j).NotDone(ctx, args[0], args[1], by)
			})
		},
	}
	c.Flags().BoolVar(&isDone, "done", false, "it has happened")
	c.Flags().BoolVar(&notDone, "not-done", false, "it has not, and never will")
	c.Flags().StringVar(&output, "output", "", "what it has answered, `JSON`")
	l.answerable(c)
	return c
}

// stepArgs wants a saga and a step.
func stepArgs(c *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usage("%s wants a saga and a step, %d were given", c.CommandPath(), len(args))
	}
	return nil
}
