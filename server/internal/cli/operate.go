package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An operation changes a transaction by hand, or a step or branch of it.
type operation struct {
	use, short, done, long string
	example                string // the arguments, and the reason in quotes
	do                     func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error
}

// operate is the command of an operation. Its arguments are those of use; brackets mark one
// that may be missing.
func (l *ledger) operate(p protocol, o operation) *cobra.Command {
	most := strings.Count(o.use, " ")
	least := most - strings.Count(o.use, "[")
	c := &cobra.Command{
		Use: o.use + " --reason TEXT", Short: o.short, Long: o.long,
		Example: fmt.Sprintf("  interlock %s %s", p.group, o.example),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < least || len(args) > most {
				return usage("it is: interlock %s %s; %d arguments were given", p.group, o.use, len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return l.operated(c.Context(), o.done, args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
				return o.do(ctx, j, args[0], strings.Join(args[1:], ""), by)
			})
		},
	}
	l.answerable(c)
	return c
}

// operated changes a transaction, with a reason, and says so.
func (l *ledger) operated(ctx context.Context, done, id string, do func(context.Context, *journal.Journal, coordinator.By) error) error {
	if err := checkReason(l.reason); err != nil {
		return err
	}
	if err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		return possible(do(ctx, j, coordinator.By{Actor: l.by, Reason: l.reason}))
	}); err != nil {
		return err
	}
	return l.done(done, id)
}

// possible adds to a refusal what would not be refused.
func possible(err error) error {
	var state *coordinator.StateError
	if !errors.As(err, &state) {
		return err
	}
	can := map[string]string{
		"retry":   "what was given up, or is being tried, is tried again",
		"edit":    "the input is that of an undo, or of a step behind the pivot",
		"skip":    "an undo, or a step behind the pivot, is skipped while it is to be done; and so is a branch",
		"resolve": "a DEAD_LETTER is resolved, and a HEURISTIC transaction without open branches",
		"settle":  "a step is settled that was called, up to the pivot, once those before it are done; behind the pivot it can only be done",
		"abort":   "a RUNNING saga is aborted that has not called its pivot",
	}[state.Op]
	if can == "" {
		return err
	}
	return fail(codeOf(err), "%w (%s; show shows its state)", err, can)
}

// done tells what was done with a transaction.
func (l *ledger) done(what, id string) error {
	return l.app.print(struct {
		Done string `json:"done"`
		ID   string `json:"id"`
	}{what, id}, line("%s: %s\n", what, id))
}

// whole is an operation on a whole transaction.
func whole[O any](operator func(*journal.Journal) O, do func(O, context.Context, string, coordinator.By) error) func(context.Context, *journal.Journal, string, string, coordinator.By) error {
	return func(ctx context.Context, j *journal.Journal, id, _ string, by coordinator.By) error {
		return do(operator(j), ctx, id, by)
	}
}

// stepwise is an operation on a step or branch.
func stepwise[O any](operator func(*journal.Journal) O, do func(O, context.Context, string, string, coordinator.By) error) func(context.Context, *journal.Journal, string, string, coordinator.By) error {
	return func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error {
		return do(operator(j), ctx, id, step, by)
	}
}
