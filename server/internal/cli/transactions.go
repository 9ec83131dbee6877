package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// A protocol has the differences between the commands of sagas, TCC and two-phase commit.
type protocol struct {
	group      string // of commands
	noun       string
	states     []coordinator.State
	unfinished bool // ended ones are listed on demand only
	list       func(ctx context.Context, j *journal.Journal, f coordinator.Filter) iter.Seq2[transactionView, error]
}

var (
	sagaProtocol = protocol{"saga", "saga", saga.States, false, func(ctx context.Context, j *journal.Journal, f coordinator.Filter) iter.Seq2[transactionView, error] {
		return views(saga.NewOperator(j).List(ctx, f), viewSaga)
	}}
	tccProtocol = protocol{"tcc", "transaction", tcc.States, true,
		func(ctx context.Context, j *journal.Journal, f coordinator.Filter) iter.Seq2[transactionView, error] {
			return views(tcc.NewOperator(j).List(ctx, f), viewTCC)
		}}
	xaProtocol = protocol{"xa", "transaction", twopc.States, true,
		func(ctx context.Context, j *journal.Journal, f coordinator.Filter) iter.Seq2[transactionView, error] {
			return views(twopc.NewOperator(j).List(ctx, f), viewXA)
		}}
)

func views[O any](all iter.Seq2[O, error], view func(O) transactionView) iter.Seq2[transactionView, error] {
	return func(yield func(transactionView, error) bool) {
		for o, err := range all {
			if !yield(view(o), err) {
				return
			}
		}
	}
}

// transactionView is the JSON form of a transaction; see docs/reference/cli.md.
type transactionView struct {
	coordinator.Summary
	Input   json.RawMessage            `json:"input,omitempty"`   // of a saga, as are the next two
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"` //
	Crossed []coordinator.StepError    `json:"crossed,omitempty"`

	Transaction string         `json:"transaction,omitempty"` // of a two-phase commit: its name at participants
	Decided     time.Time      `json:"decided,omitzero"`
	DecidedBy   string         `json:"decided_by,omitempty"`
	Branches    []twopc.Branch `json:"branches,omitempty"`

	History []recordView `json:"history,omitempty"` // of show
	Error   string       `json:"error,omitempty"`   // why it cannot be read
}

func viewSaga(o saga.Outcome) transactionView {
	if slices.Contains(httpTypes, o.Type) {
		o.Type, o.Input = httpapi.TypeOf(o), httpapi.RedactOrder(o.Input)
	}
	return transactionView{Summary: o.Summary, Input: o.Input, Outputs: o.Outputs.All(), Crossed: o.Crossed}
}

func viewTCC(o tcc.Outcome) transactionView { return transactionView{Summary: o.Summary} }

func viewXA(o twopc.Outcome) transactionView {
	return transactionView{Summary: o.Summary, Transaction: o.Transaction, Decided: o.Decided.UTC(), DecidedBy: o.DecidedBy, Branches: o.Branches}
}

