package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

func (a *app) tokensCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "tokens", Short: "Repair the base of tokens, or move it here",
		Example: `  interlock tokens repair --reason "a host was dated 2031"
  interlock tokens move --from redis://old:6379 --backend etcd://new:2379`,
	}, a.repairCommand(), a.moveCommand())
}

func (a *app) repairCommand() *cobra.Command {
	var author audit
	return author.recorded(&cobra.Command{
		Use: "repair --reason TEXT", Short: "Lower an implausible base of tokens", Args: noArgs,
		Example: `  interlock tokens repair --reason "a host was dated 2031"`,
		Long: `If the tokens of a namespace are more than a day ahead of the clock, guards refuse them
and drivers do not open. This command sets the base to the clock, if it is implausible,
and records who did it and why. Stop the process with the wrong clock first.

New tokens are lower. For each guard that accepted one of the high tokens, run
"interlock guard rebase".`,
		RunE: func(c *cobra.Command, _ []string) error {
			r := &driver.Repair{Reason: author.reason, By: author.by}
			done := repaired{Reason: r.Reason, By: r.By}
			r.Lowered = func(before, after int64) { done.Repaired, done.Before, done.After = true, before, after }
			if err := a.reseed(c.Context(), driver.Seed{Repair: r}); err != nil {
				return err
			}
			if !done.Repaired {
				return a.print(done, line("the tokens are plausible, nothing was changed\n"))
			}
			return a.print(done, line("repaired by %s: tokens started at %s, and start at %s now\n", r.By, timeOf(done.Before), timeOf(done.After)))
		},
	})
}

// repaired is the JSON form; see docs/reference/cli.md.
type repaired struct {
	Repaired bool   `json:"repaired"`
	Before   int64  `json:"before,omitempty"` // counters
	After    int64  `json:"after,omitempty"`
	Reason   string `json:"reason"`
	By       string `json:"by"`
}

func timeOf(counter int64) string {
	return time.UnixMicro(interlock.EpochUnixMicro + counter).UTC().Format(time.DateTime)
}

// reseed opens the backend with a seed, and closes it.
func (a *app) reseed(ctx context.Context, seed driver.Seed) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	l, err := target.Locks(ctx, backend.Options{Prefix: a.prefix, Seed: seed})
	if err != nil {
		return a.backendError(target, err)
	}
	if err := l.Close(ctx); err != nil {
		a.say("warning: disconnecting from %v: %v", target, err)
	}
	return nil
}

func (a *app) moveCommand() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "move --from URL", Short: "Start tokens above those of another backend", Args: noArgs,
		Example: `  interlock tokens move --from redis://old:6379 --backend etcd://new:2379`,
		Long: `Locks move to another backend in three steps:

  1. Stop every process that uses the old backend.
  2. Run this command. It reads the highest token of the old backend, and raises the
     base of the new one above it.
  3. Start the processes with the new backend.

Guards then accept every token of the new backend. The old backend is not changed,
but for one grant of a lock of its own.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" {
				return usage("--from is missing: the URL of the old backend")
			}
			last, err := a.at(from).highest(c.Context())
			if err != nil {
				return err
			}
			if err := a.reseed(c.Context(), driver.Seed{After: last}); err != nil {
				return err
			}
			return a.print(struct {
				After interlock.Token `json:"after,string"`
			}{last}, line("tokens start above %v now\n", last))
		},
	}
	c.Flags().StringVar(&from, "from", "", "`URL` of the old backend")
	return c
}

// moveMargin bounds how far tokens of the old backend may be above the highest shown: tokens of
// free locks are not shown.
const moveMargin = time.Minute

// highest returns a token above all that the backend has issued: above a grant now and all held
// tokens, plus a margin.
func (a *app) highest(ctx context.Context) (interlock.Token, error) {
	target, err := a.target()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	l, err := target.Locks(ctx, backend.Options{Prefix: a.prefix})
	if err != nil {
		return 0, a.backendError(target, err)
	}
	defer l.Close(context.WithoutCancel(ctx))
	owner := "move/" + whoami()
	g, err := l.Acquire(ctx, driver.Request{Name: "interlock/move", Owner: owner})
	if err != nil {
		return 0, a.backendError(target, err)
	}
	if err := l.Release(ctx, "interlock/move", owner); err != nil {
		return 0, a.backendError(target, err)
	}
	top := g.Token
	held, _, err := l.Locks(ctx, "", moveLimit)
	if err != nil {
		return 0, a.backendError(target, err)
	}
	for _, state := range held {
		if state.Holder != nil {
			top = max(top, state.Holder.Token)
		}
	}
	return interlock.NewToken(top.Counter()+moveMargin.Microseconds(), 0)
}

// moveLimit is the most held locks that are read.
const moveLimit = 100_000
