package cli

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaOperations are the commands that change a saga by hand.
func (l *ledger) sagaOperations() []*cobra.Command {
	o := saga.NewOperator
	return []*cobra.Command{l.sagaRetryCommand(), l.sagaSettleCommand(),
		l.operate(sagas, operation{use: "skip ID STEP", short: "Go on without a step, or without its undo", done: "skipped",
			example: `skip order/42 mail --reason "the customer was called"`, do: stepwise(o, (*saga.Operator).Skip),
			long: `Goes on without an undo, whether it was given up or is tried still: you have taken care
of what the step did. Behind the pivot it goes on without the step.`}),
		l.operate(sagas, operation{use: "resolve ID", short: "Close a dead letter: what is left of it was taken care of", done: "resolved",
			example: `resolve order/42 --reason "refunded by hand, ticket 7"`, do: whole(o, (*saga.Operator).Resolve)}),
		l.operate(sagas, operation{use: "abort ID", short: "Have a saga undone that has not called its pivot", done: "aborted",
			example: `abort order/42 --reason "the customer has cancelled"`, do: whole(o, (*saga.Operator).Abort),
			long: `Decides that the saga is undone: what it has done, and what may have happened of what
is under way. The service that serves its shard undoes it; what that cannot undo, since
it does not know the saga's type any more, can be skipped.`}),
		l.operate(sagas, operation{use: "now ID", short: "End what a saga waits for", done: "hurried",
			example: `now order/42 --reason "the customer does not want to wait"`, do: whole(o, (*saga.Operator).Now)}),
	}
}

func (l *ledger) sagaRetryCommand() *cobra.Command {
	var input string
	var edited json.RawMessage
	c := l.operate(sagas, operation{use: "retry ID [STEP]", short: "Try again what was given up, or waits", done: "retried",
		example: `retry order/42 --reason "the bank is back"
  interlock saga retry order/42 charge --input '{"account":"7"}' --reason "the account was misspelled"`,
		long: `Calls undos that were given up again, that of STEP or all. Without STEP, and if
no undo was given up, it calls each step that waits for its next attempt now; attempts
are counted from one again. --input is what the step or its undo is called with from
then on: possible for undos, and behind the pivot. A target may refuse another input
under a key that it has seen.`,
		do: func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error {
			if edited == nil {
				return saga.NewOperator(j).Retry(ctx, id, step, by)
			}
			return saga.NewOperator(j).Edit(ctx, id, step, edited, by)
		}})
	c.Flags().StringVar(&input, "input", "", "what STEP is called with from now on, `JSON`")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if c.Flags().Changed("input") {
			if edited = json.RawMessage(input); !json.Valid(edited) {
				return usage("--input is not JSON")
			}
		}
		return nil
	}
	return c
}

func (l *ledger) sagaStartCommand() *cobra.Command {
	var input string
	c := &cobra.Command{
		Use: "start ID TYPE --input JSON", Short: "Start a saga of a definition that a service knows",
		Example: `  interlock saga start order/42 order --input '{"item":"book"}'
  interlock saga start order/42 order --input - < order.json`,
		Long: `Writes its beginning into the journal; the service that serves its shard goes on with
it. TYPE has to be one that the service defines: another one is begun all the same, and
stays until a service is started that defines it. Starting it again with the same input changes nothing. The definition's own
timeout does not bound it.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("%s wants an id and a type, %d were given", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			text, err := l.app.sagaInput(input)
			if err != nil {
				return err
			}
			if err := l.on(c.Context(), backend.Target.Journal, true, func(ctx context.Context, j *journal.Journal) error {
				if err := spread(ctx, j); err != nil {
					return err
				}
				return saga.Begin(ctx, j, args[1], args[0], text)
			}); err != nil {
				return err
			}
			return l.done("started", args[0])
		},
	}
	c.Flags().StringVar(&input, "input", "null", "its input, `JSON`; - reads it from the standard input")
	return c
}

// spread refuses a number of shards that is not the journal's, as far as its first
// transactions show: nobody would go on with what is begun in a shard of no service.
func spread(ctx context.Context, j *journal.Journal) error {
	const some = 20
	heads, err := j.Heads(ctx, "", some)
	for _, h := range heads {
		if j.ShardOf(h.Transaction) != h.Shard {
			return usage("the journal is not spread over %d shards: give --shards as its services have it", j.Shards())
		}
	}
	return err
}

// sagaInput is JSON from the flag or the standard input.
func (a *app) sagaInput(text string) (json.RawMessage, error) {
	if text == "-" {
		read, err := io.ReadAll(a.in)
		if err != nil {
			return nil, fail(exitFailed, "read the standard input: %w", err)
		}
		text = string(read)
	}
	if !json.Valid([]byte(text)) {
		return nil, usage("--input is not JSON")
	}
	return json.RawMessage(text), nil
}
