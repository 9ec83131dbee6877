package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// branchState describes a branch in a line.
func branchState(b twopc.Branch) string {
	switch {
	case b.Heuristic != "":
		return "against the decision: " + b.Heuristic
	case b.Done:
		return "committed"
	case b.Failing != "":
		return fmt.Sprintf("not committed after %d attempts: %s", b.Attempts, b.Failing)
	}
	return "not known to be committed"
}

func (x *xa) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show the decision and which participants applied it", Args: oneArg("transaction"),
		Example: `  interlock xa show transfer/42
  interlock xa show transfer/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var v transactionView
			if err := x.manage(c.Context(), func(ctx context.Context, j *journal.Journal, m *twopc.Engine) error {
				o, err := look(ctx, m, args[0])
				if err != nil {
					return err
				}
				_, entries, err := j.Open(ctx, o.Key)
				v = viewXA(o)
				v.History = historyOf(entries)
				return err
			}); err != nil {
				return err
			}
			list := [][2]string{{"known there as", v.Transaction}, {"decided", localTime(v.Decided)}, {"by", cmp.Or(v.Resolved.Actor, v.DecidedBy)}, {"note", v.Resolved.Reason}}
			for _, branch := range v.Branches {
				list = append(list, [2]string{branch.Participant, branchState(branch)})
			}
			return x.app.print(v, v.shown(list...))
		},
	}
}

// look finds a transaction by its id, or by the name that participants show.
func look(ctx context.Context, m *twopc.Engine, name string) (twopc.Outcome, error) {
	o, err := m.Look(ctx, name)
	if parts := runName.FindStringSubmatch(name); parts != nil && errors.Is(err, twopc.ErrNone) {
		o, err = m.Look(ctx, parts[1])
	}
	if errors.Is(err, twopc.ErrNone) {
		err = fmt.Errorf("%w, so no commit was decided; interlock xa ls shows whether it is in doubt", err)
	}
	return o, err
}

// runName is an id and the suffix of one run, as participants know a transaction.
var runName = regexp.MustCompile(`^(.+)\.[0-9a-v]{12}$`)
