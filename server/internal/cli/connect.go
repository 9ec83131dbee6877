package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// connect opens something on the backend and uses it, both within --timeout, and disconnects.
func connect[T any](ctx context.Context, a *app, open func(context.Context, backend.Target) (T, func(), error), use func(context.Context, T) error) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	opened, disconnect, err := open(ctx, target)
	if err != nil {
		return a.backendError(target, err)
	}
	defer disconnect()
	return a.backendError(target, use(ctx, opened))
}

// onDatabase connects to the database of the backend.
func (a *app) onDatabase(ctx context.Context, use func(context.Context, *backend.Database) error) error {
	return connect(ctx, a, func(ctx context.Context, t backend.Target) (*backend.Database, func(), error) {
		db, err := t.Database(ctx)
		if err != nil {
			return nil, nil, err
		}
		return db, func() { db.Close() }, nil
	}, use)
}

// inTx runs one transaction on the database of the backend.
func (a *app) inTx(ctx context.Context, use func(context.Context, driver.SQL) error) error {
	return a.onDatabase(ctx, func(ctx context.Context, db *backend.Database) error {
		return db.In(ctx, func(tx driver.SQL) error { return use(ctx, tx) })
	})
}

// group returns a command that only has subcommands.
func group(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.Use += " COMMAND"
	c.Args, c.RunE = isGroup, func(c *cobra.Command, _ []string) error { return c.Help() }
	c.AddCommand(commands...)
	return c
}

// mostRows caps --limit: it is a number in every store, also with one more.
const mostRows = 1 << 30

// listed adds --limit to a listing command, which then rejects a limit below one.
func listed(c *cobra.Command, limit *int, most int) *cobra.Command {
	c.Flags().IntVar(limit, "limit", most, "show at most this many")
	c.PreRunE = func(*cobra.Command, []string) error {
		if *limit < 1 {
			return usage("--limit must be above zero, not %d", *limit)
		}
		*limit = min(*limit, mostRows)
		return nil
	}
	return c
}

// audit is the record of a change: its author and reason.
type audit struct{ reason, by string }

func (r *audit) flags(f *pflag.FlagSet) {
	f.StringVar(&r.reason, "reason", "", "reason, for the audit log")
	f.StringVar(&r.by, "by", whoami(), "author, for the audit log")
	f.Lookup("by").DefValue = "user@host" // in the help, the same everywhere
}

// recorded adds the flags to a command, which then calls check.
func (r *audit) recorded(c *cobra.Command) *cobra.Command {
	r.flags(c.Flags())
	c.PreRunE = func(*cobra.Command, []string) error { return r.check() }
	return c
}

// check rejects a blank reason or author.
func (r *audit) check() error {
	switch {
	case strings.TrimSpace(r.reason) == "":
		return usage("--reason must say why: it is what the next person finds")
	case strings.TrimSpace(r.by) == "":
		return usage("--by must name the author; leave it out for %s", whoami())
	}
	return nil
}

// flagOrInput returns the value of a flag, or the standard input if that is "-", of at most most bytes.
func (a *app) flagOrInput(flag, value string, most int) (text []byte, err error) {
	if text = []byte(value); value == "-" {
		text, err = io.ReadAll(io.LimitReader(a.in, int64(most)+1))
	}
	switch {
	case err != nil:
		return nil, fail(exitFailed, "read the standard input: %w", err)
	case len(text) > most:
		return nil, usage("%s has more than %d bytes", flag, most)
	}
	return text, nil
}

// exactly requires n arguments, which what lists.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%s wants %s, %d were given", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

// oneArg requires exactly one argument, named what.
func oneArg(what string) cobra.PositionalArgs { return exactly(1, "one "+what) }

// atMostOne allows one argument, named what.
func atMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage("%s wants at most one %s, %d were given", c.CommandPath(), what, len(args))
		}
		return nil
	}
}
