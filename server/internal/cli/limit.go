package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// rateFlags define the rate of a limit.
type rateFlags struct {
	rate, algorithm string
	burst           int64
}

func (f *rateFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.rate, "rate", "", "units and period, as 100/s, 20/m or 5/90s")
	flags.Int64Var(&f.burst, "burst", 0, "units admitted at once, of gcra (default: the units of --rate)")
	flags.StringVar(&f.algorithm, "algorithm", driver.GCRA.String(), "gcra, fixed-window, sliding-counter or sliding-log")
}

func (f *rateFlags) parse() (r driver.Rate, err error) {
	if f.rate == "" {
		return r, usage("--rate is missing, as --rate 100/s")
	}
	if r, err = limit.ParseRate(f.rate); err != nil {
		return r, usage("--rate: %w", err)
	}
	for r.Burst = f.burst; r.Algorithm.String() != f.algorithm; r.Algorithm++ {
		if r.Algorithm == driver.SlidingLog {
			return r, usage("--algorithm %s is not known; it is gcra, fixed-window, sliding-counter or sliding-log", f.algorithm)
		}
	}
	if err = r.Check(); err != nil {
		return r, usage("--rate: %w", err)
	}
	return r, nil
}

// limitFlags are the flags of interlock limit.
type limitFlags struct {
	rateFlags
	cost        int64
	wait, table string
}

const waitForever = "no limit" // --wait without a value

