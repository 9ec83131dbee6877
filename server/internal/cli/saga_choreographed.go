package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/choreography"
)

// choreographed selects sagas without a coordinator.
type choreographed struct {
	asked, stalled bool
	table          string
}

func (o *choreographed) flags(c *cobra.Command) {
	c.Flags().BoolVar(&o.asked, "choreographed", false, "sagas of a tracker of txn/choreography, in Postgres or MariaDB")
	c.Flags().BoolVar(&o.stalled, "stalled", false, "only choreographed ones without a new event for too long")
	c.Flags().StringVar(&o.table, "table", "", "the tracker's table (default: interlock_choreography)")
}

var choreographedStates = []choreography.State{choreography.Running, choreography.Completed, choreography.Compensating,
	choreography.Compensated, choreography.Contradictory}

// choreographedView is the JSON form of a choreographed saga; see
// docs/reference/cli.md.
type choreographedView struct {
	ID         string             `json:"id"`
	Type       string             `json:"type"`
	State      choreography.State `json:"state"`
	Reason     string             `json:"reason,omitempty"`
	Events     []string           `json:"events"`
	Progressed time.Time          `json:"progressed"`
	Stalled    bool               `json:"stalled"`
	Attempts   int                `json:"attempts"`
	Reported   bool               `json:"reported"`
}

// why returns the text for the operator.
func (v choreographedView) why() string {
	why := v.Reason
	switch {
	case v.Reported && why != "":
		return why + "; waits for an operator"
	case v.Reported:
		return "waits for an operator"
	case v.Stalled && why == "":
		return "stalled"
	}
	return why
}

// listChoreographed lists sagas of a tracker.
func (l *journalCommands) listChoreographed(c *cobra.Command, f listing, o choreographed) error {
	if len(f.states) > 1 || c.Flags().Changed("unfinished") {
		return usage("with --choreographed --state is one state, and there is no --unfinished")
	}
	if f.After != "" && f.Type == "" {
		return usage("with --choreographed --after needs --type: ids are in order within a type")
	}
	tracker, filter := choreography.Tracker{Name: o.table}, choreography.Filter{Stalled: o.stalled, After: f.After, Limit: f.limit}
	if f.Type != "" {
		tracker.Definition = &choreography.Definition{Name: f.Type}
	}
	if len(f.states) == 1 {
		filter.State = choreography.State(strings.ToLower(f.states[0]))
		if !slices.Contains(choreographedStates, filter.State) {
			return usage("--state %s is not known; it is one of %v", f.states[0], choreographedStates)
		}
	}
	views, rows := []choreographedView{}, [][]string{{"ID", "TYPE", "STATE", "PROGRESSED", "WHY"}}
	if err := l.app.inTx(c.Context(), func(ctx context.Context, tx driver.SQL) error {
		all, err := tracker.List(ctx, tx, filter)
		for _, s := range all {
			v := choreographedView{s.ID, s.Definition, s.State, s.Reason, s.Events, s.Progressed.UTC(), s.Stalled, s.Attempts, s.Reported}
			views, rows = append(views, v), append(rows, []string{v.ID, v.Type, string(v.State), localTime(v.Progressed), v.why()})
		}
		return err
	}); err != nil {
		return err
	}
	if f.Type != "" && len(views) > 0 {
		l.app.hintAtMore(len(views), f.limit, views[len(views)-1].ID)
	} else {
		l.app.hintAtMore(len(views), f.limit, "")
	}
	return l.app.printRows(struct {
		Sagas []choreographedView `json:"sagas"`
	}{views}, rows, "there are no such sagas")
}
