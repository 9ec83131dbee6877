package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// bookingShown is the JSON form of a TCC transaction with its records; docs/reference/cli.md
// promises it.
type bookingShown struct {
	bookingView
	History []bookingRecord `json:"history"`
}

// bookingRecord is one of the journal.
type bookingRecord struct {
	Position int64  `json:"position"`
	Written  string `json:"written"`
	Kind     string `json:"kind"`
	Branch   string `json:"branch,omitempty"` // of decide: the decision
	Actor    string `json:"actor,omitempty"`
	Why      string `json:"why,omitempty"`

	written time.Time
}

func (l *ledger) bookingShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show what was decided of a transaction, and what each branch has answered", Args: oneArg("transaction"),
		Example: `  interlock tcc show trip/1
  interlock tcc show trip/1 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var v bookingShown
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) (err error) {
				v, err = showBooking(ctx, j, args[0])
				return err
			}); err != nil {
				return err
			}
			return l.app.print(v, v.text())
		},
	}
}

func showBooking(ctx context.Context, j *journal.Journal, id string) (v bookingShown, err error) {
	log, entries, err := j.Open(ctx, id)
	if err != nil {
		return v, err
	}
	if log != nil {
		if _, err := isOf(log.Head(), "tcc"); err != nil {
			return v, err
		}
	}
	c, err := coordinator.New(j, nil) // it serves nothing
	if err != nil {
		return v, err
	}
	m, err := tcc.New(c, nil)
	if err != nil {
		return v, err
	}
	o, err := m.Look(ctx, id)
	if err != nil {
		return v, err
	}
	v = bookingShown{bookingView: viewBooking(o), History: []bookingRecord{}}
	for _, e := range entries {
		var said struct{ Actor, Reason, Error string }
		_ = json.Unmarshal(e.Data, &said) // not all records say something
		v.History = append(v.History, bookingRecord{e.Position, stamp(e.Written), e.Kind, e.Step, said.Actor, said.Reason + said.Error, e.Written})
	}
	return v, nil
}

func (v bookingShown) text() text {
	t := fields([2]string{"id", v.ID}, [2]string{"type", v.Type}, [2]string{"state", v.State}, [2]string{"decision", v.Decision},
		[2]string{"why", v.Reason}, [2]string{"halted", v.Halted}, [2]string{"skipped", strings.Join(v.Skipped, ", ")})
	if open := v.branches(); len(open) > 1 {
		t += "\n" + table(open)
	}
	rows := [][]string{{"#", "WHEN", "RECORD", "BRANCH", "WHO AND WHY"}}
	for _, r := range v.History {
		rows = append(rows, []string{fmt.Sprint(r.Position), local(r.written), r.Kind, r.Branch, strings.TrimSpace(r.Actor + " " + r.Why)})
	}
	return t + "\n" + table(rows)
}

// branches are the rows of those that are dead, or that fail and are called again.
func (v bookingShown) branches() [][]string {
	rows := [][]string{{"BRANCH", "STATUS", "ATTEMPTS", "WHAT"}}
	for _, d := range v.Dead {
		rows = append(rows, []string{d.Branch, "dead", fmt.Sprint(d.Attempts), d.Error})
	}
	for _, d := range v.Failing {
		rows = append(rows, []string{d.Branch, "failing", fmt.Sprint(d.Attempts), d.Error})
	}
	return rows
}
