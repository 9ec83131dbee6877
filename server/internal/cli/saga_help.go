package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaOperations returns the commands by which an operator changes a saga.
func (l *journalCommands) sagaOperations() []*cobra.Command {
	o := saga.NewOperator
	return []*cobra.Command{l.sagaRetryCommand(), l.sagaSettleCommand(),
		l.operationCommand(sagaProtocol, operation{use: "skip ID STEP", short: "Continue without a step or its undo", done: "skipped",
			example: `skip order/42 mail --reason "the customer was called"`, do: onStep(o, (*saga.Operator).Skip),
			long: `Continues without an undo, whether it was given up or is still retried: you have undone
the step by hand. After the pivot it continues without the step.`}),
		l.operationCommand(sagaProtocol, operation{use: "resolve ID", short: "Close a dead letter that was repaired by hand", done: "resolved",
			example: `resolve order/42 --reason "refunded by hand, ticket 7"`, do: onTransaction(o, (*saga.Operator).Resolve)}),
		l.operationCommand(sagaProtocol, operation{use: "abort ID", short: "Undo a saga that has not called its pivot", done: "aborted",
			example: `abort order/42 --reason "the customer has cancelled"`, do: onTransaction(o, (*saga.Operator).Abort),
			long: `Decides to undo the saga: all steps that were done, and those that may have been done.
The service that serves the shard undoes them. If no service knows the saga's type any
more, skip the steps.`}),
		l.operationCommand(sagaProtocol, operation{use: "now ID", short: "Skip the current wait of a saga", done: "hurried",
			example: `now order/42 --reason "the customer does not want to wait"`, do: onTransaction(o, (*saga.Operator).Now)}),
	}
}

func (l *journalCommands) sagaRetryCommand() *cobra.Command {
	var input string
	var edited json.RawMessage
	c := l.operationCommand(sagaProtocol, operation{use: "retry ID [STEP]", short: "Retry failed undos, or steps that wait", done: "retried",
		example: `retry order/42 --reason "the bank is back"
  interlock saga retry order/42 charge --input '{"account":"7"}' --reason "the account was misspelled"`,
		long: `Calls again the undos that were given up: that of STEP, or all. Without STEP, and if no
undo was given up, it calls at once each step that waits for its next attempt. Attempts
are counted from one again. --input replaces the input of the step or its undo; it is
possible for undos, and after the pivot. A target may refuse a different input under a
key that it has seen.`,
		do: func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error {
			if edited == nil {
				return saga.NewOperator(j).Retry(ctx, id, step, by)
			}
			return saga.NewOperator(j).Edit(ctx, id, step, edited, by)
		}})
	c.Flags().StringVar(&input, "input", "", "new input of STEP, `JSON`")
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if !c.Flags().Changed("input") {
			return nil
		}
		if edited = json.RawMessage(input); !json.Valid(edited) || len(args) < 2 {
			return usage("--input is not JSON, or STEP is missing")
		}
		return nil
	}
	return c
}

func (l *journalCommands) sagaStartCommand() *cobra.Command {
	var input string
	c := &cobra.Command{
		Use: "start ID TYPE --input JSON", Short: "Start a saga that a service defines",
		Example: `  interlock saga start order/42 order --input '{"item":"book"}'
  interlock saga start order/42 order --input - < order.json`,
		Long: `Writes the begin record into the journal. The service that serves the shard runs the
saga. If no service defines TYPE, the saga waits until one does. Starting it again
with the same input changes nothing. The definition's own timeout does not apply.`,
		Args: exactly(2, "an id and a type"),
		RunE: func(c *cobra.Command, args []string) error {
			text, err := l.app.sagaInput(input)
			if err != nil {
				return err
			}
			if err := l.on(c.Context(), backend.Target.Journal, true, func(ctx context.Context, j *journal.Journal) error {
				return saga.Begin(ctx, j, args[1], args[0], text)
			}); err != nil {
				return err
			}
			return l.done("started", args[0])
		},
	}
	c.Flags().StringVar(&input, "input", "null", "input of the saga, `JSON`; - reads it from the standard input")
	return c
}

// sagaInput returns JSON from the flag or the standard input.
func (a *app) sagaInput(value string) (json.RawMessage, error) {
	text, err := a.flagOrInput("--input", value, 16*driver.MaxPayload) // the journal stores it without spaces
	if err == nil && !json.Valid(text) {
		err = usage("--input is not JSON")
	}
	return text, err
}

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
				return usage("give either --done or --not-done")
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