// why returns a line with the reasons why a transaction has not ended.
func (v transactionView) why() string {
	all := []string{v.Reason, v.Error}
	if v.Halted != v.Reason {
		all = append(all, v.Halted)
	}
	for _, e := range slices.Concat(v.Dead, v.Failing) {
		if e.Err != v.Halted {
			all = append(all, e.Step+": "+e.Err)
		}
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// listing selects transactions, and limits their number.
type listing struct {
	coordinator.Filter
	limit  int
	states []string
}

// flags adds the flags of a list.
func (f *listing) flags(c *cobra.Command, p protocol) {
	all := make([]string, len(p.states))
	for i, s := range p.states {
		all[i] = string(s)
	}
	c.Flags().StringSliceVar(&f.states, "state", nil, "only those in one of these states: "+strings.Join(all, ", "))
	c.Flags().StringVar(&f.Type, "type", "", "only those of this type")
	c.Flags().BoolVar(&f.Unfinished, "unfinished", p.unfinished, "only unfinished ones; dead letters are unfinished")
	f.addAfter(c)
	listed(c, &f.limit, 100)
	completes(c, "state", all...)
}

func (f *listing) addAfter(c *cobra.Command) {
	c.Flags().StringVar(&f.After, "after", "", "only those with ids after this `id`")
}

// check parses the states.
func (f *listing) check(c *cobra.Command, p protocol) error {
	for _, s := range f.states {
		state := coordinator.State(strings.ToUpper(s))
		if !slices.Contains(p.states, state) {
			return usage("--state %s is not known; it is one of %s", state, coordinator.JoinStates(p.states))
		}
		f.States = append(f.States, state)
	}
	if len(f.States) > 0 && !c.Flags().Changed("unfinished") {
		f.Unfinished = false // the states select
	}
	return nil
}

// lsCommand returns the command that lists the transactions of a protocol.
func (l *journalCommands) lsCommand(p protocol) *cobra.Command {
	var f listing
	var o choreographed
	c := &cobra.Command{
		Use: "ls", Short: "List " + p.noun + "s by their ids", Args: noArgs,
		Example: fmt.Sprintf("  interlock %s ls --unfinished\n  interlock %[1]s ls --state %s,DEAD_LETTER --type order -o json", p.group, p.states[1]),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.asked {
				return l.listChoreographed(c, f, o)
			}
			if o.stalled || o.table != "" {
				return usage("--stalled and --table are for --choreographed")
			}
			if err := f.check(c, p); err != nil {
				return err
			}
			return l.list(c.Context(), p, f)
		},
	}
	f.flags(c, p)
	if p.group == "saga" {
		o.flags(c)
	}
	return c
}

func (l *journalCommands) list(ctx context.Context, p protocol, f listing) error {
	var all []transactionView
	if err := l.do(ctx, true, func(ctx context.Context, j *journal.Journal) (err error) {
		all, err = l.find(ctx, j, p, f)
		return err
	}); err != nil {
		return err
	}
	return l.app.printRows(struct {
		Transactions []transactionView `json:"transactions"`
	}{all}, rowsOf(all), "there are no such "+p.noun+"s")
}

// rowsOf returns a table of transactions.
func rowsOf(all []transactionView) [][]string {
	rows := [][]string{{"ID", "TYPE", "STATE", "DUE", "WHY"}}
	for _, v := range all {
		rows = append(rows, []string{v.ID, v.Type, string(v.State), localTime(v.Due), v.why()})
	}
	return rows
}

// find returns the first matching transactions, and reports if there are more.
func (l *journalCommands) find(ctx context.Context, j *journal.Journal, p protocol, f listing) ([]transactionView, error) {
	all, err := listOf(ctx, j, p, f, func(transactionView) bool { return true })
	if err == nil && p.group == "saga" && f.Type != "" && !slices.Contains(httpTypes, f.Type) { // in the journal these do not have their own types
		wanted := f.Type
		for _, f.Type = range httpTypes {
			more, problem := listOf(ctx, j, p, f, func(v transactionView) bool { return v.Type == wanted })
			all, err = append(all, more...), errors.Join(err, problem)
		}
		slices.SortFunc(all, func(a, b transactionView) int { return cmp.Compare(a.ID, b.ID) })
	}
	if len(all) > f.limit {
		all = all[:f.limit]
		l.app.say("there are more than %d: --limit, or %s for the next", f.limit, command("--after", all[f.limit-1].ID))
	}
	return all, err
}

// httpTypes are the definitions of sagas started over HTTP, the second with a report of their end. Their
// own type is in their input.
var httpTypes = []string{"http", "http_reported"}

// listOf returns the first transactions that pass, one more than the limit.
func listOf(ctx context.Context, j *journal.Journal, p protocol, f listing, passes func(transactionView) bool) ([]transactionView, error) {
	all := []transactionView{}
	for v, err := range p.list(ctx, j, f.Filter) {
		if err != nil && v.ID == "" {
			return all, err
		}
		if err != nil {
			v.Error = err.Error()
		}
		if passes(v) {
			all = append(all, v)
		}
		if len(all) > f.limit {
			break
		}
	}
	return all, nil
}

// recordView is a record of the journal.
type recordView struct {
	Position int64     `json:"position"`
	Written  time.Time `json:"written"`
	Kind     string    `json:"kind"`
	Step     string    `json:"step,omitempty"` // of decide: the decision
	Actor    string    `json:"actor,omitempty"`
	Why      string    `json:"why,omitempty"`
}

// historyOf returns the records of a transaction.
func historyOf(entries []journal.Entry) (all []recordView) {
	for _, e := range entries {
		var said struct {
			Actor, Reason, Error, Text string
			Refused                    bool // by a branch
		}
		_ = json.Unmarshal(e.Data, &said) // not all records have these fields
		why := said.Reason + said.Error + said.Text
		if said.Refused && why == "" {
			why = "refused or failed"
		}
		all = append(all, recordView{e.Position, e.Written.UTC(), e.Kind, e.Step, said.Actor, why})
	}
	return all
}

// shown returns a transaction as text; more are the fields of its protocol.
func (v transactionView) shown(more ...[2]string) text {
	list := [][2]string{{"id", v.ID}, {"type", v.Type}, {"state", string(v.State)}, {"decision", string(v.Decision)},
		{"why", v.Reason}, {"halted", v.Halted}, {"skipped", strings.Join(v.Skipped, ", ")}}
	t := fields(append(list, more...)...)
	rows := [][]string{{"BRANCH", "STATUS", "FAILURES", "ERROR"}}
	for i, e := range slices.Concat(v.Dead, v.Failing) {
		status := "dead"
		if i >= len(v.Dead) {
			status = "failing"
		}
		rows = append(rows, []string{e.Step, status, fmt.Sprint(e.Attempts), e.Err})
	}
	if len(rows) > 1 {
		t += "\n" + table(rows)
	}
	rows = [][]string{{"#", "WHEN", "RECORD", "BRANCH", "WHO AND WHY"}}
	for _, r := range v.History {
		rows = append(rows, []string{fmt.Sprint(r.Position), localTime(r.Written), r.Kind, r.Step, strings.TrimSpace(r.Actor + " " + r.Why)})
	}
	return t + "\n" + table(rows)
}

// localTime returns a time as text; "-" for the zero time.
func localTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
