package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// journalCommands selects the journal of a command.
type journalCommands struct {
	app      *app
	protocol string // of the group's transactions, in their types
	journalFlags
	audit
}

// do uses the existing journal, within --timeout if bounded.
func (l *journalCommands) do(ctx context.Context, bounded bool, use func(context.Context, *journal.Journal) error) error {
	return l.on(ctx, backend.Target.JournalThere, bounded, use)
}

// on uses the journal that open connects to.
func (l *journalCommands) on(ctx context.Context, open func(backend.Target, context.Context, string) (driver.Journal, func(), error),
	bounded bool, use func(context.Context, *journal.Journal) error) error {
	target, err := l.app.target()
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, l.app.timeout)
	defer cancel()
	if bounded {
		ctx = opening
	}
	store, disconnect, err := open(target, opening, l.name)
	if err != nil {
		return l.app.backendError(target, l.refused(target, err))
	}
	defer disconnect()
	j, err := l.open(opening, store)
	if err != nil {
		return l.app.backendError(target, l.refused(target, err))
	}
	defer j.Close()
	err = use(ctx, j)
	if err != nil && bounded && errors.Is(ctx.Err(), context.DeadlineExceeded) { // it was reached
		return fail(exitUnreachable, "%v did not answer completely within %v; raise --timeout%s", target, l.app.timeout, l.app.doubt(err))
	}
	return l.app.backendError(target, l.refused(target, err))
}

// open opens a store with its number of shards. It rejects another --shards.
func (l *journalCommands) open(ctx context.Context, store driver.Journal) (*journal.Journal, error) {
	stored, err := store.Shards(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	if l.shards != 0 && stored != 0 && l.shards != stored {
		return nil, &journal.ShardsError{Stored: stored, Opened: l.shards}
	}
	return journal.New(store, &journal.Options{Shards: cmp.Or(l.shards, max(stored, 0))}) // below 0 while it is changed
}

// refused gives refusals of a journal exit code 1: the backend works. If nothing is found, it may
// be the wrong journal.
func (l *journalCommands) refused(t backend.Target, err error) error {
	switch {
	case errors.Is(err, journal.ErrNoTables):
		name := l.name
		if name == "" {
			name = "interlock_journal"
		}
		return fail(exitConfig, "there is no journal %s on %v: --journal and --backend name another; services create it, as %s coordinate and saga start do",
			name, t, l.app.program)
	case errors.Is(err, coordinator.ErrNone):
		where := t.String()
		if l.name != "" {
			where += ", " + l.name
		}
		return fail(exitFailed, "%w (on %s: --backend and --journal name another)", err, where)
	case errors.As(err, new(*journal.ShardsError)):
		return fail(exitConfig, "%w", err)
	case errors.Is(err, coordinator.ErrState), errors.Is(err, coordinator.ErrMismatch), errors.Is(err, twopc.ErrDecided):
		return fail(exitFailed, "%w", err)
	}
	return err
}

func (a *app) sagaCommand() *cobra.Command {
	l := &journalCommands{app: a, protocol: "saga"}
	c := group(&cobra.Command{
		Use: "saga", Short: "Show, start and repair sagas",
		Example: `  interlock saga ls --state DEAD_LETTER
  interlock saga show order/42
  interlock saga retry order/42 --reason "the bank is back"`,
	}, append(l.sagaOperations(), l.lsCommand(sagaProtocol), l.sagaShowCommand(), l.sagaWatchCommand(), l.sagaStartCommand(), l.sagaExportCommand(), l.sagaVerifyCommand(),
		l.sagaShardsCommand(), l.sagaForgetCommand(), l.reconcileCommand("saga", "the sagas", "the Check of each step reports whether its effect exists, and steps that may be repaired are."))...)
	l.add(c)
	l.completeIDs(c)
	return c
}

// deadSagasCommand is in the group dlq, which lists all dead letters.
func (a *app) deadSagasCommand() *cobra.Command {
	l := &journalCommands{app: a}
	f := listing{Filter: coordinator.Filter{States: []coordinator.State{saga.DeadLetter}}}
	c := listed(&cobra.Command{
		Use: "sagas", Short: "List sagas whose undo was given up", Args: noArgs,
		Example: `  interlock dlq sagas
  interlock saga retry order/42 --reason "the bank is back"    or skip, or resolve`,
		RunE: func(c *cobra.Command, _ []string) error { return l.list(c.Context(), sagaProtocol, f) },
	}, &f.limit, 1000)
	f.addAfter(c)
	l.add(c)
	return c
}

// sagaForgetCommand returns the command that deletes ended transactions, for journals without
// room for the retention of their coordinators.
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
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			changes := c.Flags().Changed("set")
			if changes && (set < 1 || set > 4096) {
				return usage("--set must be 1 to 4096, not %d", set)
			}
			if changes {
				if err := l.check(); err != nil {
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

// store calls use with the store of the existing journal.
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
