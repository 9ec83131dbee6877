package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

func (m *outboxCommands) slicesCommand() *cobra.Command {
	var set int
	c := &cobra.Command{
		Use: "slices", Short: "Show or change the number of slices", Args: noArgs,
		Example: `  interlock outbox slices --backend postgres://localhost/shop
  interlock outbox slices --set 16 --reason "more relays" --backend postgres://localhost/shop`,
		Long: `Shows the number of slices over which keys are spread. At most that many relays share
the work.

--set changes it while services run. It waits for transactions that have added
messages, then moves undelivered messages; relays wait in the meantime. Relays of all
slices (RunAll) resume by themselves; those of a group of claim/partition need its
Resize to the new number. Services that name the old number are refused. If the command fails or
is interrupted, relays may wait until it is repeated. On PostgreSQL it needs the rights
of the tables' owner.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("set") {
				return m.showSlices(c.Context(), 0, func(l outbox.Layout) text { return line("%d slices\n", l.Slices) })
			}
			if set < 1 || set > outbox.MaxSlices {
				return usage("--set must be 1 to %d, not %d", outbox.MaxSlices, set)
			}
			if err := checkReason(m.reason); err != nil {
				return err
			}
			moved, err := m.setSlices(c.Context(), set)
			if err != nil {
				return err
			}
			return m.showSlices(c.Context(), moved, func(l outbox.Layout) text { return line("%d slices, %d rows moved\n", l.Slices, moved) })
		},
	}
	c.Flags().IntVar(&set, "set", 0, "change it to `N`, 1 to 4096")
	m.audit.flags(c.Flags())
	return c
}

// slicesView is the JSON form of an outbox's number of slices; docs/reference/cli.md promises it.
type slicesView struct {
	Slices   int   `json:"slices"`
	Changing bool  `json:"changing"`
	Moved    int64 `json:"moved"`
}

func (m *outboxCommands) showSlices(ctx context.Context, moved int64, show func(outbox.Layout) text) error {
	var l outbox.Layout
	if err := m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) (err error) {
		l, err = t.Layout(ctx, db)
		return err
	}); err != nil {
		return err
	}
	if l.Changing {
		m.app.say("a change to %d slices has begun and relays wait: if no other command runs it, repeat it with --set %d", l.Slices, l.Slices)
	}
	return m.app.print(slicesView{l.Slices, l.Changing, moved}, show(l))
}

// setSlices changes the number and says now and then how many rows it has moved. Only
// the connection is bound by --timeout.
func (m *outboxCommands) setSlices(ctx context.Context, n int) (moved int64, err error) {
	said := time.Now()
	change := outbox.SliceChange{Slices: n, Reason: m.reason, By: m.by, Progress: func(moved int64) {
		if time.Since(said) > progress {
			said = time.Now()
			m.app.say("%d rows moved so far", moved)
		}
	}}
	err = m.app.onDatabase(ctx, func(_ context.Context, db *backend.Database) (err error) {
		moved, err = db.SetSlices(ctx, outbox.Table{Name: m.table}, change)
		return err
	})
	return moved, err
}
