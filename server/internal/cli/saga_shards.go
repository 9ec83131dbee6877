package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

func (l *journalCommands) sagaShardsCommand() *cobra.Command {
	var set int
	c := &cobra.Command{
		Use: "shards", Short: "Show or change the number of shards",
		Example: `  interlock saga shards
  interlock saga shards --set 128 --reason "more services"`,
		Long: `Shows the number of shards of the journal. All processes that use the journal must have
that number.

--set changes it, and records who did it and why. Stop all services that use the journal
before, and start them with the new --shards afterwards: a service that still runs with the
old number is refused. If the command fails, repeat it: until it succeeds, no process
can use the journal.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			changes := c.Flags().Changed("set")
			if changes {
				if err := checkReason(l.reason); err != nil {
					return err
				}
			}
			return l.store(c.Context(), func(ctx context.Context, store driver.Journal) error {
				moved, record := 0, ""
				if changes {
					var err error
					if moved, record, err = journal.SetShardsBy(ctx, store, set, l.by, l.reason); err != nil {
						return err
					}
				}
				n, err := store.Shards(ctx, 0, 0)
				if err != nil {
					return err
				}
				t := line("%d shards\n", n)
				if changes {
					t = line("%d shards, %d transactions moved; interlock saga export %s shows who and why\n", n, moved, record)
				}
				return l.app.print(shardsView{n, moved, record}, t)
			})
		},
	}
	l.audit.flags(c.Flags())
	c.Flags().IntVar(&set, "set", 0, "change it to `N`, 1 to 4096")
	return c
}

// shardsView is the JSON form of a journal's number of shards.
type shardsView struct {
	Shards int    `json:"shards"`
	Moved  int    `json:"moved"`
	Record string `json:"record,omitempty"` // of --set
}

// store uses the store of the existing journal.
func (l *journalCommands) store(ctx context.Context, use func(context.Context, driver.Journal) error) error {
	target, err := l.app.target()
	if err != nil {
		return err
	}
	return connect(ctx, l.app, func(ctx context.Context, t backend.Target) (driver.Journal, func(), error) {
		store, disconnect, err := t.JournalThere(ctx, l.name)
		return store, disconnect, l.refused(t, err)
	}, func(_ context.Context, store driver.Journal) error { return l.refused(target, use(ctx, store)) })
}
