package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

func (a *app) tccCommand() *cobra.Command {
	l := &journalCommands{app: a, protocol: "tcc"}
	o := tcc.NewOperator
	c := group(&cobra.Command{
		Use: "tcc", Short: "Show and repair TCC transactions",
		Example: `  interlock tcc ls --state DEAD_LETTER
  interlock tcc retry trip/1 --reason "the airline is back"`,
	}, l.lsCommand(tccProtocol), l.tccShowCommand(),
		l.operationCommand(tccProtocol, operation{use: "retry ID [BRANCH]", short: "Retry a branch, or all that failed or wait", done: "retried",
			example: `retry trip/1 flight --reason "the airline is back"`, do: onStep(o, (*tcc.Operator).Retry)}),
		l.operationCommand(tccProtocol, operation{use: "skip ID BRANCH", short: "Continue without a branch that was settled by hand", done: "skipped",
			example: `skip trip/1 flight --reason "booked by telephone"`, do: onStep(o, (*tcc.Operator).Skip)}),
		l.operationCommand(tccProtocol, operation{use: "resolve ID", short: "Close a dead letter that was repaired by hand", done: "resolved",
			example: `resolve trip/1 --reason "refunded, ticket 8"`, do: onTransaction(o, (*tcc.Operator).Resolve)}),
		l.reconcileCommand("tcc", "the transactions", "the last call of each branch is made again under its key, which changes nothing where it was made."))
	l.add(c)
	l.completeIDs(c)
	return c
}

func (l *journalCommands) tccShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show the decision and the answer of each branch", Args: oneArg("transaction"),
		Example: `  interlock tcc show trip/1
  interlock tcc show trip/1 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var v transactionView
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) (err error) {
				v, err = l.readTCC(ctx, j, args[0])
				return err
			}); err != nil {
				return err
			}
			return l.app.print(v, v.shown())
		},
	}
}

func (l *journalCommands) readTCC(ctx context.Context, j *journal.Journal, id string) (v transactionView, err error) {
	c, err := coordinator.New(j, nil) // it serves nothing
	if err != nil {
		return v, err
	}
	m, err := tcc.New(c, nil)
	if err != nil {
		return v, err
	}
	o, err := m.Look(ctx, id)
	if err != nil {
		return v, l.explainForeign(ctx, j, id, err)
	}
	_, entries, err := j.Open(ctx, id)
	v = viewTCC(o)
	v.History = historyOf(entries)
	return v, err
}
