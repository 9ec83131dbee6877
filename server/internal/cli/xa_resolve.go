package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

func (x *xa) resolveCommand() *cobra.Command {
	var decision string
	c := x.recorded(&cobra.Command{
		Use: "resolve ID --reason TEXT", Short: "Resolve a heuristic outcome, or decide by hand", Args: oneArg("transaction"),
		Example: `  interlock xa resolve transfer/42 --reason "south was put right by hand, ticket 7"
  interlock xa resolve 1x7k… --decide abort --reason "its coordinator is gone for good" --participant north=postgres://n/bank`,
		Long: `Without --decide it ends a HEURISTIC transaction: a branch ended differently from the
decision, and you have corrected that by hand.

With --decide commit or abort it decides for a branch in doubt that the journal does not
know, and that is too old for presumed abort. ID is then the one that "xa ls" shows as in
doubt. It never overrules a decision. A decision to commit covers the branches that are
in doubt now: name all participants, and make sure that none is missing.`,
		RunE: func(c *cobra.Command, args []string) error {
			if decision != "" && decision != string(twopc.Commit) && decision != string(twopc.Abort) {
				return usage("--decide %s is not known; it is commit or abort", decision)
			}
			if decision != "" && !runName.MatchString(args[0]) {
				return usage("--decide is about a branch in doubt: name it as interlock xa ls does, which is ID.RUN and not %s", args[0])
			}
			if decision == "" {
				return x.runOperation(c.Context(), "resolved", args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
					return twopc.NewOperator(j).Resolve(ctx, args[0], by)
				})
			}
			if err := x.manage(c.Context(), func(ctx context.Context, _ *journal.Journal, m *twopc.Engine) error {
				return m.Settle(ctx, args[0], twopc.Decision(decision), twopc.By{Actor: x.by, Reason: x.reason})
			}); err != nil {
				return err
			}
			return x.done("resolved", args[0])
		},
	})
	c.Flags().StringVar(&decision, "decide", "", "commit or abort")
	completes(c, "decide", "commit", "abort")
	return c
}
