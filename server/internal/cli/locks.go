package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

func (a *app) locksCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "locks", Short: "Show locks, or hold one",
		Example: `  interlock locks ls                 what is held or awaited
  interlock locks show nightly       who holds it, who waits, in order
  interlock locks hold nightly       hold it until the standard input ends`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no command %q; %s --help lists them all", args[0], c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.lsCommand(), a.showCommand(), a.holdCommand())
	return c
}

// inspect opens a backend to look at it, within --timeout.
func (a *app) inspect(ctx context.Context, look func(context.Context, driver.Inspector) error) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	d, err := a.open(ctx, target, 0)
	if err != nil {
		return err
	}
	err = look(ctx, d)
	closing, cancel := context.WithTimeout(context.Background(), disconnect)
	defer cancel()
	if problem := d.Close(closing); problem != nil && err == nil {
		a.say("warning: disconnecting from %v: %v", target, problem)
	}
	if err != nil {
		return a.unreached(target, err)
	}
	return nil
}

func (a *app) lsCommand() *cobra.Command {
	limit := 1000
	c := &cobra.Command{
		Use: "ls [PREFIX]", Short: "List the locks that are held or awaited",
		Example: `  interlock locks ls
  interlock locks ls account/                    those whose names begin so
  interlock locks ls -o json --limit 10`,
		ValidArgsFunction: a.completeName,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s wants at most one prefix, %d were given", c.CommandPath(), len(args))
			}
			if limit < 1 {
				return usage("--limit must be above zero, not %d", limit)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			prefix := ""
			if len(args) == 1 {
				prefix = args[0]
			}
			return a.inspect(c.Context(), func(ctx context.Context, i driver.Inspector) error {
				locks, more, err := i.Locks(ctx, prefix, limit)
				if err != nil {
					return err
				}
				return a.printList(locks, more)
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", limit, "show at most this many")
	return c
}

func (a *app) printList(locks []driver.LockState, more bool) error {
	if more {
		a.say("there are more; give a prefix or a higher --limit")
	}
	if len(locks) == 0 && a.output == "text" {
		a.say("nothing is held or awaited")
		return nil
	}
	now := time.Now()
	views := make([]lockView, 0, len(locks))
	rows := [][]string{{"NAME", "HOLDER", "TOKEN", "SINCE", "EXPIRES", "WAITERS"}}
	for _, l := range locks {
		views = append(views, view(l, now))
		row := append([]string{plain(l.Name)}, "-", "-", "-", "-")
		if l.Holder != nil {
			copy(row[1:], contenderRow(*l.Holder))
		}
		rows = append(rows, append(row, strconv.Itoa(len(l.Waiters))))
	}
	return a.print(struct {
		Locks []lockView `json:"locks"`
		More  bool       `json:"more"`
	}{views, more}, table(rows))
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show who holds a lock and who waits, in order", Args: oneArg("name"),
		Example: `  interlock locks show nightly
  interlock locks show nightly -o json           holder is null if it is free`,
		ValidArgsFunction: a.completeName,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkName(args[0]); err != nil {
				return err
			}
			return a.inspect(c.Context(), func(ctx context.Context, i driver.Inspector) error {
				state, err := i.Lock(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(view(state, time.Now()), showText(state))
			})
		},
	}
}

func showText(l driver.LockState) string {
	if l.Holder == nil && len(l.Waiters) == 0 {
		return fmt.Sprintf("%s is free\n", plain(l.Name))
	}
	rows := [][]string{{"", "OWNER", "TOKEN", "SINCE", "EXPIRES"}}
	if l.Holder != nil {
		rows = append(rows, append([]string{"holder"}, contenderRow(*l.Holder)...))
	}
	for i, w := range l.Waiters {
		rows = append(rows, append([]string{fmt.Sprintf("waiter %d", i+1)}, contenderRow(w)...))
	}
	return table(rows)
}

// contenderRow is owner, token, since and what is left, as text.
func contenderRow(c driver.Contender) []string {
	row := []string{plain(c.Owner), "-", "-", "-"}
	if c.Foreign {
		row[0] += " (foreign)"
	}
	if c.Token != 0 {
		row[1] = c.Token.String()
	}
	if !c.Since.IsZero() {
		row[2] = c.Since.Local().Format(time.DateTime)
	}
	if c.Expires > 0 {
		row[3] = "in " + c.Expires.Round(100*time.Millisecond).String()
	}
	return row
}

// lockView and contenderView are the JSON forms; docs/cli.md promises them.
type lockView struct {
	Name    string          `json:"name"`
	Holder  *contenderView  `json:"holder"` // null if nobody holds it
	Waiters []contenderView `json:"waiters"`
}

type contenderView struct {
	Owner     string          `json:"owner"`
	Token     interlock.Token `json:"token,string,omitempty"`
	Since     *time.Time      `json:"since,omitempty"`      // by the backend's clock
	Deadline  *time.Time      `json:"deadline,omitempty"`   // by ours: when it expires unless renewed
	ExpiresMS int64           `json:"expires_ms,omitempty"` // the same, from now
	Foreign   bool            `json:"foreign,omitempty"`    // taken by another client
}

func view(l driver.LockState, now time.Time) lockView {
	v := lockView{Name: l.Name, Waiters: []contenderView{}}
	if l.Holder != nil {
		holder := viewContender(*l.Holder, now)
		v.Holder = &holder
	}
	for _, w := range l.Waiters {
		v.Waiters = append(v.Waiters, viewContender(w, now))
	}
	return v
}

func viewContender(c driver.Contender, now time.Time) contenderView {
	v := contenderView{Owner: c.Owner, Token: c.Token, Foreign: c.Foreign, ExpiresMS: c.Expires.Milliseconds()}
	if !c.Since.IsZero() {
		since := c.Since.UTC()
		v.Since = &since
	}
	if c.Expires > 0 {
		deadline := now.Add(c.Expires).UTC()
		v.Deadline = &deadline
	}
	return v
}
