package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// reconcileCommand has the services of a journal ask the participants whether
// transactions of a protocol are as the journal says.
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
			if err := l.app.print(found, describeFindings(found)); err != nil {
				return err
			}
			if found.Wrong > 0 {
				return fail(exitFailed, "%d effects are not what the journal says", found.Wrong)
			}
			return nil
		},
	}
	c.Flags().DurationVar(&since, "since", 24*time.Hour, "how long ago they ended at most")
	c.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait for the result")
	return c
}

// reconcile asks, and waits for the answer.
func (l *journalCommands) reconcile(ctx context.Context, j *journal.Journal, protocol string, since, wait time.Duration) (*coordinator.Reconciliation, error) {
	now := time.Now()
	id, err := coordinator.RequestReconciliation(ctx, j, protocol, now.Add(-since), now)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if found, err := coordinator.ReconciliationOf(ctx, j, id); err != nil && ctx.Err() == nil || found != nil {
			return found, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, fail(exitFailed, "no service has finished within %v, and the request stays: does a service run on this journal?", wait)
			}
			return nil, context.Cause(ctx)
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
