package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
	return &cobra.Command{
		Use: "ls", Short: "List branches in doubt, and transactions that have not ended", Args: noArgs,
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa ls -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(x.participants) == 0 {
				x.app.say("no --participant NAME=URL was given: only the journal is looked at")
			}
			v := xaList{InDoubt: []doubtView{}, Unfinished: []xaView{}}
			if err := x.manage(c.Context(), v.find); err != nil {
				return err
			}
			if v.unasked == nil {
				return x.app.print(v, v.text())
			}
			return errors.Join(x.app.print(v, v.text()), fail(exitUnreachable, "not every participant could be asked: %w", v.unasked))
		},
	}
}

// xaList is the JSON form of all that is to be seen; docs/reference/cli.md promises it.
type xaList struct {
	InDoubt    []doubtView `json:"in_doubt"`
	Unfinished []xaView    `json:"unfinished"`
	Error      string      `json:"error,omitempty"` // of participants that could not be asked

	unasked error
}

// find fills the list. What some participants have is there if others cannot be asked.
func (v *xaList) find(ctx context.Context, m *twopc.Engine) error {
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
	for o, err := range m.Unfinished(ctx) {
		if err != nil {
			return err
		}
		v.Unfinished = append(v.Unfinished, viewXA(o))
	}
	return nil
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
	if len(v.Unfinished) == 0 {
		return text
	}
	rows = [][]string{{"ID", "STATE", "WAITS FOR", "WHY"}}
	for _, o := range v.Unfinished {
		var waits []string
		for _, b := range o.Branches {
			if !b.Done {
				waits = append(waits, b.Participant)
			}
		}
		rows = append(rows, []string{o.ID, o.State, strings.Join(waits, ", "), o.why()})
	}
	return text + "\n" + table(rows)
}

// seconds is a time in whole seconds, for people.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
