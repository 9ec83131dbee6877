package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

func (a *app) tccCommand() *cobra.Command {
	l := &ledger{app: a}
	c := &cobra.Command{
		Use: "tcc", Short: "See TCC transactions that have not ended, and help those that are stuck",
		Example: `  interlock tcc ls --dead
  interlock tcc retry trip/1 --reason "the airline is back"`,
		Args: isGroup,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	l.add(c)
	c.AddCommand(l.bookingsCommand(), l.bookingShowCommand(),
		l.bookingCommand("retry ID [BRANCH]", "Call what was given up, or waits, again: a branch or all", "retried", 2, (*tcc.Operator).Retry),
		l.bookingCommand("skip ID BRANCH", "Go on without a branch: you have seen to it by hand", "skipped", 2, (*tcc.Operator).Skip),
		l.bookingCommand("resolve ID", "Close a dead letter as it is", "resolved", 1,
			func(o *tcc.Operator, ctx context.Context, id, _ string, by tcc.By) error {
				return o.Resolve(ctx, id, by)
			}),
		l.reconcileCommand("tcc", "the transactions", "the last call of each branch is made again under its key, which changes nothing where it was made."))
	l.completeIDs(c, "tcc")
	return c
}

// bookingView is the JSON form of a TCC transaction; docs/reference/cli.md promises it.
type bookingView struct {
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Decision string           `json:"decision"`
	State    string           `json:"state"`
	Reason   string           `json:"reason,omitempty"`
	Dead     []deadBranchView `json:"dead,omitempty"`
	Failing  []deadBranchView `json:"failing,omitempty"`
	Halted   string           `json:"halted,omitempty"`
	Skipped  []string         `json:"skipped,omitempty"`
}

type deadBranchView struct {
	Branch   string `json:"branch"`
	Error    string `json:"error"`
	Attempts int    `json:"attempts,omitempty"`
}

func viewBooking(o tcc.Outcome) bookingView {
	v := bookingView{ID: o.ID, Type: o.Type, Decision: string(o.Decision), State: string(o.State), Reason: o.Reason, Halted: o.Halted, Skipped: o.Skipped}
	for _, d := range o.Dead {
		v.Dead = append(v.Dead, deadBranchView{d.Branch, d.Err, d.Attempts})
	}
	for _, d := range o.Failing {
		v.Failing = append(v.Failing, deadBranchView{d.Branch, d.Err, d.Attempts})
	}
	return v
}

// refusals says in a line who refuses what was decided.
func (v bookingView) refusals() string {
	var all []string
	for _, d := range v.Dead {
		all = append(all, d.Branch+": "+d.Error)
	}
	return strings.Join(all, "; ")
}

func (l *ledger) bookingsCommand() *cobra.Command {
	var dead bool
	c := &cobra.Command{
		Use: "ls", Short: "List transactions that are decided and have not ended", Args: noArgs,
		Example: `  interlock tcc ls
  interlock tcc ls --dead -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			views := []bookingView{}
			rows := [][]string{{"ID", "TYPE", "DECISION", "STATE", "REFUSED BY"}}
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) error {
				for o, err := range tcc.NewOperator(j).Unfinished(ctx) {
					if err != nil {
						return err
					}
					if dead && o.State != tcc.DeadLetter {
						continue
					}
					v := viewBooking(o)
					views = append(views, v)
					rows = append(rows, []string{v.ID, v.Type, v.Decision, v.State, v.refusals()})
				}
				return nil
			}); err != nil {
				return err
			}
			return l.app.printRows(struct {
				Transactions []bookingView `json:"transactions"`
			}{views}, rows, "there are no such transactions")
		},
	}
	c.Flags().BoolVar(&dead, "dead", false, "only dead letters")
	return c
}

// bookingCommand is one that does something to a transaction, or a branch of it.
func (l *ledger) bookingCommand(use, short, done string, most int,
	do func(o *tcc.Operator, ctx context.Context, id, branch string, by tcc.By) error) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	least := strings.Count(use, " ") - strings.Count(use, "[")
	example := strings.NewReplacer("ID", "trip/1", "[BRANCH]", "flight", "BRANCH", "flight").Replace(use)
	c := &cobra.Command{
		Use: use + " --reason TEXT", Short: short,
		Example: "  interlock tcc " + example + ` --reason "why it is right"`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < least || len(args) > most {
				return usage("it is: interlock tcc %s; %d arguments were given", use, len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkReason(l.reason); err != nil {
				return err
			}
			id, branch := args[0], strings.Join(args[1:], "")
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) error {
				return refusedBooking(verb, do(tcc.NewOperator(j), ctx, id, branch, tcc.By{Actor: l.by, Reason: l.reason}))
			}); err != nil {
				return err
			}
			return l.done(done, id)
		},
	}
	l.answerable(c)
	return c
}

// refusedBooking gives what is not possible the exit code of a failure.
func refusedBooking(verb string, err error) error {
	if err != nil && interlock.Kind(err) == interlock.Definite && !errors.Is(err, tcc.ErrNone) {
		return fail(exitFailed, "%w", fmt.Errorf("%s: %w", verb, err))
	}
	return err
}
