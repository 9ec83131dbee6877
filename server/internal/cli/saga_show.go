package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// momentView is the JSON form of a saga right after one of its records.
type momentView struct {
	Position int64      `json:"position"`
	Written  string     `json:"written"`
	Epoch    string     `json:"epoch,omitempty"`
	Kind     string     `json:"kind"`
	Step     string     `json:"step,omitempty"`
	Actor    string     `json:"actor,omitempty"`
	Why      string     `json:"why,omitempty"`
	State    string     `json:"state"`
	Steps    []stepView `json:"steps,omitempty"`
}

type stepView struct {
	Step     string          `json:"step"`
	Status   string          `json:"status"`
	Attempts int             `json:"attempts,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"`
	Error    string          `json:"error,omitempty"`
}

func viewMoment(m saga.Moment) momentView {
	v := momentView{Position: m.Position, Written: stamp(m.Written), Kind: m.Kind, Step: m.Step, Actor: m.By.Actor, Why: m.By.Reason, State: string(m.State)}
	if m.Epoch != 0 {
		v.Epoch = fmt.Sprint(int64(m.Epoch))
	}
	if v.Why == "" && m.Kind == "decide" {
		v.Why = m.Reason
	}
	for _, p := range m.Steps {
		v.Steps = append(v.Steps, stepView{p.Step, p.Status, p.Attempts, p.Output, p.Err})
	}
	return v
}

// history is a saga's moments.
func history(ctx context.Context, j *journal.Journal, id string) ([]saga.Moment, error) {
	log, entries, err := j.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	if log == nil || !strings.HasPrefix(log.Head().Type, "saga:") {
		return nil, &interlock.Error{Op: "show saga", Name: id, Kind: interlock.Definite, Err: saga.ErrNone}
	}
	return saga.Replay(entries)
}

func (l *ledger) sagaShowCommand() *cobra.Command {
	var at int64
	c := &cobra.Command{
		Use: "show ID", Short: "Show a saga's steps, and what happened to it record by record", Args: oneArg("saga"),
		Example: `  interlock saga show order/42
  interlock saga show order/42 --at 3          as it stood after its third record
  interlock saga show order/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var moments []saga.Moment
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) (err error) {
				moments, err = history(ctx, j, args[0])
				return err
			}); err != nil {
				return err
			}
			if at < 0 || at > int64(len(moments)) {
				return usage("--at %d: the saga has %d records", at, len(moments))
			}
			if at > 0 {
				moments = moments[:at]
			}
			return l.printSaga(args[0], moments)
		},
	}
	c.Flags().Int64Var(&at, "at", 0, "as it stood after this many `records`")
	return c
}

func (l *ledger) printSaga(id string, moments []saga.Moment) error {
	last := moments[len(moments)-1]
	v := struct {
		ID      string       `json:"id"`
		State   string       `json:"state"`
		Reason  string       `json:"reason,omitempty"`
		Steps   []stepView   `json:"steps"`
		History []momentView `json:"history"`
	}{id, string(last.State), last.Reason, append([]stepView{}, viewMoment(last).Steps...), nil}
	rows := [][]string{{"STEP", "STATUS", "ATTEMPTS", "WHAT"}}
	for _, p := range last.Steps {
		what := p.Err
		if what == "" {
			what = string(p.Output)
		}
		rows = append(rows, []string{plain(p.Step), p.Status, fmt.Sprint(p.Attempts), plain(what)})
	}
	records := [][]string{{"#", "WHEN", "RECORD", "STEP", "STATE", "WHO AND WHY"}}
	for _, m := range moments {
		view := viewMoment(m)
		v.History = append(v.History, view)
		records = append(records, []string{fmt.Sprint(m.Position), m.Written.Local().Format(time.DateTime), m.Kind, plain(m.Step), string(m.State),
			plain(strings.TrimSpace(view.Actor + " " + view.Why))})
	}
	text := fmt.Sprintf("%s  %s  %s\n\n%s\n%s", plain(id), v.State, plain(v.Reason), table(rows), table(records))
	return l.app.print(v, text)
}

func (l *ledger) sagaWatchCommand() *cobra.Command {
	var poll time.Duration
	c := &cobra.Command{
		Use: "watch ID", Short: "Print what happens to a saga until it has ended", Args: oneArg("saga"),
		Example: `  interlock saga watch order/42
  interlock saga watch order/42 -o json        one line for each record`,
		Long: `Prints each record of the saga, those that are there first. It ends when the saga
does, with exit code 0 if it has succeeded and 1 if not; a dead letter ends it too.`,
		RunE: func(c *cobra.Command, args []string) error {
			if poll <= 0 {
				return usage("--every must be longer than nothing, not %v", poll)
			}
			return l.watchSaga(c.Context(), args[0], poll)
		},
	}
	c.Flags().DurationVar(&poll, "every", 500*time.Millisecond, "how often to look")
	return c
}

func (l *ledger) watchSaga(ctx context.Context, id string, poll time.Duration) error {
	var state saga.State
	err := l.do(ctx, false, func(ctx context.Context, j *journal.Journal) error {
		for shown := 0; ; {
			moments, err := history(ctx, j, id)
			if err != nil {
				return err
			}
			for _, m := range moments[min(shown, len(moments)):] {
				v := viewMoment(m)
				text := fmt.Sprintf("%4d  %s  %-8s %-20s %s  %s\n", m.Position, m.Written.Local().Format(time.DateTime), m.Kind, plain(m.Step), m.State,
					plain(strings.TrimSpace(v.Actor+" "+v.Why)))
				if err := l.app.print(v, text); err != nil {
					return err
				}
				state = m.State
			}
			if shown = max(shown, len(moments)); state.Final() {
				return nil
			}
			timer := time.NewTimer(poll)
			select {
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			case <-timer.C:
			}
		}
	})
	if err == nil && state != saga.Succeeded {
		return fail(exitFailed, "the saga is %s", state)
	}
	return err
}
