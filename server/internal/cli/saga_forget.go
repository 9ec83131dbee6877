package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
)

// sagaForgetCommand deletes ended transactions, for journals that have no room for those that
// their coordinators keep.
func (l *journalCommands) sagaForgetCommand() *cobra.Command {
	var before time.Duration
	var batch int
	c := l.recorded(&cobra.Command{
		Use: "forget --before DURATION --reason TEXT", Short: "Delete transactions that ended long ago",
		Example: `  interlock saga forget --before 720h --reason "the disk is full"`,
		Long: `Deletes the transactions of every protocol that ended longer than --before ago, never
unfinished ones. A coordinator does this by itself; see --keep of coordinate.

A deleted id can be used again. Keep transactions for longer than any client repeats
its requests, and for longer than twopc.Options.Retention (7 days).`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if before <= 0 || batch < 1 {
				return usage("--before and --batch must be above zero, not %v and %d", before, batch)
			}
			return l.do(c.Context(), false, func(ctx context.Context, j *journal.Journal) error {
				removed, record, err := j.ForgetBy(ctx, time.Now().Add(-before), batch, l.by, l.reason)
				if err != nil {
					l.app.say("%d transactions were removed before it failed", removed)
					return err
				}
				return l.app.print(struct {
					Forgotten int    `json:"forgotten"`
					Record    string `json:"record"`
				}{removed, record}, line("forgotten: %d; interlock saga export %s shows who and why\n", removed, record))
			})
		},
	})
	c.Flags().DurationVar(&before, "before", 0, "minimum age since their end")
	c.Flags().IntVar(&batch, "batch", 500, "transactions that one request deletes")
	return c
}
