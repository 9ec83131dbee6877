package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

func (a *app) historyCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "history [NAME]", Short: "Show forced releases, newest first",
		Example: `  interlock locks history
  interlock locks history nightly
  interlock locks history -o json --limit 10`,
		Long: `Backends record forced releases only: not former holders that released or lost a
lock, and not locks that an operator deleted with other tools.`,
		ValidArgsFunction: a.completeName,
		Args:              atMostOne("name"),
		RunE: func(c *cobra.Command, args []string) error {
			name := prefixOf(args)
			if len(args) == 1 {
				if err := checkName(name); err != nil {
					return err
				}
			}
			return a.inspect(c.Context(), func(ctx context.Context, v *inspection) error {
				records, err := v.Breaks(ctx, name, limit)
				if err != nil {
					return err
				}
				return v.printHistory(name, records)
			})
		},
	}, &limit, 100)
}

func (v *inspection) printHistory(name string, records []driver.BreakRecord) error {
	v.app.say("only forced releases are remembered, no grants: %s", v.target.Forgetting())
	views := make([]brokenView, 0, len(records))
	rows := [][]string{{"AT", "NAME", "TAKEN FROM", "TOKEN", "BY", "REASON"}}
	for _, r := range records {
		views = append(views, viewBroken(r))
		token := "-"
		if r.Token != 0 {
			token = r.Token.String()
		}
		rows = append(rows, []string{r.At.Local().Format(time.DateTime), r.Name, r.Owner, token, r.By, r.Reason})
	}
	return v.app.printRows(struct {
		Releases []brokenView `json:"releases"`
	}{views}, rows, "nothing was taken away by force"+ofName(name))
}

func ofName(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

// brokenView is the JSON form of a forced release; docs/reference/cli.md promises it.
type brokenView struct {
	Name   string          `json:"name"`
	Owner  string          `json:"owner"` // from whom it was taken
	Token  interlock.Token `json:"token,string,omitempty"`
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
}

func viewBroken(r driver.BreakRecord) brokenView {
	return brokenView{Name: r.Name, Owner: r.Owner, Token: r.Token, Reason: r.Reason, By: r.By, At: r.At.UTC()}
}
