package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
)

// limitsCommands selects the limits of a command.
type limitsCommands struct {
	app   *app
	table string
}

func (a *app) limitsCommand() *cobra.Command {
	l := &limitsCommands{app: a}
	c := group(&cobra.Command{
		Use: "limits", Short: "List, show and reset rate limits",
		Example: `  interlock limits ls user/ --backend redis://localhost
  interlock limits show user/42 --rate 100/s --backend redis://localhost
  interlock limits reset user/42 --backend redis://localhost`,
	}, l.listCommand(), l.showCommand(), l.resetCommand())
	addLimitTable(c.PersistentFlags(), &l.table)
	return c
}

// do calls onLimits and use within --timeout.
func (l *limitsCommands) do(ctx context.Context, use func(context.Context, driver.LimitInspector) error) error {
	return l.app.onLimits(ctx, l.table, func(ctx context.Context, limits driver.LimitInspector) error {
		ctx, cancel := context.WithTimeout(ctx, l.app.timeout)
		defer cancel()
		return use(ctx, limits)
	})
}

// limitView is the JSON form of a limit; see docs/reference/cli.md.
type limitView struct {
	Key        string    `json:"key"`
	Algorithm  string    `json:"algorithm,omitempty"` // empty if nothing is consumed, or the state is damaged
	Used       int64     `json:"used"`
	At         time.Time `json:"at,omitzero"` // by the clock of the store
	ResetAfter int64     `json:"reset_after_ms"`
	Damaged    string    `json:"damaged,omitempty"`
}

func viewLimit(s driver.StoredLimit) limitView {
	v := limitView{Key: s.Key, Used: s.State.Used(), ResetAfter: roundedUp(s.ResetAfter).Milliseconds(), Damaged: s.Damaged}
	if len(s.State) > 0 {
		v.Algorithm, v.At = driver.Algorithm(s.State[0]).String(), s.State.Time().UTC()
	}
	return v
}

func (v limitView) row() []string {
	if v.At.IsZero() {
		return []string{v.Key, "damaged", "", "", ""}
	}
	reset := time.Duration(v.ResetAfter) * time.Millisecond
	return []string{v.Key, v.Algorithm, fmt.Sprint(v.Used), localTime(v.At), reset.Round(time.Second).String()}
}

func (l *limitsCommands) listCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "ls [PREFIX]", Short: "List limits with used units",
		Example: `  interlock limits ls --backend redis://localhost
  interlock limits ls user/ -o json --backend postgres://localhost/shop`,
		Long: `USED is how many units were used when the key was last charged, at AS OF. In Redis this
scans the keys of the database.`,
		Args:              atMostOne("prefix"),
		ValidArgsFunction: l.app.completeFirst(l.app.limitKeys),
		RunE: func(c *cobra.Command, args []string) error {
			views, rows := []limitView{}, [][]string{{"KEY", "ALGORITHM", "USED", "AS OF", "RESET IN"}}
			if err := l.do(c.Context(), func(ctx context.Context, limits driver.LimitInspector) error {
				all, more, err := limits.Limits(ctx, prefixOf(args), limit)
				for _, s := range all {
					v := viewLimit(s)
					views, rows = append(views, v), append(rows, v.row())
				}
				if more {
					l.app.say("there are more than %d: name a prefix, or raise --limit", limit)
				}
				return err
			}); err != nil {
				return err
			}
			return l.app.printRows(views, rows, "there are no limits with used units")
		},
	}, &limit, 1000)
}

func (l *limitsCommands) showCommand() *cobra.Command {
	var f rateFlags
	c := &cobra.Command{
		Use: "show KEY", Short: "Show what is used of a limit", Args: oneArg("key"),
		Example: `  interlock limits show user/42 --backend redis://localhost
  interlock limits show user/42 --rate 100/s --backend redis://localhost`,
		Long: `The store keeps no rates. With --rate it prints how many units of that rate remain now;
without, what was used when the key was last charged.`,
		ValidArgsFunction: l.app.completeFirst(l.app.limitKeys),
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("rate") && !c.Flags().Changed("burst") && !c.Flags().Changed("algorithm") {
				return l.show(c.Context(), args[0])
			}
			r, err := f.parse()
			if err != nil {
				return err
			}
			d, err := l.app.takeUnits(c.Context(), l.table, driver.Charge{Key: args[0], Rate: r}, 0)
			if err != nil {
				return err
			}
			return l.app.print(viewDecision(args[0], d), line("remaining: %d of %d, reset in %v\n", d.Remaining, r.Capacity(), roundedUp(d.ResetAfter)))
		},
	}
	f.add(c.Flags())
	completesAlgorithm(c)
	return c
}

func (l *limitsCommands) show(ctx context.Context, key string) error {
	return l.do(ctx, func(ctx context.Context, limits driver.LimitInspector) error {
		s, err := limits.Limit(ctx, key)
		if err != nil {
			return err
		}
		v := viewLimit(s)
		switch {
		case v.Damaged != "":
			return l.app.print(v, line("damaged: %s\n", v.Damaged))
		case v.At.IsZero():
			return l.app.print(v, "nothing is used\n")
		}
		return l.app.print(v, fields([2]string{"algorithm", v.Algorithm}, [2]string{"used", fmt.Sprint(v.Used)}, [2]string{"as of", localTime(v.At)},
			[2]string{"reset in", roundedUp(s.ResetAfter).String()}))
	})
}

func (l *limitsCommands) resetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reset KEY", Short: "Forget what is used of a limit", Args: oneArg("key"),
		Example: `  interlock limits reset user/42 --backend redis://localhost`,
		Long: `It also removes a damaged state. A process that has remembered a refusal refuses until
the time to retry that the refusal named.`,
		ValidArgsFunction: l.app.completeFirst(l.app.limitKeys),
		RunE: func(c *cobra.Command, args []string) error {
			return l.do(c.Context(), func(ctx context.Context, limits driver.LimitInspector) error {
				found, err := limits.Reset(ctx, args[0])
				if err != nil {
					return err
				}
				done := line("nothing was used\n")
				if found {
					done = line("reset: %s\n", args[0])
				}
				return l.app.print(struct {
					Key   string `json:"key"`
					Found bool   `json:"found"`
				}{args[0], found}, done)
			})
		},
	}
}

// limitKeys returns keys for completion.
func (a *app) limitKeys(ctx context.Context, prefix string) (keys []string) {
	_ = a.onLimits(ctx, "", func(ctx context.Context, l driver.LimitInspector) error {
		all, _, err := l.Limits(ctx, prefix, completionNames)
		for _, s := range all {
			keys = append(keys, s.Key)
		}
		return err
	})
	return keys
}
