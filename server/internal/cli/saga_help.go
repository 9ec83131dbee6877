package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// help does something to a saga, with a reason, and says so.
func (l *ledger) help(ctx context.Context, what, id string, do func(context.Context, *saga.Operator, saga.By) error) error {
	if err := checkReason(l.reason); err != nil {
		return err
	}
	if err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		return possible(do(ctx, saga.NewOperator(j), saga.By{Actor: l.by, Reason: l.reason}))
	}); err != nil {
		return err
	}
	return l.done(what, id)
}

// possible adds to a refusal what would not be refused.
func possible(err error) error {
	var state *saga.StateError
	if !errors.As(err, &state) {
		return err
	}
	can := map[string]string{
		"retry":   "what was given up, or is being tried, is tried again",
		"skip":    "an undo, or a step behind the pivot, is skipped while it is to be done",
		"resolve": "a DEAD_LETTER is resolved",
		"settle":  "a step is settled that was called, up to the pivot, once those before it are done; behind the pivot it can only be done",
		"abort":   "a RUNNING saga is aborted that has not called its pivot",
	}[state.Op]
	if can == "" {
		return err
	}
	return fail(codeOf(err), "%w (%s; %s)", err, can, command("interlock", "saga", "show", state.ID))
}

// done tells what was done with a transaction.
func (l *ledger) done(what, id string) error {
	return l.app.print(struct {
		Done string `json:"done"`
		ID   string `json:"id"`
	}{what, id}, line("%s: %s\n", what, id))
}

func (l *ledger) sagaRetryCommand() *cobra.Command {
	var step, input string
	c := &cobra.Command{
		Use: "retry ID --reason TEXT", Short: "Try again what was given up, or waits", Args: oneArg("saga"),
		Example: `  interlock saga retry order/42 --reason "the bank is back"
  interlock saga retry order/42 --step charge --input '{"account":"7"}' --reason "the account was misspelled"`,
		Long: `Calls undos that were given up again, that of --step or all. Without --step, and if
no undo was given up, it calls each step that waits for its next attempt now; attempts
are counted from one again. --input is what the step or its undo is called with from
then on: possible for undos, and behind the pivot. A target may refuse another input
under a key that it has seen.`,
		RunE: func(c *cobra.Command, args []string) error {
			var edited json.RawMessage
			if c.Flags().Changed("input") {
				if edited = json.RawMessage(input); !json.Valid(edited) {
					return usage("--input is not JSON")
				}
			}
			return l.help(c.Context(), "retried", args[0], func(ctx context.Context, o *saga.Operator, by saga.By) error {
				return o.Retry(ctx, args[0], step, edited, by)
			})
		},
	}
	c.Flags().StringVar(&step, "step", "", "only this step")
	c.Flags().StringVar(&input, "input", "", "what it is called with from now on, `JSON`")
	l.answerable(c)
	return c
}

func (l *ledger) sagaSkipCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "skip ID STEP --reason TEXT", Short: "Go on without a step, or without its undo",
		Example: `  interlock saga skip order/42 mail --reason "the customer was called"`,
		Long: `Goes on without an undo, whether it was given up or is tried still: you have taken care
of what the step did. Behind the pivot it goes on without the step.`,
		Args: stepArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return l.help(c.Context(), "skipped", args[0], func(ctx context.Context, o *saga.Operator, by saga.By) error {
				return o.Skip(ctx, args[0], args[1], by)
			})
		},
	}
	l.answerable(c)
	return c
}

func (l *ledger) sagaResolveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "resolve ID --reason TEXT", Short: "Close a dead letter: what is left of it was taken care of", Args: oneArg("saga"),
		Example: `  interlock saga resolve order/42 --reason "refunded by hand, ticket 7"`,
		RunE: func(c *cobra.Command, args []string) error {
			return l.help(c.Context(), "resolved", args[0], func(ctx context.Context, o *saga.Operator, by saga.By) error {
				return o.Resolve(ctx, args[0], by)
			})
		},
	}
	l.answerable(c)
	return c
}

func (l *ledger) sagaAbortCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "abort ID --reason TEXT", Short: "Have a saga undone that has not called its pivot", Args: oneArg("saga"),
		Example: `  interlock saga abort order/42 --reason "the customer has cancelled"`,
		Long: `Decides that the saga is undone: what it has done, and what may have happened of what
is under way. The service that serves its shard undoes it; what that cannot undo, since
it does not know the saga's type any more, can be skipped.`,
		RunE: func(c *cobra.Command, args []string) error {
			return l.help(c.Context(), "aborted", args[0], func(ctx context.Context, o *saga.Operator, by saga.By) error {
				return o.Abort(ctx, args[0], by)
			})
		},
	}
	l.answerable(c)
	return c
}

func (l *ledger) sagaNowCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "now ID --reason TEXT", Short: "End what a saga waits for", Args: oneArg("saga"),
		Example: `  interlock saga now order/42 --reason "the customer does not want to wait"`,
		RunE: func(c *cobra.Command, args []string) error {
			return l.help(c.Context(), "hurried", args[0], func(ctx context.Context, o *saga.Operator, by saga.By) error {
				return o.Now(ctx, args[0], by)
			})
		},
	}
	l.answerable(c)
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
