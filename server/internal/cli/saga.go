package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// ledger is a journal of transactions that a command is about.
type ledger struct {
	app *app
	journalFlags
	// Of commands that leave a record.
	reason, by string
}

// answerable adds the flags that say who does it and why.
func (l *ledger) answerable(c *cobra.Command) {
	c.Flags().StringVar(&l.reason, "reason", "", "why, for those who come after")
	c.Flags().StringVar(&l.by, "by", whoami(), "who does it")
}

// do runs something on the journal, within --timeout if bounded.
func (l *ledger) do(ctx context.Context, bounded bool, use func(context.Context, *journal.Journal) error) error {
	target, err := l.app.target()
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, l.app.timeout)
	defer cancel()
	if bounded {
		ctx = opening
	}
	store, disconnect, err := target.Journal(opening, l.name)
	if err != nil {
		return l.app.unreached(target, err)
	}
	defer disconnect()
	j, err := journal.New(store, &journal.Options{Shards: l.shards})
	if err != nil {
		return usage("%w", err)
	}
	defer j.Close()
	return l.app.unreached(target, refusedSaga(use(ctx, j)))
}

// refusedSaga gives what a journal refuses the exit code of a failure: the backend is
// as it should be.
func refusedSaga(err error) error {
	if errors.Is(err, saga.ErrNone) || errors.Is(err, saga.ErrState) || errors.Is(err, saga.ErrMismatch) {
		return fail(exitFailed, "%w", err)
	}
	return err
}

func (a *app) sagaCommand() *cobra.Command {
	l := &ledger{app: a}
	c := &cobra.Command{
		Use: "saga", Short: "See sagas, start them, and help those that are stuck",
		Example: `  interlock saga ls --state DEAD_LETTER
  interlock saga show order/42
  interlock saga retry order/42 --reason "the bank is back"`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	l.add(c)
	c.AddCommand(l.sagasCommand(), l.sagaShowCommand(), l.sagaWatchCommand(), l.sagaStartCommand(), l.sagaExportCommand(),
		l.sagaRetryCommand(), l.sagaSkipCommand(), l.sagaResolveCommand(), l.sagaNowCommand())
	return c
}

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
	c.Flags().StringSliceVar(&wanted, "state", nil, "only those in one of these states")
	c.Flags().StringVar(&f.Type, "type", "", "only those of this definition")
	c.Flags().BoolVar(&f.Unfinished, "unfinished", false, "without those that have ended")
	c.Flags().StringVar(&f.Behind, "after", "", "only those whose ids come behind this `id`")
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
			return l.listSagas(c.Context(), saga.Filter{States: []saga.State{saga.DeadLetter}, Unfinished: true}, 1000)
		},
	}
	l.add(c)
	return c
}

// sagaView is the JSON form of a saga; docs/cli.md promises it.
type sagaView struct {
	ID      string                     `json:"id"`
	Type    string                     `json:"type"`
	State   string                     `json:"state"`
	Reason  string                     `json:"reason,omitempty"`
	Input   json.RawMessage            `json:"input,omitempty"`
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	Dead    []deadSagaView             `json:"dead,omitempty"`
	Skipped []string                   `json:"skipped,omitempty"`
	Due     string                     `json:"due,omitempty"`
	Ended   string                     `json:"ended,omitempty"`
	Error   string                     `json:"error,omitempty"` // why it cannot be read
}

type deadSagaView struct {
	Step  string `json:"step"`
	Error string `json:"error"`
}

func viewSaga(o saga.Outcome) sagaView {
	v := sagaView{ID: o.ID, Type: o.Type, State: string(o.State), Reason: o.Reason, Input: o.Input, Outputs: o.Outputs.All(),
		Skipped: o.Skipped, Due: stamp(o.Due), Ended: stamp(o.Ended)}
	for _, d := range o.Dead {
		v.Dead = append(v.Dead, deadSagaView{d.Step, d.Err})
	}
	return v
}

// stamp is a time for programs; empty if there is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func (l *ledger) listSagas(ctx context.Context, f saga.Filter, limit int) error {
	views := []sagaView{}
	rows := [][]string{{"ID", "TYPE", "STATE", "DUE", "WHY"}}
	err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		for o, err := range saga.List(ctx, j, f) {
			if err != nil && o.ID == "" {
				return err
			}
			if len(views) == limit {
				l.app.say("there are more than %d: --limit, or --after %s for the next", limit, plain(views[limit-1].ID))
				return nil
			}
			v := viewSaga(o)
			if err != nil {
				v.Error = err.Error()
			}
			views = append(views, v)
			due := "-"
			if !o.Due.IsZero() {
				due = o.Due.Local().Format(time.DateTime)
			}
			rows = append(rows, []string{plain(o.ID), plain(o.Type), v.State, due, plain(v.Reason + v.Error)})
		}
		return nil
	})
	if err != nil {
		return err
	}
	text := table(rows)
	if len(views) == 0 {
		text = "there are no such sagas\n"
	}
	return l.app.print(struct {
		Sagas []sagaView `json:"sagas"`
	}{views}, text)
}
