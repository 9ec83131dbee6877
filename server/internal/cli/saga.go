package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// journalCommands is a journal of transactions that a command is about.
type journalCommands struct {
	app *app
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
	j, err := journal.New(store, &journal.Options{Shards: l.shards})
	if err != nil {
		return usage("%w", err)
	}
	defer j.Close()
	err = use(ctx, j)
	if err != nil && bounded && errors.Is(ctx.Err(), context.DeadlineExceeded) { // it was reached
		return fail(exitUnreachable, "%v did not answer completely within %v; raise --timeout", target, l.app.timeout)
	}
	return l.app.backendError(target, l.refused(target, err))
}

// refused gives refusals of a journal exit code 1: the backend itself works. If nothing is found,
// it may be the wrong journal.
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
	l := &journalCommands{app: a}
	c := group(&cobra.Command{
		Use: "saga", Short: "Show, start and repair sagas",
		Example: `  interlock saga ls --state DEAD_LETTER
  interlock saga show order/42
  interlock saga retry order/42 --reason "the bank is back"`,
	}, append(l.sagaOperations(), l.lsCommand(sagaProtocol), l.sagaShowCommand(), l.sagaWatchCommand(), l.sagaStartCommand(), l.sagaExportCommand(), l.sagaVerifyCommand(),
		l.sagaShardsCommand(), l.sagaForgetCommand(), l.reconcileCommand("saga", "the sagas", "the Check of each step tells whether its effect is there, and what may be repaired is."))...)
	l.add(c)
	l.completeIDs(c, "saga")
	return c
}

// deadSagasCommand is in the group dlq, which lists all dead letters.
func (a *app) deadSagasCommand() *cobra.Command {
	l := &journalCommands{app: a}
	c := &cobra.Command{
		Use: "sagas", Short: "List sagas whose undo was given up", Args: noArgs,
		Example: `  interlock dlq sagas
  interlock saga retry order/42 --reason "the bank is back"    or skip, or resolve`,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.list(c.Context(), sagaProtocol, listing{Filter: coordinator.Filter{States: []coordinator.State{saga.DeadLetter}}, limit: 1000})
		},
	}
	l.add(c)
	return c
}
