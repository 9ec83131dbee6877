package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

// completeFirst offers names for the first argument, found within
// [completionPatience].
func (a *app) completeFirst(find func(ctx context.Context, typed string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeWithin(c, func(ctx context.Context) []string { return find(ctx, typed) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeIDs has the commands of a group that begin with an ID complete it with
// those of a protocol's transactions; all protocols' if it is empty.
func (l *journalCommands) completeIDs(group *cobra.Command, protocol string) {
	for _, c := range group.Commands() {
		if _, args, _ := strings.Cut(c.Use, " "); c.Name() != "start" && c.ValidArgsFunction == nil &&
			(strings.HasPrefix(args, "ID") || strings.HasPrefix(args, "[ID")) {
			c.ValidArgsFunction = l.app.completeFirst(func(ctx context.Context, typed string) []string { return l.ids(ctx, protocol, typed) })
		}
	}
}

// ids are those of transactions that begin with what was typed.
func (l *journalCommands) ids(ctx context.Context, protocol, typed string) (ids []string) {
	_ = l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		heads, err := j.Heads(ctx, typed, completionNames)
		for _, h := range heads {
			if strings.HasPrefix(h.Transaction, typed) && strings.HasPrefix(h.Type, protocol+":") {
				ids = append(ids, h.Transaction)
			}
		}
		return err
	})
	return ids
}

// completeResource offers the locks that are held or awaited and, where the guard can list them
// at little cost, the resources that have a mark.
func (a *app) completeResource(table *string) cobra.CompletionFunc {
	return a.completeFirst(func(ctx context.Context, typed string) (names []string) {
		names = a.lockNames(ctx, typed)
		_ = a.guard(ctx, *table, func(ctx context.Context, g backend.Guard) error {
			lister, ok := g.(backend.Lister)
			if !ok {
				return nil
			}
			all, err := lister.Resources(ctx, typed, completionNames)
			for _, name := range all {
				if strings.HasPrefix(name, typed) {
					names = append(names, name)
				}
			}
			return err
		})
		slices.Sort(names)
		return slices.Compact(names)
	})
}

// completeLetters offers the ids of dead letters.
func (m *outboxCommands) completeLetters() cobra.CompletionFunc {
	return m.app.completeFirst(func(ctx context.Context, _ string) (ids []string) {
		_ = m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) error {
			letters, err := t.DeadLetters(ctx, db, outbox.DeadLetterQuery{Limit: completionNames})
			for _, l := range letters {
				ids = append(ids, l.ID)
			}
			return err
		})
		return ids
	})
}

// completeWaiting offers the ids of messages that keys wait for.
func (m *outboxCommands) completeWaiting() cobra.CompletionFunc {
	return m.app.completeFirst(func(ctx context.Context, _ string) (ids []string) {
		_ = m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) error {
			s, err := t.Status(ctx, db)
			for _, w := range s.Waiting {
				ids = append(ids, w.ID)
			}
			return err
		})
		return ids
	})
}
