package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func (l *journalCommands) sagaSettleCommand() *cobra.Command {
	var isDone, notDone bool
	var output string
	c := &cobra.Command{
		Use: "settle ID STEP --done|--not-done --reason TEXT", Short: "Record the outcome of an in-doubt step",
		Example: `  interlock saga settle order/42 charge --done --output '{"receipt":7}' --reason "it is on the statement"
  interlock saga settle order/42 charge --not-done --reason "the bank has closed, and never got it"`,
		Long: `If the target of a step is gone, above all of a pivot, only a person can find out the
outcome. --done continues after the step, with --output as its answer. --not-done
undoes the saga, and asserts that the call will never arrive.`,
		Args: exactly(2, "a saga and a step"),
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
			return l.runOperation(c.Context(), "settled", args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
				if isDone {
					return saga.NewOperator(j).Done(ctx, args[0], args[1], answer, by)
				}
				return saga.NewOperator(j).NotDone(ctx, args[0], args[1], by)
			})
		},
	}
	c.Flags().BoolVar(&isDone, "done", false, "the step took effect")
	c.Flags().BoolVar(&notDone, "not-done", false, "the step did not take effect, and never will")
	c.Flags().StringVar(&output, "output", "", "answer of the step, `JSON`")
	l.audit.flags(c.Flags())
	return c
}
