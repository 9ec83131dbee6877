package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// snapshotView is the JSON form of a saga right after one of its records.
type snapshotView struct {
	Position int64      `json:"position"`
	Written  time.Time  `json:"written"`
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

func viewSnapshot(m saga.Snapshot) snapshotView {
	v := snapshotView{Position: m.Position, Written: m.Written.UTC(), Kind: m.Kind, Step: m.Step, Actor: m.By.Actor, Why: m.By.Reason, State: string(m.State)}
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

// sagaHistory is a saga with a snapshot after each record.
type sagaHistory struct {
	head      driver.Head
	input     json.RawMessage
	snapshots []saga.Snapshot
}

// history reads a saga.
func history(ctx context.Context, j *journal.Journal, id string) (c sagaHistory, err error) {
	log, entries, err := j.Open(ctx, id)
	if err != nil {
		return c, err
	}
	if log == nil {
		return c, &interlock.Error{Op: "show saga", Name: id, Kind: interlock.Definite, Err: saga.ErrNone}
	}
	c.head = log.Head()
	definition, err := requireProtocol(c.head, "saga")
	if err != nil {
		return c, err
	}
	var begun struct {
		Input json.RawMessage `json:"input"`
	}
	_ = json.Unmarshal(entries[0].Data, &begun) // Replay reports the error
	c.input, c.head.Type = begun.Input, httpapi.TypeOf(saga.Outcome{Summary: coordinator.Summary{Type: definition}, Input: begun.Input})
	if slices.Contains(httpTypes, definition) {
		c.input = httpapi.RedactOrder(begun.Input)
	}
	c.snapshots, err = saga.Replay(entries)
	return c, err
}

// requireProtocol returns the type of a transaction of a protocol. It rejects another protocol's,
// with the command that shows it.
func requireProtocol(h driver.Head, protocol string) (kind string, err error) {
	of, kind, _ := strings.Cut(h.Type, ":")
	if of == protocol {
		return kind, nil
	}
	shown := map[string]string{"saga": "saga show", "tcc": "tcc show", "2pc": "xa show"}[of]
	return "", fail(exitFailed, "%q is of %s, not of %s: %s", h.Transaction, of, protocol,
		command(append(strings.Fields("interlock "+cmp.Or(shown, "saga export")), h.Transaction)...))
}

// explainForeign replaces the error of a transaction of another protocol.
func (l *journalCommands) explainForeign(ctx context.Context, j *journal.Journal, id string, err error) error {
	if !errors.Is(err, coordinator.ErrMismatch) && !errors.Is(err, coordinator.ErrNone) {
		return err
	}
	log, _, failed := j.Open(ctx, id)
	if failed != nil || log == nil {
		return err
	}
	_, foreign := requireProtocol(log.Head(), l.protocol)
	return cmp.Or(foreign, err)
}

func (l *journalCommands) sagaShowCommand() *cobra.Command {
	var at int64
	c := &cobra.Command{
		Use: "show ID", Short: "Show a saga's steps and its records", Args: oneArg("saga"),
		Example: `  interlock saga show order/42
  interlock saga show order/42 --at 3          as it stood after its third record
  interlock saga show order/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var told sagaHistory
			if err := l.do(c.Context(), true, func(ctx context.Context, j *journal.Journal) (err error) {
				told, err = history(ctx, j, args[0])
				return err
			}); err != nil {
				return err
			}
			if at < 0 || at > int64(len(told.snapshots)) {
				return usage("--at %d: the saga has %d records", at, len(told.snapshots))
			}
			if at > 0 {
				told.snapshots = told.snapshots[:at]
				told.head.Due, told.head.Ended = time.Time{}, time.Time{} // they are current ones
			}
			return l.printSaga(told)
		},
	}
	c.Flags().Int64Var(&at, "at", 0, "the state after this many `records`")
	return c
}

// sagaShown is the JSON form of a saga with its history; see docs/reference/cli.md.
type sagaShown struct {
	ID      string          `json:"id"`
	Type    string          `json:"type"`
	State   string          `json:"state"`
	Reason  string          `json:"reason,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
	Due     time.Time       `json:"due,omitzero"`
	Ended   time.Time       `json:"ended,omitzero"`
	Steps   []stepView      `json:"steps"`
	History []snapshotView  `json:"history"`
}

func (l *journalCommands) printSaga(c sagaHistory) error {
	last := c.snapshots[len(c.snapshots)-1]
	v := sagaShown{ID: c.head.Transaction, Type: c.head.Type, State: string(last.State), Reason: last.Reason, Input: c.input,
		Due: c.head.Due.UTC(), Ended: c.head.Ended.UTC(), Steps: append([]stepView{}, viewSnapshot(last).Steps...)}
	list := [][2]string{{"id", v.ID}, {"type", v.Type}, {"state", v.State}, {"why", v.Reason}, {"input", string(v.Input)}}
	if !c.head.Due.IsZero() {
		list = append(list, [2]string{"due", localTime(c.head.Due)})
	}
	rows := [][]string{{"STEP", "STATUS", "FAILURES", "OUTPUT OR ERROR"}}
	for _, p := range last.Steps {
		what := p.Err
		if what == "" || p.Status == "done" {
			what = string(p.Output)
		}
		rows = append(rows, []string{p.Step, p.Status, fmt.Sprint(p.Attempts), what})
	}
	records := [][]string{{"#", "WHEN", "RECORD", "STEP", "STATE", "WHO AND WHY"}}
	for _, m := range c.snapshots {
		view := viewSnapshot(m)
		v.History = append(v.History, view)
		records = append(records, []string{fmt.Sprint(m.Position), localTime(m.Written), m.Kind, m.Step, string(m.State), view.who()})
	}
	return l.app.print(v, fields(list...)+"\n"+table(rows)+"\n"+table(records))
}

// who returns the author and the reason, in a line.
func (v snapshotView) who() string { return plain(strings.TrimSpace(v.Actor + " " + v.Why)) }

func (l *journalCommands) sagaWatchCommand() *cobra.Command {
	var poll time.Duration
	c := &cobra.Command{
		Use: "watch ID", Short: "Print the records of a saga until it ends", Args: oneArg("saga"),
		Example: `  interlock saga watch order/42
  interlock saga watch order/42 -o json        one line for each record`,
		Long: `Prints each record of the saga, existing records first. It ends when the saga ends or
becomes a dead letter. The exit code is 0 if the saga succeeded, else 1.`,
		RunE: func(c *cobra.Command, args []string) error {
			if poll <= 0 {
				return usage("--every must be above 0, not %v", poll)
			}
			return l.watchSaga(c.Context(), args[0], poll)
		},
	}
	c.Flags().DurationVar(&poll, "every", 500*time.Millisecond, "polling interval")
	return c
}

// next suggests a command for a saga that has not succeeded.
func next(s saga.State, id string) text {
	if s == saga.DeadLetter {
		return "repair it with interlock saga retry, skip or resolve"
	}
	return line("see %s", command("interlock", "saga", "show", id))
}

func (l *journalCommands) watchSaga(ctx context.Context, id string, poll time.Duration) error {
	w := sagaWatch{journalCommands: l, id: id, outage: interruption{app: l.app}}
	err := l.do(ctx, false, func(ctx context.Context, j *journal.Journal) error {
		for {
			if err := w.look(ctx, j); err != nil || w.state.Final() {
				return err
			}
			if err := pause(ctx, poll); err != nil {
				return err
			}
		}
	})
	if err == nil && w.state != saga.Succeeded {
		return fail(exitFailed, "the saga is %s: %s", w.state, next(w.state, id))
	}
	return err
}

// sagaWatch is the progress of a watch.
type sagaWatch struct {
	*journalCommands
	id     string
	shown  int64 // the last record
	state  saga.State
	outage interruption // of the journal
}

// look prints the new records. If the journal answered before but does not now, the next look
// retries.
func (w *sagaWatch) look(ctx context.Context, j *journal.Journal) error {
	reading, cancel := context.WithTimeout(ctx, w.app.timeout)
	defer cancel()
	told, err := history(reading, j, w.id)
	switch unreachable := err != nil && codeOf(err) == exitUnreachable; {
	case unreachable && w.shown > 0:
		w.outage.begins(err)
		return nil
	case err != nil:
		return err
	}
	w.outage.ends("the journal")
	for _, m := range told.snapshots {
		if m.Position <= w.shown {
			continue
		}
		v := viewSnapshot(m)
		t := line("%4d  %s  %-8s %-20s %s  %s", m.Position, localTime(m.Written), m.Kind, m.Step, m.State, v.who())
		if err := w.app.print(v, trimmed(t)+"\n"); err != nil {
			return err
		}
		w.shown, w.state = m.Position, m.State
	}
	return nil
}
