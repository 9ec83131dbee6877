package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An operation is an operator's change of a transaction, or of a step or branch.
type operation struct {
	use, short, done, long string
	example                string // the arguments, and the reason in quotes
	do                     func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error
}

// operationCommand returns the command of an operation. Its arguments are those of use; brackets
// mark an optional one.
func (l *journalCommands) operationCommand(p protocol, o operation) *cobra.Command {
	most := strings.Count(o.use, " ")
	least := most - strings.Count(o.use, "[")
	c := &cobra.Command{
		Use: o.use + " --reason TEXT", Short: o.short, Long: o.long,
		Example: fmt.Sprintf("  interlock %s %s", p.group, o.example),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < least || len(args) > most || slices.Contains(args, "") {
				return usage("usage: interlock %s %s --reason TEXT; %d arguments were given, of which none may be empty", p.group, o.use, len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return l.runOperation(c.Context(), o.done, args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
				return o.do(ctx, j, args[0], strings.Join(args[1:], ""), by)
			})
		},
	}
	l.audit.flags(c.Flags())
	return c
}

// runOperation changes a transaction, with a reason, and reports it.
func (l *journalCommands) runOperation(ctx context.Context, done, id string, do func(context.Context, *journal.Journal, coordinator.By) error) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		return l.explainForeign(ctx, j, id, explainRefusal(do(ctx, j, coordinator.By{Actor: l.by, Reason: l.reason})))
	}); err != nil {
		return err
	}
	return l.done(done, id)
}

// explainRefusal adds the accepted states to a refusal.
func explainRefusal(err error) error {
	var state *coordinator.StateError
	if !errors.As(err, &state) {
		return err
	}
	can := map[string]string{
		"retry":   "it retries an undo that was given up, a step that waits, or a halted two-phase commit",
		"edit":    "it replaces the input of an undo, or of a step after the pivot",
		"skip":    "it skips an undo, a step after the pivot, or a branch, that is not done",
		"resolve": "it resolves a DEAD_LETTER, and a HEURISTIC transaction without open branches",
		"settle":  "it settles a step that was called, once those before it are done; after the pivot only as done",
		"abort":   "it aborts a RUNNING saga that has not called its pivot",
	}[state.Op]
	if can == "" {
		return fmt.Errorf("cannot %w", err)
	}
	if errors.Is(state.Err, coordinator.ErrOrder) {
		name := fmt.Sprintf("transaction %q", state.ID)
		if state.Step != "" {
			name = fmt.Sprintf("step %q of %s", state.Step, name)
		}
		return fail(exitFailed, "cannot %s %s, which is %s: %s; see its steps with show", state.Op, name, state.State, can)
	}
	return fail(codeOf(err), "cannot %w (%s; see its state with show)", err, can)
}

// done prints the change of a transaction.
func (l *journalCommands) done(what, id string) error {
	return l.app.print(struct {
		Done string `json:"done"`
		ID   string `json:"id"`
	}{what, id}, line("%s: %s\n", what, id))
}

// onTransaction returns an operation on a whole transaction.
func onTransaction[O any](operator func(*journal.Journal) O, do func(O, context.Context, string, coordinator.By) error) func(context.Context, *journal.Journal, string, string, coordinator.By) error {
	return func(ctx context.Context, j *journal.Journal, id, _ string, by coordinator.By) error {
		return do(operator(j), ctx, id, by)
	}
}

// onStep returns an operation on a step or branch.
func onStep[O any](operator func(*journal.Journal) O, do func(O, context.Context, string, string, coordinator.By) error) func(context.Context, *journal.Journal, string, string, coordinator.By) error {
	return func(ctx context.Context, j *journal.Journal, id, step string, by coordinator.By) error {
		return do(operator(j), ctx, id, step, by)
	}
}

// reconcileCommand returns the command by which the services of a journal ask
// participants whether transactions match the journal.
func (l *journalCommands) reconcileCommand(protocol, what, how string) *cobra.Command {
	var since, wait time.Duration
	c := &cobra.Command{
		Use: "reconcile", Short: "Compare the journal with its participants", Args: noArgs,
		Example: `  interlock ` + protocol + ` reconcile --since 24h
  interlock ` + protocol + ` reconcile --since 24h --wait 1h -o json`,
		Long: `Asks the services of the journal to reconcile ` + what + ` that ended within --since:
` + how + `
One of the services does it and reports to its log; this command waits for the result.
Services also do it in the background. Exit code 1 means that something is wrong.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if since <= 0 || wait <= 0 {
				return usage("--since and --wait must be above zero, not %v and %v", since, wait)
			}
			var found *coordinator.Reconciliation
			if err := l.do(c.Context(), false, func(ctx context.Context, j *journal.Journal) (err error) {
				found, err = l.reconcile(ctx, j, protocol, since, wait)
				return err
			}); err != nil {
				return err
			}
			found.Findings = append([]coordinator.Finding{}, found.Findings...) // in JSON not null
			if err := l.app.print(found, describeFindings(found)); err != nil {
				return err
			}
			if found.Wrong > 0 {
				return fail(exitFailed, "%d effects differ from the journal", found.Wrong)
			}
			return nil
		},
	}
	c.Flags().DurationVar(&since, "since", 24*time.Hour, "how long ago they ended at most")
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for the result")
	return c
}

// reconcile sends the request, and waits for its result.
func (l *journalCommands) reconcile(ctx context.Context, j *journal.Journal, protocol string, since, wait time.Duration) (*coordinator.Reconciliation, error) {
	now := time.Now()
	id, err := coordinator.RequestReconciliation(ctx, j, protocol, now.Add(-since), now)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		if found, err := coordinator.ReconciliationOf(ctx, j, id); err != nil && ctx.Err() == nil || found != nil {
			return found, err
		}
		switch err := pause(ctx, 200*time.Millisecond); {
		case errors.Is(err, context.DeadlineExceeded):
			return nil, fail(exitFailed, "no service has finished within %v, and the request stays: does a service run on this journal?", wait)
		case err != nil:
			return nil, err
		}
	}
}

func describeFindings(r *coordinator.Reconciliation) text {
	rows := [][]string{{"ID", "TYPE", "STEP", "WANT", "GOT", "ERROR"}}
	for _, f := range r.Findings {
		got := string(f.Got)
		if f.Repaired {
			got += " (repaired)"
		}
		rows = append(rows, []string{f.ID, f.Type, f.Step, string(f.Want), got, f.Error})
	}
	t := line("wrong: %d, repaired: %d, unknown: %d\n", r.Wrong, r.Repaired, r.Unknown)
	if len(r.Findings) > 0 {
		t += table(rows)
	}
	return t
}
