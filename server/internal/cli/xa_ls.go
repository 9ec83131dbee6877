package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// doubtView is the JSON form of a branch in doubt.
type doubtView struct {
	Participant string  `json:"participant"`
	Transaction string  `json:"transaction"`
	Age         float64 `json:"age_seconds"`
	Verdict     string  `json:"verdict"`
	Blocked     float64 `json:"blocked_seconds,omitempty"`
	Error       string  `json:"error,omitempty"`
}

func (x *xa) lsCommand() *cobra.Command {
	var f listing
	c := &cobra.Command{
		Use: "ls", Short: "List branches in doubt and transactions", Args: noArgs,
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa ls -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(x.participants) == 0 {
				x.app.say("no --participant NAME=URL was given: only the journal is read")
			}
			if err := f.check(c, xaProtocol); err != nil {
				return err
			}
			v := xaList{InDoubt: []doubtView{}}
			if err := x.manage(c.Context(), func(ctx context.Context, j *journal.Journal, m *twopc.Engine) (err error) {
				v.find(ctx, m)
				v.Transactions, err = x.journalCommands.find(ctx, j, xaProtocol, f)
				return err
			}); err != nil {
				return err
			}
			if v.unasked == nil {
				return x.app.print(v, v.text())
			}
			return errors.Join(x.app.print(v, v.text()), fail(exitUnreachable, "some participants could not be reached: %w", v.unasked))
		},
	}
	f.flags(c, xaProtocol)
	return c
}

// xaList is the JSON form of all that is to be seen; docs/reference/cli.md promises it.
type xaList struct {
	InDoubt      []doubtView       `json:"in_doubt"`
	Transactions []transactionView `json:"transactions"`
	Error        string            `json:"error,omitempty"` // of participants that could not be asked

	unasked error
}

// find lists branches in doubt. What some participants have is there if others cannot be asked.
func (v *xaList) find(ctx context.Context, m *twopc.Engine) {
	var found []twopc.InDoubt
	found, v.unasked = m.InDoubt(ctx)
	if v.unasked != nil {
		v.Error = v.unasked.Error()
	}
	for _, d := range found {
		view := doubtView{d.XID.Branch, d.XID.Transaction, d.Age.Seconds(), d.Verdict, d.BlockedFor.Seconds(), ""}
		if d.Err != nil {
			view.Error = d.Err.Error()
		}
		v.InDoubt = append(v.InDoubt, view)
	}
}

func (v *xaList) text() text {
	rows := [][]string{{"PARTICIPANT", "IN DOUBT", "FOR", "VERDICT"}}
	for _, d := range v.InDoubt {
		rows = append(rows, []string{d.Participant, d.Transaction, seconds(d.Age), strings.TrimSpace(d.Verdict + " " + d.Error)})
	}
	text := table(rows)
	switch {
	case len(v.InDoubt) > 0:
	case v.unasked != nil:
		text = "" // there may be some
	default:
		text = "no branch is in doubt\n"
	}
	if len(v.Transactions) == 0 {
		return text
	}
	return text + "\n" + table(rowsOf(v.Transactions))
}

// seconds is a time as text, in whole seconds.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
