package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

func (l *ledger) sagaShardsCommand() *cobra.Command {
	var set int
	c := &cobra.Command{
		Use: "shards", Short: "Show or change the number of shards",
		Example: `  interlock saga shards
  interlock saga shards --set 128`,
		Long: `Shows over how many shards the journal's transactions are spread. All who use it must
have that number.

--set changes it. Stop all services that use the journal before, and start them with the
new --shards afterwards: owners of shards are fenced off, but a service that still begins
transactions under the old number puts them where nobody drives them, until --set is
repeated. If the command fails, repeat it: until it succeeds the journal is refused.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.store(c.Context(), func(ctx context.Context, store driver.Journal) error {
				moved := 0
				if c.Flags().Changed("set") {
					var err error
					if moved, err = journal.SetShards(ctx, store, set); err != nil {
						return err
					}
				}
				n, err := store.Shards(ctx, 0, 0)
				if err != nil {
					return err
				}
				t := line("%d shards\n", n)
				if c.Flags().Changed("set") {
					t = line("%d shards, %d transactions moved\n", n, moved)
				}
				return l.app.print(shardsView{n, moved}, t)
			})
		},
	}
	c.Flags().IntVar(&set, "set", 0, "change it to `N`, 1 to 4096")
	return c
}

// shardsView is the JSON form of a journal's number of shards.
type shardsView struct {
	Shards int `json:"shards"`
	Moved  int `json:"moved"`
}

// store runs something on the store of the journal that is there.
func (l *ledger) store(ctx context.Context, use func(context.Context, driver.Journal) error) error {
	target, err := l.app.target()
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, l.app.timeout)
	defer cancel()
	store, disconnect, err := backend.Target.JournalThere(target, opening, l.name)
	if err != nil {
		return l.app.unreached(target, l.refused(target, err))
	}
	defer disconnect()
	return l.app.unreached(target, l.refused(target, use(ctx, store)))
}