func (a *app) limitCommand() *cobra.Command {
	f := &limitFlags{}
	c := &cobra.Command{
		Use: "limit KEY --rate COUNT/PERIOD [flags] [-- COMMAND [ARGUMENT…]]", Short: "Run a command unless a rate limit refuses it",
		Example: `  interlock limit mail --rate 100/h -- ./send.sh
  interlock limit mail --rate 100/h --wait=10m -- ./send.sh
  interlock limit api/42 --rate 5/s --burst 20 --cost 3 -o json`,
		Long: `Takes units of a limit that all processes with this KEY share, and then becomes the
command. If the limit refuses it, the exit code is 75, nothing is taken, and the standard
error says when to retry. Without a command it takes the units and prints the decision.

Programs share the limit by package flow/limit, with the same key, rate and algorithm.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeJob(a.limitKeys),
		RunE: func(c *cobra.Command, args []string) error {
			return a.limit(c, f, args)
		},
	}
	f.add(c.Flags())
	c.Flags().Int64Var(&f.cost, "cost", 1, "units to take; 0 shows the limit")
	c.Flags().StringVar(&f.wait, "wait", "0s", "wait for the units at most this long, as --wait=30s; without a value as long as it takes")
	c.Flags().Lookup("wait").NoOptDefVal = waitForever
	addLimitTable(c.Flags(), &f.table)
	completesAlgorithm(c)
	return c
}

func addLimitTable(flags *pflag.FlagSet, table *string) {
	flags.StringVar(table, "table", "", "the table of limits in a database (default: interlock_limit)")
}

func completesAlgorithm(c *cobra.Command) {
	completes(c, "algorithm", "gcra", "fixed-window", "sliding-counter", "sliding-log")
}

// patience returns the longest wait.
func (f *limitFlags) patience() (time.Duration, error) {
	if f.wait == waitForever {
		return 1<<63 - 1, nil
	}
	d, err := time.ParseDuration(f.wait)
	if err != nil || d < 0 {
		return 0, usage("--wait=%s is not a time to wait, as --wait=30s", f.wait)
	}
	return d, nil
}

func (a *app) limit(c *cobra.Command, f *limitFlags, args []string) error {
	key, words, err := limitArgs(c, args)
	if err != nil {
		return err
	}
	charge := driver.Charge{Key: key, Cost: f.cost}
	if charge.Rate, err = f.parse(); err != nil {
		return err
	}
	if f.cost < 0 {
		return usage("--cost must be at least 0, not %d", f.cost)
	}
	if err := charge.Check(); err != nil {
		return usage("%w", errors.Unwrap(err))
	}
	wait, err := f.patience()
	if err != nil {
		return err
	}
	var path string
	if len(words) > 0 {
		if path, err = lookUp(words[0]); err != nil {
			return err
		}
	}
	d, err := a.takeUnits(c.Context(), f.table, charge, wait)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		if err := a.print(viewDecision(key, d), line("%s", describeDecision(d))); err != nil {
			return err
		}
	}
	switch {
	case !d.Allowed:
		return fail(exitNotAcquired, "refused: %d units are wanted and %d remain of the limit %q; retry in %v", f.cost, d.Remaining, key, roundedUp(d.RetryAfter))
	case len(words) == 0:
		return nil
	}
	return execFailure(syscall.Exec(path, words, publicEnviron()), "")
}

// limitArgs splits the arguments at the dashes.
func limitArgs(c *cobra.Command, args []string) (key string, words []string, err error) {
	dash := c.ArgsLenAtDash()
	switch {
	case dash < 0:
		dash = len(args)
	case dash == len(args):
		return "", nil, usage("there is no command after --")
	}
	if dash != 1 {
		return "", nil, usage("%s wants one key before --, %d were given; a flag with a time is written --wait=30s", c.CommandPath(), dash)
	}
	return args[0], args[1:], nil
}

// takeUnits takes units, and waits for them unless the wait would end too late.
func (a *app) takeUnits(ctx context.Context, table string, charge driver.Charge, wait time.Duration) (d driver.Decision, err error) {
	ctx, stop := untilStopped(ctx)
	defer stop()
	err = a.onLimits(ctx, table, func(ctx context.Context, l driver.LimitInspector) error {
		d, err = a.takeWithin(ctx, l, charge, wait)
		return err
	})
	if s := signalError(ctx); s != nil {
		return d, s
	}
	return d, err
}

// takeWithin asks again after a minute at most: what others refund or reset admits units earlier.
func (a *app) takeWithin(ctx context.Context, l driver.Limiter, charge driver.Charge, wait time.Duration) (d driver.Decision, err error) {
	for begun := boottime.Now(); ; {
		asking, cancel := context.WithTimeout(ctx, a.timeout)
		answer := l.Take(asking, []driver.LimitCall{{charge}})[0]
		cancel()
		if answer.Err != nil {
			return d, answer.Err
		}
		d = answer.Decisions[0]
		if d.Allowed || d.RetryAfter > wait-boottime.Now().Sub(begun) {
			return d, nil
		}
		if err := pause(ctx, min(d.RetryAfter, time.Minute)); err != nil {
			return d, err
		}
	}
}

// onLimits connects to the limits, within --timeout.
func (a *app) onLimits(ctx context.Context, table string, use func(context.Context, driver.LimitInspector) error) error {
	return connect(ctx, a, func(ctx context.Context, t backend.Target) (driver.LimitInspector, func(), error) {
		return t.Limits(ctx, limit.Table{Name: table, Prefix: a.prefix})
	}, func(_ context.Context, l driver.LimitInspector) error { return use(ctx, l) })
}

// decisionView is the JSON form of a decision; see docs/reference/cli.md.
type decisionView struct {
	Key        string `json:"key"`
	Allowed    bool   `json:"allowed"`
	Granted    int64  `json:"granted"`
	Remaining  int64  `json:"remaining"`
	RetryAfter int64  `json:"retry_after_ms"` // rounded up
	ResetAfter int64  `json:"reset_after_ms"`
}

func viewDecision(key string, d driver.Decision) decisionView {
	return decisionView{key, d.Allowed, d.Granted, d.Remaining, roundedUp(d.RetryAfter).Milliseconds(), roundedUp(d.ResetAfter).Milliseconds()}
}

func describeDecision(d driver.Decision) text {
	if !d.Allowed {
		return ""
	}
	return line("granted: %d, remaining: %d, reset in %v\n", d.Granted, d.Remaining, roundedUp(d.ResetAfter))
}

// roundedUp rounds up to milliseconds, so that a retry does not come too early.
func roundedUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

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
