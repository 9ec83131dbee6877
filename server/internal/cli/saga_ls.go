package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// states are those of a saga, for flags.
var states = []string{string(saga.Running), string(saga.Completing), string(saga.Undoing), string(saga.Succeeded),
	string(saga.Compensated), string(saga.DeadLetter), string(saga.Resolved)}

func (l *ledger) sagasCommand() *cobra.Command {
	var f saga.Filter
	var wanted []string
	var limit int
	c := &cobra.Command{
		Use: "ls", Short: "List sagas, by their ids", Args: noArgs,
		Example: `  interlock saga ls --unfinished
  interlock saga ls --state DEAD_LETTER,UNDOING --type order -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return usage("--limit must be above zero, not %d", limit)
			}
			for _, s := range wanted {
				if s = strings.ToUpper(s); !slices.Contains(states, s) {
					return usage("--state %s is not known; it is one of %s", s, strings.Join(states, ", "))
				} else {
					f.States = append(f.States, saga.State(s))
				}
			}
			return l.listSagas(c.Context(), f, limit)
		},
	}
	c.Flags().StringSliceVar(&wanted, "state", nil, "only those in one of these states: "+strings.Join(states, ", "))
	c.Flags().StringVar(&f.Type, "type", "", "only those of this type")
	c.Flags().BoolVar(&f.Unfinished, "unfinished", false, "without those that have ended; dead letters have not")
	c.Flags().StringVar(&f.After, "after", "", "only those whose ids come behind this `id`")
	c.Flags().IntVar(&limit, "limit", 100, "show at most this many")
	completes(c, "state", states...)
	return c
}

// deadSagasCommand is under dlq: who looks there for what is dead finds it all.
func (a *app) deadSagasCommand() *cobra.Command {
	l := &ledger{app: a}
	c := &cobra.Command{
		Use: "sagas", Short: "List sagas that could not be undone wholly", Args: noArgs,
		Example: `  interlock dlq sagas
  interlock saga retry order/42 --reason "the bank is back"    or skip, or resolve`,
		RunE: func(c *cobra.Command, _ []string) error {
			return l.listSagas(c.Context(), saga.Filter{States: []saga.State{saga.DeadLetter}}, 1000)
		},
	}
	l.add(c)
	return c
}

// ended reports whether a saga in this state has ended; a dead letter has not.
func ended(s saga.State) bool { return s.Final() && s != saga.DeadLetter }

func (l *ledger) listSagas(ctx context.Context, f saga.Filter, limit int) error {
	if len(f.States) > 0 && !slices.ContainsFunc(f.States, ended) {
		f.Unfinished = true // those that have ended need not be read
	}
	views := []sagaView{}
	if err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) (err error) {
		views, err = findSagas(ctx, j, f, limit+1)
		return err
	}); err != nil {
		return err
	}
	if len(views) > limit {
		views = views[:limit]
		l.app.say("there are more than %d: --limit, or %s for the next", limit, command("--after", views[limit-1].ID))
	}
	rows := [][]string{{"ID", "TYPE", "STATE", "DUE", "WHY"}}
	for _, v := range views {
		rows = append(rows, []string{v.ID, v.Type, v.State, local(v.due), v.why()})
	}
	return l.app.printRows(struct {
		Sagas []sagaView `json:"sagas"`
	}{views}, rows, "there are no such sagas")
}

// findSagas reads the first sagas that pass, at most so many. In the journal those that
// came over HTTP are all of one type, so they are looked through for one of their own.
func findSagas(ctx context.Context, j *journal.Journal, f saga.Filter, most int) ([]sagaView, error) {
	views, err := listOf(ctx, j, f, most, func(sagaView) bool { return true })
	if err != nil || f.Type == "" || f.Type == overHTTP {
		return views, err
	}
	wanted := f.Type
	f.Type = overHTTP
	more, err := listOf(ctx, j, f, most, func(v sagaView) bool { return v.Type == wanted })
	views = append(views, more...)
	slices.SortFunc(views, func(a, b sagaView) int { return cmp.Compare(a.ID, b.ID) })
	return views[:min(most, len(views))], err
}

func listOf(ctx context.Context, j *journal.Journal, f saga.Filter, most int, passes func(sagaView) bool) ([]sagaView, error) {
	views := []sagaView{}
	for o, err := range saga.List(ctx, j, f) {
		if err != nil && o.ID == "" {
			return views, err
		}
		v := viewSaga(o)
		if err != nil {
			v.Error = err.Error()
		}
		if passes(v) {
			views = append(views, v)
		}
		if len(views) == most {
			break
		}
	}
	return views, nil
}

// local is a time for people.
func local(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
