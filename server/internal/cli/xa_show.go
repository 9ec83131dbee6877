package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/txn/twopc"
)

// xaView is the JSON form of a transaction in the journal; docs/reference/cli.md promises it.
type xaView struct {
	ID          string         `json:"id"`
	State       string         `json:"state"`
	Decision    string         `json:"decision"`
	Transaction string         `json:"transaction"`
	Decided     string         `json:"decided"`
	Reason      string         `json:"reason,omitempty"`
	Actor       string         `json:"actor,omitempty"`
	Note        string         `json:"note,omitempty"`
	Halted      string         `json:"halted,omitempty"`
	Branches    []xaBranchView `json:"branches,omitempty"`
}

type xaBranchView struct {
	Participant string `json:"participant"`
	Done        bool   `json:"done"`
	Heuristic   string `json:"heuristic,omitempty"`
	Error       string `json:"error,omitempty"` // of the last commit that failed
	Attempts    int    `json:"attempts,omitempty"`
}

// state says in a line what is known of the branch.
func (b xaBranchView) state() string {
	switch {
	case b.Heuristic != "":
		return "otherwise than decided: " + b.Heuristic
	case b.Done:
		return "committed"
	case b.Error != "":
		return fmt.Sprintf("not committed after %d attempts: %s", b.Attempts, b.Error)
	}
	return "not known to be committed"
}

func viewXA(o twopc.Outcome) xaView {
	v := xaView{ID: o.ID, State: string(o.State), Decision: string(o.Decision), Transaction: o.Transaction, Decided: stamp(o.Decided),
		Reason: o.Reason, Actor: o.Actor, Note: o.Note, Halted: o.Halted}
	for _, b := range o.Branches {
		v.Branches = append(v.Branches, xaBranchView{b.Participant, b.Done, b.Heuristic, b.Failing, b.Attempts})
	}
	return v
}

// why says in a line what keeps the transaction from its end.
func (v xaView) why() string {
	all := []string{v.Reason, v.Halted}
	for _, b := range v.Branches {
		if b.Error != "" {
			all = append(all, b.Participant+": "+b.Error)
		}
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

func (x *xa) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show what was decided of a transaction, and who has done it", Args: oneArg("transaction"),
		Example: `  interlock xa show transfer/42
  interlock xa show transfer/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var o twopc.Outcome
			if err := x.manage(c.Context(), func(ctx context.Context, m *twopc.Engine) (err error) {
				o, err = look(ctx, m, args[0])
				return err
			}); err != nil {
				return err
			}
			v := viewXA(o)
			list := [][2]string{{"id", v.ID}, {"state", v.State}, {"decision", v.Decision}, {"known there as", v.Transaction},
				{"decided", o.Decided.Local().Format(time.DateTime)}, {"why", v.Reason}, {"by", v.Actor}, {"note", v.Note}, {"halted", v.Halted}}
			for _, branch := range v.Branches {
				list = append(list, [2]string{branch.Participant, branch.state()})
			}
			return x.app.print(v, fields(list...))
		},
	}
}

// look finds a transaction by its id, or by the name that participants show.
func look(ctx context.Context, m *twopc.Engine, name string) (twopc.Outcome, error) {
	o, err := m.Look(ctx, name)
	if parts := runName.FindStringSubmatch(name); parts != nil && errors.Is(err, twopc.ErrNone) {
		o, err = m.Look(ctx, parts[1])
	}
	if errors.Is(err, twopc.ErrNone) {
		err = fmt.Errorf("%w, so nobody has decided to commit it; interlock xa ls shows whether it is in doubt", err)
	}
	return o, err
}

// runName is an id with what tells one run of it from others, as participants know it.
var runName = regexp.MustCompile(`^(.+)\.[0-9a-v]{12}$`)
